"""From the text of a context-free grammar to its rules.  Lark, GBNF -> [notation] -> unfolding

Lark's notation has `name: ...`, and begins with the rule `start`; GBNF, the EBNF of llama.cpp and
xgrammar, has `name ::= ...` and begins with `root`. What only steers a parser (aliases, priorities,
`?` and `!` before a name) is read over. What would need another file is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ssdlm.constraints.grammars.expression import (
    SURROGATES,
    Anchor,
    Chain,
    Chars,
    Either,
    Expression,
    Ref,
    Repeat,
    text,
    walk,
)
from ssdlm.constraints.grammars.pattern import read_pattern
from ssdlm.values import DEEPEST, quote

MOST_RULES = 500
MOST_REPEATS = 1 << 16
START, IGNORED = "start of text", "ignored"
"""Rules that no text can name."""
LARK = re.compile(
    r"""(?P<define>^[^\S\n]*[?!]{0,2}[A-Za-z_]\w*(\.-?\d+)?\s*:)
    |(?P<space>[^\S\n]+|\n|//[^\n]*|\#[^\n]*)
    |(?P<string>"(\\.|[^"\\\n])*"i?)
    |(?P<regexp>/(\\.|[^/\\])+/[imslux]*)
    |(?P<command>%[a-z]+)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>\d+)
    |(?P<sign>->|\.\.|[()\[\]|*+?~.,])""",
    re.MULTILINE | re.VERBOSE,
)
GBNF = re.compile(
    r"""(?P<define>^[^\S\n]*[A-Za-z_][\w-]*\s*::=)
    |(?P<space>[^\S\n]+|\n|\#[^\n]*)
    |(?P<string>"(\\.|[^"\\\n])*")
    |(?P<regexp>\[(\\.|[^\]\\])+\]|\.)
    |(?P<name>[A-Za-z_][\w-]*)
    |(?P<number>\d+)
    |(?P<sign>[()|*+?{},])""",
    re.MULTILINE | re.VERBOSE,
)
IS_GBNF = re.compile(r"^[^\S\n]*[A-Za-z_][\w-]*\s*::=", re.MULTILINE)
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
DECIMAL = r"[0-9]+\.[0-9]*|\.[0-9]+"
FLOAT = rf"(?:[0-9]+|{DECIMAL})[eE][+-]?[0-9]+|{DECIMAL}"
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": DECIMAL,
    "FLOAT": FLOAT,
    "SIGNED_FLOAT": f"[+-]?(?:{FLOAT})",
    "NUMBER": f"{FLOAT}|[0-9]+",
    "SIGNED_NUMBER": f"[+-]?(?:{FLOAT}|[0-9]+)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""What `%import common.NAME` brings."""


class Token(NamedTuple):
    """A piece of a grammar's text."""

    kind: str
    text: str
    line: int


def read_grammar(source: str, *, is_narrow: bool) -> dict[str, Expression]:
    """Return the rules of a grammar by their names; texts are those of the rule START."""
    is_gbnf = IS_GBNF.search(source) is not None
    reader = Reader(list(tokens_of(source, GBNF if is_gbnf else LARK)), is_gbnf, is_narrow)
    reader.read()
    return reader.whole("root" if is_gbnf else "start")


def tokens_of(source: str, notation: re.Pattern[str]) -> Iterator[Token]:
    """Yield the pieces of a text, or raise at what is none."""
    place, line = 0, 1
    while place < len(source):
        match = notation.match(source, place)
        if match is None:
            raise problem(line, f"{quote(source[place : place + 20])} cannot be read")
        found = Token(match.lastgroup or "", match[0], line)
        if found.kind != "space":
            yield found
        place, line = match.end(), line + match[0].count("\n")


def problem(line: int, what: str) -> ValueError:
    """Return the error of a line."""
    return ValueError(f"grammar line {line}: {what}; correct it")


@dataclass
class Reader:
    """Reads pieces into rules."""

    tokens: list[Token]
    is_gbnf: bool
    is_narrow: bool
    rules: dict[str, Expression] = field(default_factory=dict)
    ignored: list[Expression] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)
    """The names that rules refer to, each with a line where one does."""
    place: int = 0
    level: int = 0
    in_rule: bool = False
    """Whether a rule is read, between whose parts ignored ones may stand."""

    @property
    def next(self) -> Token:
        """The piece that comes next."""
        last = self.tokens[-1].line if self.tokens else 1
        return self.tokens[self.place] if self.place < len(self.tokens) else Token("end", "", last)

    def take(self, *texts: str) -> str | None:
        """Return the next piece and pass it if it is one of these."""
        if self.next.text not in texts or self.next.kind == "end":
            return None
        self.place += 1
        return self.tokens[self.place - 1].text

    def expect(self, kind: str, what: str) -> Token:
        """Return the next piece, which has to be of a kind."""
        token = self.next
        if token.kind != kind:
            raise problem(token.line, f"{what} is missing before {quote(token.text)}")
        self.place += 1
        return token

    def read(self) -> None:
        """Read all rules and commands."""
        while self.next.kind != "end":
            if self.next.kind == "command":
                self.read_command()
                continue
            head = self.expect("define", "a rule such as start: ...")
            name = re.sub(r"\..*|\W+$", "", head.text.strip().lstrip("?!"), flags=re.DOTALL)
            self.in_rule = not self.is_gbnf and name.lstrip("_")[:1].islower()
            self.define(name, self.read_options(), head.line)

    def define(self, name: str, found: Expression, line: int) -> None:
        """Keep a rule, or raise where there is one of this name or too many."""
        if name in self.rules:
            raise problem(line, f"{name} is defined twice")
        if len(self.rules) == MOST_RULES:
            raise problem(line, f"{MOST_RULES} rules are the most")
        self.rules[name] = found

    def read_command(self) -> None:
        """Read what stands after a percent sign."""
        token = self.expect("command", "a command")
        if token.text == "%ignore":
            self.in_rule = False
            self.ignored.append(self.read_options())
        elif token.text == "%import":
            library = self.expect("name", "a library").text
            if library != "common" or not self.take(".", "("):
                raise problem(token.line, "only names of `common` can be imported")
            if self.tokens[self.place - 1].text == "(":
                names = [self.expect("name", "a name")]
                while self.take(","):
                    names.append(self.expect("name", "a name"))
                self.close(")", token.line)
                pairs = [(name, name) for name in names]
            else:
                name = self.expect("name", "a name")
                pairs = [(name, self.expect("name", "a name") if self.take("->") else name)]
            for name, own in pairs:
                if name.text not in COMMON:
                    raise problem(name.line, f"common has no {quote(name.text)}")
                self.define(own.text, self.pattern(COMMON[name.text], name), name.line)
        else:
            raise problem(token.line, f"{token.text} is not supported")

    def read_options(self) -> Expression:
        """Read options with | between them."""
        self.level += 1
        if self.level > DEEPEST:
            raise problem(self.next.line, f"parts lie more than {DEEPEST} deep in each other")
        options = [self.read_chain()]
        while self.take("|"):
            options.append(self.read_chain())
        self.level -= 1
        return options[0] if len(options) == 1 else Either(tuple(options))

    def read_chain(self) -> Expression:
        """Read parts one after another, and what an alias calls them."""
        parts: list[Expression] = []
        while self.next.kind in ("string", "regexp", "name") or self.next.text in ("(", "["):
            parts.append(self.read_repeat(self.read_part()))
        if self.take("->"):
            self.expect("name", "an alias")
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def read_repeat(self, part: Expression) -> Expression:
        """Read how often a part may stand."""
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if sign := self.take("*", "+", "?", "~", "{"):
            if sign in bounds:
                return Repeat(part, *bounds[sign])
            low = high = self.number()
            if sign == "~" and self.take(".."):
                high = self.number()
            elif sign == "{":
                if self.take(","):
                    high = self.number() if self.next.kind == "number" else None
                self.close("}", self.next.line)
            if high is not None and low > high:
                raise problem(self.next.line, f"{low} is more than {high}")
            return Repeat(part, low, high)
        return part

    def number(self) -> int:
        """Read how often something stands."""
        token = self.expect("number", "a number")
        if len(token.text) > 6 or int(token.text) > MOST_REPEATS:
            raise problem(token.line, f"{MOST_REPEATS} repeats are the most")
        return int(token.text)

    def close(self, sign: str, line: int) -> None:
        """Pass a closing sign, or raise where there is none."""
        if not self.take(sign):
            raise problem(line, f"{sign} is missing")

    def read_part(self) -> Expression:
        """Read a text, a pattern, a name or a part in brackets."""
        token = self.next
        self.place += 1
        if token.kind == "sign":
            found = self.read_options()
            self.close(")" if token.text == "(" else "]", token.line)
            return found if token.text == "(" else Repeat(found, 0, 1)
        if token.kind == "name":
            is_terminal = not self.is_gbnf and token.text.lstrip("_")[:1].isupper()
            if not (is_terminal or self.is_gbnf or self.in_rule):
                raise problem(token.line, f"a terminal refers to the rule {token.text}")
            self.used.setdefault(token.text, token.line)
            return self.spaced(Ref(token.text)) if is_terminal else Ref(token.text)
        if token.kind == "string" and self.take(".."):
            ends = [unescaped(token), unescaped(self.expect("string", "the end of a range"))]
            if any(len(end) != 1 for end in ends) or ends[0] > ends[1]:
                raise problem(token.line, f"a range is between two characters, not {quote(ends)}")
            return self.spaced(Chars(((ord(ends[0]), ord(ends[1])),)))
        if token.kind == "string" and token.text[-1] == '"':
            return self.spaced(text(unescaped(token)))
        if token.kind == "string":
            return self.spaced(self.pattern(f"(?i:{re.escape(unescaped(token))})", token))
        if self.is_gbnf:
            return self.pattern("(?s:.)" if token.text == "." else token.text, token)
        body, _, flags = token.text[1:].rpartition("/")
        if "l" in flags:
            raise problem(token.line, "the flag l is not supported")
        return self.spaced(self.pattern(f"(?{flags}:{body})" if flags else body, token))

    def pattern(self, pattern: str, token: Token) -> Expression:
        """Return the expression of a pattern, which may have no anchors."""
        name = f"grammar line {token.line}: the pattern"
        found = read_pattern(pattern, is_narrow=self.is_narrow, name=name)
        if any(isinstance(part, Anchor) for part in walk(found)):
            raise problem(token.line, f"{quote(token.text)} has ^, $ or another anchor")
        return found

    def spaced(self, part: Expression) -> Expression:
        """Return a part of a rule with what is ignored before it; terminals have nothing inside."""
        return Chain((Ref(IGNORED), part)) if self.in_rule else part

    def whole(self, start: str) -> dict[str, Expression]:
        """Return all rules, those for the whole text and for what is ignored among them."""
        if start not in self.rules:
            raise ValueError(f"grammar has no rule {start}, where texts begin; add it")
        for name, line in self.used.items():
            if name not in self.rules:
                raise problem(line, f"{name} is not defined")
        ignored = Repeat(Either(tuple(self.ignored))) if self.ignored else Chain(())
        return self.rules | {IGNORED: ignored, START: Chain((Ref(start), Ref(IGNORED)))}


def unescaped(token: Token) -> str:
    """Return the characters of a text in quotes."""

    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            number = int(code[1:], 16)
            if number > 0x10FFFF or SURROGATES[0] <= number <= SURROGATES[1]:
                raise problem(token.line, f"{match[0]} is no character")
            return chr(number)
        return CONTROLS.get(code) or (code if code in '"\\[]' else match[0])

    found = ESCAPE.sub(replace, token.text.rstrip("i")[1:-1])
    if any(SURROGATES[0] <= ord(char) <= SURROGATES[1] for char in found):
        raise problem(token.line, f"{quote(token.text)} is not UTF-8")
    return found


def references(rules: Mapping[str, Expression]) -> dict[str, list[str]]:
    """Return the names that each rule refers to, in order."""
    return {
        name: list(dict.fromkeys(part.name for part in walk(rule) if isinstance(part, Ref)))
        for name, rule in rules.items()
    }

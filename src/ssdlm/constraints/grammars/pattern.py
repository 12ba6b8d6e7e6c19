"""From a regular expression to what it is made of, by Python's own parser.

    regex -> [pattern] -> expression -> machine

`re` itself is asked which characters a class means, so that no rule about case or alphabets is
written twice. What no automaton can do, or only a far larger one, is refused by name.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from ssdlm.constraints.grammars.expression import (
    NEWLINE,
    NUM_CODES,
    SURROGATES,
    Anchor,
    Chain,
    Chars,
    Either,
    Expression,
    Ranges,
    Repeat,
    complement,
    merged,
)
from ssdlm.values import DEEPEST, quote, shorten

parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
"""The parser of `re`; it has had this name since Python 3.11."""

NARROW = 0x800
"""Below this code point are the alphabets of Europe and the Near East, in two bytes at most."""
SHARED_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
"""Flags that change which characters a class means."""
CLASSES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
ASCII_CLASSES = {"CATEGORY_DIGIT": "0-9", "CATEGORY_SPACE": r" \t\n\r\f\v"}
"""What stands for these classes, less than `re` takes: who writes `\\d` does not ask for the digits
of all alphabets, and one first byte of theirs would leave a network no other way on."""
REFUSED = {
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a conditional group (?(...)...)",
    "ATOMIC_GROUP": "an atomic group (?>...)",
    "POSSESSIVE_REPEAT": "a possessive repeat",
    "FAILURE": "a lookahead (?!...)",
    "AT_BOUNDARY": r"a word boundary \b",
    "AT_NON_BOUNDARY": r"a word boundary \B",
}
LOOKS = {
    ("ASSERT", 1): "a lookahead (?=...)",
    ("ASSERT_NOT", 1): "a lookahead (?!...)",
    ("ASSERT", -1): "a lookbehind (?<=...)",
    ("ASSERT_NOT", -1): "a lookbehind (?<!...)",
}


def read_pattern(pattern: str, *, is_narrow: bool = False, name: str = "regex") -> Expression:
    """Return the expression of the texts that `re.fullmatch` finds a pattern in.

    Narrow, the classes named by a letter (`\\w`) have no characters from NARROW on, which makes far
    smaller automata. `name` is what an error calls the pattern.
    """
    shown = f"{name}={quote(pattern)}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about notations that may change their meaning
            re.compile(pattern)
            parsed = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else shorten(str(error))
        raise ValueError(f"{shown} does not compile ({reason}); correct it") from None
    return Reader(shown, is_narrow).read(parsed, parsed.state.flags)


@dataclass(frozen=True)
class Reader:
    """Turns what the parser of `re` returns into an expression."""

    shown: str
    """The pattern, as errors quote it."""
    is_narrow: bool

    def read(self, items: Any, flags: int, level: int = 0) -> Expression:
        """Return the expression of items one after another."""
        if level > DEEPEST:
            raise ValueError(f"{self.shown} does not compile (nested too deep); correct it")
        parts = tuple(self.read_item(str(code), value, flags, level + 1) for code, value in items)
        return parts[0] if len(parts) == 1 else Chain(parts)

    def read_item(self, code: str, value: Any, flags: int, level: int) -> Expression:
        """Return the expression of one item, or raise where there is none."""
        if code in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            return Chars(characters(code, value, flags & SHARED_FLAGS, self.is_narrow))
        if code == "BRANCH":
            return Either(tuple(self.read(option, flags, level) for option in value[1]))
        if code == "SUBPATTERN":
            _, added, removed, items = value
            return self.read(items, (flags | added) & ~removed, level)
        if code in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, items = value
            part = self.read(items, flags, level)
            return Repeat(part, low, None if high == parser.MAXREPEAT else high)
        if code == "AT" and str(value) not in REFUSED:
            return anchor_of(str(value), bool(flags & re.MULTILINE))
        name = LOOKS[code, value[0]] if code in ("ASSERT", "ASSERT_NOT") else None
        name = name or REFUSED.get(str(value) if code == "AT" else code, code)
        raise ValueError(f"{self.shown} contains {name}, which is not supported; write it without")


def anchor_of(name: str, is_multiline: bool) -> Anchor:
    """Return the anchor that the parser of `re` calls by this name."""
    if name == "AT_BEGINNING":
        return Anchor.LINE_START if is_multiline else Anchor.START
    if name == "AT_END":
        return Anchor.LINE_END if is_multiline else Anchor.LAST_LINE_END
    return Anchor.START if name == "AT_BEGINNING_STRING" else Anchor.END


def characters(code: str, value: Any, flags: int, is_narrow: bool) -> Ranges:
    """Return the characters that an item of one character means."""
    if code == "ANY":
        newline = ((NEWLINE, NEWLINE),)
        return ((0, NUM_CODES - 1),) if flags & re.DOTALL else complement(newline)
    items = [("LITERAL", value)] if code != "IN" else [(str(kind), item) for kind, item in value]
    is_negated = code == "NOT_LITERAL" or ("NEGATE", None) in items
    items = [item for item in items if item[0] != "NEGATE"]
    has_class = any(kind == "CATEGORY" for kind, _ in items)
    if has_class or flags & re.IGNORECASE:
        named = CLASSES if is_negated else CLASSES | ASCII_CLASSES
        source = "".join(source_of(kind, item, named) for kind, item in items)
        ranges = matching(f"[{'^' * is_negated}{source}]", flags)
        return clipped(ranges) if has_class and is_narrow else ranges
    ranges = merged(item if kind == "RANGE" else (item, item) for kind, item in items)
    return complement(ranges) if is_negated else ranges


def source_of(kind: str, item: Any, named: Mapping[str, str]) -> str:
    """Return an item of a class as one writes it."""
    if kind == "CATEGORY":
        return named[str(item)]
    codes = item if kind == "RANGE" else (item,)
    return "-".join(f"\\U{code:08x}" for code in codes)


def clipped(ranges: Ranges) -> Ranges:
    """Return the narrow ones of some characters."""
    return tuple((low, min(high, NARROW - 1)) for low, high in ranges if low < NARROW)


@lru_cache(maxsize=1)
def all_characters() -> str:
    """Return every character there is, in order."""
    low, high = SURROGATES
    return "".join(map(chr, (*range(low), *range(high + 1, NUM_CODES))))


@lru_cache(maxsize=512)
def matching(source: str, flags: int) -> Ranges:
    """Return the characters that `re` finds to match a class."""
    everything, (low, high) = all_characters(), SURROGATES
    found = []
    for match in re.finditer(f"{source}+", everything, flags):
        first, last = ord(everything[match.start()]), ord(everything[match.end() - 1])
        # One run in the list of characters may reach over the halves, which are not in it.
        pieces = [(first, low - 1), (high + 1, last)] if first < low <= last else [(first, last)]
        found += pieces
    return tuple(found)

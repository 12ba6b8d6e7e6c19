"""What a text must and must not contain, from words to tokens.  tokenizer -> [words] -> placement

`TextConstraint` is what a user asks for, in strings; `ConstraintCompiler` turns it into a placement
and an automaton over tokens. Whatever cannot be done is refused here, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from ssdlm.constraints.automaton import (
    Automaton,
    Matcher,
    build_automaton,
    is_word_char,
    span_automaton,
)
from ssdlm.constraints.grammars.grammar import Grammar
from ssdlm.constraints.grammars.utf8 import ByteMachine
from ssdlm.constraints.placement import Placement, RequiredWord, TokenConstraint, find_placement
from ssdlm.constraints.sentences import SENTENCE_END
from ssdlm.storage.arrays import NO_CACHE, ArrayCache
from ssdlm.tokenizer import HALF, Tokenizer, is_utf8
from ssdlm.values import quote

MOST_AUTOMATA = 16
"""Automata that a compiler keeps."""


@dataclass(frozen=True)
class TextConstraint:
    """What is asked of one prompt's text."""

    must: tuple[str, ...] = ()
    """Words that it has to contain."""
    must_not: tuple[str, ...] = ()
    """Words that it may not contain, in any case."""
    suffix: str = ""
    """What it ends with, after a gap of `length` tokens."""
    pin: tuple[tuple[int, str], ...] = ()
    """What stands at a position, counted in tokens."""
    end_at_sentence: bool = False
    """Whether it is cut at the last end of a sentence; there will be one."""
    regex: str | None = None
    """What it matches as a whole."""
    json_schema: str | None = None
    """The text of a JSON schema that it follows."""
    grammar: str | None = None
    """The text of a context-free grammar that it follows."""
    opening: str | None = None
    """Of a span that is written anew: what its first token begins with, before its first letter.
    Then must_not is about the span, and not about the suffix."""

    @property
    def language(self) -> Grammar | None:
        """What the whole text has to match, if anything."""
        given = self.regex, self.json_schema, self.grammar
        return Grammar(*given) if any(one is not None for one in given) else None

    def __post_init__(self) -> None:
        if any(HALF in word for word in self.must_not):
            raise ValueError(
                "must_not='\\ufffd' is how broken bytes are shown, not a character; leave it out"
            )
        for text in (*self.must, *self.must_not, self.suffix, *(text for _, text in self.pin)):
            if not is_utf8(text):
                raise ValueError(f"{text!r} is not UTF-8; save or type it as UTF-8")


@dataclass(frozen=True)
class Wanted:
    """A constraint, and what has to be known of the text that is to obey it."""

    constraint: TextConstraint
    context: tuple[int, ...]
    """The tokens before it."""
    length: int
    """Its tokens, those of a suffix not counted."""
    stop_at_end: bool
    """Whether it is over at an end-of-text token."""

    def __str__(self) -> str:
        return describe(self.constraint)


class ConstraintCompiler:
    """Turns constraints on text into placements, for one tokenizer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        V: int,
        max_len: int | None,
        cache: ArrayCache = NO_CACHE,
    ) -> None:
        self.tokenizer = tokenizer
        self.V, self.max_len = V, max_len
        self.automata: dict[Hashable, Automaton] = {}
        """Those that were built: most texts of a call share theirs, and it is the slow part."""
        self.cache = cache

    @cached_property
    def spellings(self) -> list[bytes]:
        """The bytes of each token; ids beyond the tokenizer's have none."""
        spellings = self.tokenizer.token_bytes()
        return spellings + [b""] * (self.V - len(spellings))

    @cached_property
    def joins_spaces(self) -> bool:
        """Whether tokens of words have the space before them."""
        return any(re.match(rb" \w", spelling) for spelling in self.spellings)

    def compile(self, wanted: Wanted) -> Placement:
        """Return a feasible placement for the `length` tokens and the suffix after a context."""
        constraint, length = wanted.constraint, wanted.length
        suffix = self.suffix(constraint, length)
        words = tuple(self.required_word(word, constraint.must_not) for word in constraint.must)
        pins = self.pins(constraint, length) | dict(enumerate(suffix, start=length))
        total = length + len(suffix)
        needed, room = sum(len(word.tokens) for word in words), total - len(pins)
        if needed > room:
            raise ValueError(
                f"must={list(constraint.must)} takes {needed} tokens and there is room for {room}; "
                "raise length or drop a word"
            )
        automaton = self.automaton(wanted)
        num_given = 0 if constraint.opening is None else len(suffix)
        asked = TokenConstraint(automaton, total, pins, words, num_given)
        placement = find_placement(asked)
        if placement is None and automaton.hangs.any():
            # Then a longer word may begin with a forbidden one token by token.
            automaton = replace(automaton, hangs=np.zeros_like(automaton.hangs), cache={})
            placement = find_placement(replace(asked, automaton=automaton))
        if placement is None:
            shortest = automaton.shortest()
            if constraint.language and shortest is None:
                raise ValueError(
                    f"{constraint.language} matches no text that this tokenizer can write, or none "
                    "without must_not; change it"
                )
            if constraint.language and shortest is not None and shortest > total:
                raise ValueError(
                    f"{constraint.language} takes at least {shortest} tokens, and there is room "
                    f"for {total}; raise length"
                )
            raise ValueError(
                f"no text of {total} tokens has {describe(constraint)}; drop or change one"
            )
        return placement

    def suffix(self, constraint: TextConstraint, length: int) -> tuple[int, ...]:
        """Return the tokens after the gap; they share its block, so that it is written to them."""
        if not constraint.suffix:
            return ()
        tokens = self.spell("suffix", constraint.suffix)
        total = length + len(tokens)
        if self.max_len is not None and total > self.max_len:
            raise ValueError(
                f"length={length} and suffix={constraint.suffix!r} make a block of {total} "
                f"tokens, and the model has {self.max_len} positions; shorten either"
            )
        if constraint.end_at_sentence and not SENTENCE_END.search(constraint.suffix):
            raise ValueError(
                f"suffix={constraint.suffix!r} does not end a sentence; end it with . ! or ?, or "
                "leave out end_at_sentence"
            )
        return tokens

    def automaton(self, wanted: Wanted) -> Automaton:
        """Return the automaton for a text after a prompt."""
        constraint = wanted.constraint
        words = constraint.must_not
        prompt = b"".join(self.spellings[token] for token in wanted.context) if words else b""
        suffix, opening = constraint.suffix.encode(), constraint.opening
        # A suffix has been seen to end a sentence, and stays whole.
        is_sentence = constraint.end_at_sentence and not constraint.suffix
        end_of_text = self.tokenizer.end_of_text if wanted.stop_at_end else None
        matcher = Matcher(words)
        before = matcher.after_prompt(prompt)
        key = constraint.language, is_sentence, end_of_text, words, before
        if opening is not None:
            key = *key, opening, suffix if words else b""
            if key not in self.automata:
                self.automata[key] = span_automaton(
                    words, self.spellings, prompt=prompt, opening=opening, given=suffix
                )
        elif key not in self.automata and constraint.language:
            also = ByteMachine(*matcher.byte_table(before))
            self.automata[key] = constraint.language.compile(
                self.tokenizer, self.spellings, self.cache, also if words else None
            )
        elif key not in self.automata:
            self.automata[key] = build_automaton(
                words,
                self.spellings,
                prompt=prompt,
                end_of_text=end_of_text,
                is_sentence=is_sentence,
            )
        if len(self.automata) > MOST_AUTOMATA:
            del self.automata[next(iter(self.automata))]  # the oldest
        return self.automata[key]

    def required_word(self, word: str, must_not: tuple[str, ...]) -> RequiredWord:
        """Return the tokens of a word, a space before it if it begins with a letter."""
        text = f" {word}" if is_word_char(word[0]) else word
        # Forbidden whatever follows, if it is so both before a space and before a full stop.
        matcher = Matcher(must_not)
        banned = matcher.find(word.encode() + b" ")
        if banned is not None and matcher.find(word.encode() + b".") is not None:
            raise ValueError(f"must={word!r} contains must_not={banned!r}; drop one of them")
        return RequiredWord(self.spell("must", text), needs_boundary=is_word_char(word[-1]))

    def pins(self, constraint: TextConstraint, length: int) -> dict[int, int]:
        """Return the pinned tokens by position."""
        pins: dict[int, int] = {}
        for position, text in constraint.pin:
            tokens = self.spell("pin", text)
            if not 0 <= position <= length - len(tokens):
                raise ValueError(
                    f"pin={text!r} takes {len(tokens)} tokens from {position} on, and "
                    f"length={length}; raise length or pin it elsewhere"
                )
            new = dict(enumerate(tokens, start=position))
            if pins.keys() & new.keys():
                raise ValueError(f"pin={text!r} at {position} overlaps another; move one of them")
            pins |= new
        return pins

    def spell(self, name: str, text: str) -> tuple[int, ...]:
        """Return the tokens of a text that must stand exactly as it is."""
        tokens = tuple(self.tokenizer.encode_plain([text])[0])
        spelled = b"".join(self.spellings[token] for token in tokens)
        if spelled != text.encode():
            raise ValueError(
                f"{name}={text!r} cannot be written with this tokenizer, which makes it "
                f"{spelled.decode(errors='replace')!r}; use other characters"
            )
        return tokens


def describe(constraint: TextConstraint) -> str:
    """Return a constraint as its options, for an error."""
    options = asdict(replace(constraint, opening=None)) | {
        "must": list(constraint.must),
        "must_not": list(constraint.must_not),
        "pin": dict(constraint.pin),
    }
    given = {n: value for n, value in options.items() if value not in ([], {}, "", False, None)}
    return " and ".join(f"{name}={quote(value)}" for name, value in given.items())

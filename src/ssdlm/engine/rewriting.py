"""Spans of a text written anew, in view of both sides.  options -> [rewriting] -> api, server

A span is a gap before a suffix, which is the text behind it. Spans are written from left to right,
each after the text with those before it rewritten. Strings are put together, and what lies outside
of the spans is never decoded, so it stays as it is.

Spaces at the edges of a span stay too, and new words neither begin nor end with one. A tokenizer
may write a space and the word behind it as one token: then the space before a span is that of its
first token, which has to begin with one.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any, NamedTuple, get_args

from ssdlm.engine.chains import check_stream
from ssdlm.engine.describing import behind_description
from ssdlm.engine.ending import text_of
from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import Generation, Opened
from ssdlm.engine.strategy import NEEDS_ADAPTER, is_adapted
from ssdlm.needs import NOT_OF_SPANS
from ssdlm.options import MOST, GenerateOptions, SpanLength
from ssdlm.tokenizer import is_utf8
from ssdlm.values import WHOLE, About, check, check_whole, choose, quote, shorten, show

SPACES = " \t\n\r\f\v"
FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
"""Two of them are a flag."""
JOINED = re.compile(
    "[\u1100-\u115f\ua960-\ua97c][\u1100-\u115f\ua960-\ua97c\uac00-\ud7a3]"
    "|[\u1100-\u11ff\ua960-\ua97c\uac00-\ud7fb][\u1160-\u11ff\ud7b0-\ud7fb]"
)
"""Two letters of one Korean syllable: one that begins it, or one that goes on with it."""
MOST_AFTER = 32
"""Tokens behind a span that the model sees: as long as the blocks of an adapter's training."""
TRIES = 4
"""Texts at least of which an adapter keeps that with the likeliest join."""
MOST_SEEN = 1024
"""Positions of a model that knows no limit."""
CHARACTERS_PER_TOKEN = 32
"""What of a text is looked at for its tokens, at the most."""

ALTERNATIVES = About(WHOLE, "", "", low=1, high=MOST, remedy=f"ask for 1 to {MOST}")


class Span(NamedTuple):
    """Characters of a text, from `start` up to `end`."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"


@dataclass(frozen=True)
class Rewrite:
    """A text with spans written anew."""

    text: str
    spans: list[Span]
    """Where the new words are, in characters of `text`."""
    seed: int
    generations: list[Generation]
    """One for each span; the text of each goes on behind it."""


class Passage(NamedTuple):
    """A span without the spaces at its edges, and how it is written."""

    span: Span
    opening: str
    """What its first token begins with: the space before it, or nothing."""
    options: GenerateOptions
    num_after: int
    """Tokens behind it that the model sees."""


@dataclass
class Version:
    """One alternative on its way."""

    text: str
    shift: int = 0
    """By how many characters it is longer than the text was."""
    spans: list[Span] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)


class Rewriting:
    """The work on a text: `asked` is what to write for a span, `take` puts that into the text."""

    def __init__(
        self,
        engine: Engine,
        text: str,
        spans: Sequence[Span],
        options: Sequence[GenerateOptions],
        *,
        length: str = "equal",
        alternatives: int = 1,
    ) -> None:
        if engine.denoiser.most_open == 1:
            raise ValueError(f"rewriting {NEEDS_ADAPTER}")
        if engine.tokenizer is None:
            raise ValueError("rewriting needs a tokenizer, and this model has none")
        choose("length", length, get_args(SpanLength))
        if length == "free":
            given = "rates the lengths; use length=equal"
            check_stream(engine.denoiser, "length=free", given)
        for own in options:
            for name in (name for name in NOT_OF_SPANS if name in own.given):
                value = shorten(show(getattr(own, name)))
                raise ValueError(f"{name}={value}: {NOT_OF_SPANS[name]}")
        self.engine, self.tokenizer = engine, engine.tokenizer
        self.num_told = max(
            len(behind_description((), (), one, engine.tokenizer)) for one in options
        )
        self.sight = (engine.denoiser.max_len or MOST_SEEN) - self.num_told
        self.has_adapter = is_adapted(engine.denoiser)
        pairs = sorted(zip(spans, options, strict=True), key=lambda pair: pair[0])
        self.passages = [self.passage(text, *pair, is_free=length == "free") for pair in pairs]
        count = check("alternatives", alternatives, ALTERNATIVES)
        self.versions = [Version(text) for _ in range(count)]

    @property
    def num_done(self) -> int:
        """How many spans are written."""
        return len(self.versions[0].spans)

    def passage(self, text: str, span: Span, options: GenerateOptions, *, is_free: bool) -> Passage:
        """Return how a span is written; raise where the model does not see it whole."""
        words = text[span.start : span.end]
        core = words.strip(SPACES)
        start = span.start + len(words) - len(words.lstrip(SPACES))
        has_space = text[:start].endswith(" ") and self.engine.compiler.joins_spaces
        opening = " " if has_space else ""
        count = max(1, len(self.tokenizer.encode_plain([opening + core])[0]))
        suffix = self.beginning(text[start + len(core) :], MOST_AFTER)
        spread = min(4, max(2, count // 4)) if is_free and suffix else 0
        required = self.engine.compiler.required_word
        needed = sum(len(required(word, options.must_not).tokens) for word in options.must)
        longer = "length=free or a longer span" if suffix else "a longer span"
        for place, pinned in options.pin:
            if place + (size := len(self.engine.compiler.spell("pin", pinned))) > count - spread:
                raise ValueError(
                    f"pin={pinned!r} takes {size} tokens from {place} on, and there is room for "
                    f"{max(1, count - spread)} in span {span}; pin it elsewhere, or take a longer "
                    "span"
                )
        if needed > count and not spread:
            raise ValueError(
                f"must={list(options.must)} takes {needed} tokens and there is room for {count} in "
                f"span {span}; use {longer}"
            )
        fewest = max(1, count - spread, needed + 1 if spread and needed else 0)
        longest = max(count, fewest) + spread
        if (room := self.sight - longest) < 2:
            raise ValueError(
                f"span {span} takes {longest} tokens, and the model sees {self.sight} at a time"
                f"{f' beside {self.num_told} of control_by' * bool(self.num_told)}; give a shorter "
                "one"
            )
        suffix = self.beginning(suffix, room // 2)
        length = {"gap": (fewest, longest)} if spread else {"length": count}
        is_told = options.control or "best_of" in options.began
        if suffix and self.has_adapter and not is_told:
            options = options.change(best_of=math.ceil(TRIES / (longest - fewest + 1)))
        options = options.change(suffix=suffix, stop_at_end=False, never_end=True, **length)
        num_after = len(self.tokenizer.encode_plain([suffix])[0])
        return Passage(Span(start, start + len(core)), opening, options, num_after)

    def beginning(self, text: str, most: int) -> str:
        """Return the beginning of a text, of so many tokens, as far as they can write it."""
        text, spellings = text[: most * CHARACTERS_PER_TOKEN], self.engine.compiler.spellings
        ids = self.tokenizer.encode_plain([text])[0][:most]
        spelled = b"".join(spellings[token] for token in ids)
        both = zip(text.encode(), spelled, strict=False)
        same = takewhile(lambda pair: pair[0] == pair[1], both)
        return bytes(byte for byte, _ in same).decode(errors="ignore")

    def asked(self, number: int) -> tuple[list[Opened], list[GenerateOptions]]:
        """Return what stands before a span, and its options, for each alternative."""
        _, opening, options, num_after = self.passages[number]
        begin, room = self.tokenizer.begin, self.sight - options.length - num_after
        contexts = []
        for version in self.versions:
            before = self.left(version, number).removesuffix(opening)
            ids = self.engine.context(before[-room * CHARACTERS_PER_TOKEN :])
            if len(ids) > room:
                ids = *begin, *ids[len(ids) - room + len(begin) :]
            contexts.append(Opened(ids, opening))
        seeds = range(options.seed, options.seed + len(self.versions))
        return contexts, [options.change(seed=seed) for seed in seeds]

    def left(self, version: Version, number: int) -> str:
        """Return all that stands before a span."""
        return version.text[: self.passages[number].span.start + version.shift]

    def take(self, texts: Sequence[Generation]) -> None:
        """Put what was written for the next span into the text of each alternative."""
        number = self.num_done
        span, _, _, num_after = self.passages[number]
        contexts, _ = self.asked(number)
        for version, context, written in zip(self.versions, contexts, texts, strict=True):
            left, right = self.left(version, number), version.text[span.end + version.shift :]
            tokens = written.tokens[: len(written.tokens) - num_after]
            new = text_of(self.tokenizer, tokens, context).strip(SPACES)
            version.text = left + new + right
            version.shift += len(new) - (span.end - span.start)
            version.spans.append(Span(len(left), len(left) + len(new)))
            version.generations.append(written)

    def results(self) -> list[Rewrite]:
        """Return the alternatives."""
        return [
            Rewrite(one.text, one.spans, one.generations[0].seed, one.generations)
            for one in self.versions
        ]


def spans_in(text: Any, spans: Any) -> list[Span]:
    """Return spans of a text in the order given, or raise on what is none."""
    if not isinstance(text, str) or not is_utf8(text):
        raise ValueError(f"text={quote(text)} is not a text in UTF-8; give one")
    try:
        found = [Span(*map(check_whole, pair)) for pair in spans]
    except TypeError:
        raise ValueError(
            f"spans={quote(spans)} is not a list of places such as [(4, 9)], in characters"
        ) from None
    if not found:
        raise ValueError("spans is empty; give at least one")
    if not text:
        raise ValueError("the text is empty; give one with words")
    for span in found:
        if not 0 <= span.start < span.end <= len(text):
            raise ValueError(
                f"span {span} is empty or lies outside the text, whose characters are "
                f"0-{len(text)}; give another"
            )
        for place in span:
            if splits_character(text, place):
                raise ValueError(
                    f"span {span} splits the character at {place}, which goes on with "
                    f"U+{ord(text[place]):04X}; move it"
                )
        if not text[span.start : span.end].strip(SPACES):
            raise ValueError(f"span {span} has nothing but spaces; give one with a word")
    ordered = sorted(found)
    for one, other in pairwise(ordered):
        if other.start < one.end:
            raise ValueError(f"spans {one} and {other} overlap; make one of them")
    return found


def splits_character(text: str, place: int) -> bool:
    """Tell whether what a reader takes for one character goes on at a place."""
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1 : place + 1]
    is_mark = unicodedata.category(after).startswith("M") or "\U0001f3fb" <= after <= "\U0001f3ff"
    is_tag = "\U000e0020" <= after <= "\U000e007f"
    num_letters = place - len(text[:place].rstrip(FLAG_LETTERS))
    is_flag = after in FLAG_LETTERS and num_letters % 2 == 1
    is_joined = is_flag or JOINED.fullmatch(before + after) or (before, after) == ("\r", "\n")
    return is_mark or is_tag or "\u200d" in (before, after) or bool(is_joined)

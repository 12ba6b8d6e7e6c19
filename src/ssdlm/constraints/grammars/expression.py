"""What a language is made of: characters, one after another, choices, repeats, anchors, rules.

    pattern, schema, notation -> [expression] -> machine

Characters are ranges of code points, ends included, in order and apart from each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

Ranges = tuple[tuple[int, int], ...]

NUM_CODES = 0x110000
SURROGATES = (0xD800, 0xDFFF)
"""Halves of characters, which no text in UTF-8 contains."""
NEWLINE = ord("\n")


@dataclass(frozen=True)
class Chars:
    """One character out of some."""

    ranges: Ranges


@dataclass(frozen=True)
class Chain:
    """Parts one after another; without any, the empty text."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Either:
    """One of several options; without any, nothing at all."""

    options: tuple[Expression, ...]


@dataclass(frozen=True)
class Repeat:
    """A part between `low` and `high` times, without an upper limit where that is None."""

    part: Expression
    low: int = 0
    high: int | None = None


class Anchor(Enum):
    """What is true of a place between characters; no character is read."""

    START = "\\A"
    END = "\\Z"
    LINE_START = "(?m)^"
    LINE_END = "(?m)$"
    LAST_LINE_END = "$"
    """The end, or before a newline that is the last character."""


@dataclass(frozen=True)
class Ref:
    """What a rule of a context-free grammar stands for."""

    name: str


Expression = Chars | Chain | Either | Repeat | Anchor | Ref

EMPTY = Chain(())


def text(string: str) -> Chain:
    """Return the expression of exactly this text."""
    return Chain(tuple(Chars(((ord(char), ord(char)),)) for char in string))


def any_of(string: str) -> Chars:
    """Return the expression of one of these characters."""
    return Chars(merged((ord(char), ord(char)) for char in string))


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges in order, those that touch each other as one."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """Return all other code points."""
    edges = [-1, *(edge for pair in ranges for edge in pair), NUM_CODES]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((low + 1, high - 1) for low, high in pairs if low + 1 < high)


def within(ranges: Ranges, others: Ranges) -> Ranges:
    """Return what two sets of code points have in common."""
    return merged(
        (max(low, start), min(high, end))
        for low, high in ranges
        for start, end in others
        if max(low, start) <= min(high, end)
    )


def walk(part: Expression) -> Iterator[Expression]:
    """Yield an expression and all within it."""
    yield part
    inner = getattr(part, "parts", ()) or getattr(part, "options", ())
    for one in (*inner, *([part.part] if isinstance(part, Repeat) else [])):
        yield from walk(one)

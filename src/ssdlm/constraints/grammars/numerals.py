"""Numbers between two limits, digit by digit.  [numerals] -> schema

A number has at most MOST_DIGITS digits, before and after its point together, so that every reader
of JSON takes it exactly, and 99.999999999999999 is not read as 100.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import NamedTuple

from ssdlm.constraints.grammars.expression import (
    EMPTY,
    Chain,
    Chars,
    Either,
    Expression,
    Repeat,
    any_of,
    text,
)

MOST_DIGITS = 15
DIGIT = any_of("0123456789")


class Limit(NamedTuple):
    """Where numbers begin or end; an open limit is not one of them. Of two, the higher begins."""

    value: Decimal
    is_open: bool


ZERO, ABOVE_ZERO = Limit(Decimal(0), False), Limit(Decimal(0), True)
HIGHEST = Limit(Decimal(10**MOST_DIGITS), True)


def negative(limit: Limit) -> Limit:
    """Return the limit on the other side of zero."""
    return Limit(limit.value.copy_negate(), limit.is_open)


def lower(one: Limit, other: Limit) -> Limit:
    """Return the one of two upper limits that leaves fewer numbers."""
    return min(one, other, key=lambda limit: (limit.value, not limit.is_open))


def integers(low: Limit, high: Limit) -> Expression | None:
    """Return the expression of the whole numbers between two limits, None if there are none."""
    low, high = max(low, negative(HIGHEST)), lower(high, HIGHEST)
    least, most = math.ceil(low.value), math.floor(high.value)
    first = least + (low.is_open and least == low.value)
    last = most - (high.is_open and most == high.value)
    options: list[Expression] = naturals(max(0, first), last)
    if first < 0:
        options += [Chain((text("-"), one)) for one in naturals(max(1, -last), -first)]
    return Either(tuple(options)) if options else None


def decimals(low: Limit, high: Limit) -> Expression | None:
    """Return the expression of numbers with or without a fraction, None if there are none."""
    low, high = max(low, negative(HIGHEST)), lower(high, HIGHEST)
    options = [integers(low, high)]
    options += with_fraction(max(low, ZERO), high)
    above = with_fraction(max(negative(high), ABOVE_ZERO), negative(low))  # there is no -0.0
    options += [Chain((text("-"), one)) for one in above]
    found = tuple(option for option in options if option is not None)
    return Either(found) if found else None


def with_fraction(low: Limit, high: Limit) -> list[Expression]:
    """Return expressions of numbers with a point between two limits, the first not negative."""
    if low.value > high.value:
        return []
    (first, low_digits), (last, high_digits) = split(low.value), split(high.value)
    found: list[Expression] = []
    for whole in sorted({first, last}):
        from_ = (low_digits, low.is_open) if whole == first else None
        to = (high_digits, high.is_open) if whole == last else None
        digits = fraction(from_, to, MOST_DIGITS - len(str(whole)), is_first=True)
        if digits is not None:
            found.append(Chain((text(f"{whole}."), digits)))
    for size in range(1, MOST_DIGITS):
        least, most = max(first + 1, 10 ** (size - 1) if size > 1 else 0), 10**size - 1
        any_fraction = Chain((text("."), Repeat(DIGIT, 1, MOST_DIGITS - size)))
        found += [Chain((one, any_fraction)) for one in naturals(least, min(last - 1, most))]
    return found


def split(value: Decimal) -> tuple[int, str]:
    """Return what stands before and after the point of a number, without zeros at the end."""
    whole, _, digits = f"{value:f}".partition(".")
    return int(whole), digits.rstrip("0")


def fraction(
    low: tuple[str, bool] | None, high: tuple[str, bool] | None, room: int, *, is_first: bool
) -> Expression | None:
    """Return the expression of at most `room` digits after a point, between those of two limits.

    A limit is its digits from here on, and whether it is open. None if there are no such digits.
    """
    low = None if low == ("", False) else low
    if low is None and high is None and room >= is_first:
        return Repeat(DIGIT, int(is_first), room)
    options: list[Expression] = []
    if not is_first and low is None and high != ("", True):
        options.append(EMPTY)
    begin, end = low[0][:1] or "0" if low else "", high[0][:1] or "0" if high else ""
    # Those that no limit begins with may be followed by any digits.
    inner = [digit for digit in "0123456789" if begin < digit < (end or ":")]
    for digit in [begin, *inner[:1], end] if begin != end else [begin]:
        after_low = (low[0][1:], low[1]) if low and digit == begin else None
        after_high = (high[0][1:], high[1]) if high and digit == end else None
        is_within = digit and begin <= digit <= (end or digit) and room > 0
        rest = fraction(after_low, after_high, room - 1, is_first=False) if is_within else None
        if rest is not None:
            first = any_of("".join(inner)) if digit in inner else text(digit)
            options.append(Chain((first, rest)))
    return Either(tuple(options)) if options else None


def naturals(low: int, high: int) -> list[Expression]:
    """Return expressions of the numbers from `low` to `high`, neither less than 0."""
    found: list[Expression] = []
    for size in range(len(str(low)), len(str(max(high, 0))) + 1):
        first, last = max(low, 10 ** (size - 1) if size > 1 else 0), min(high, 10**size - 1)
        if first <= last:
            found += same_length(str(first), str(last))
    return found


def same_length(low: str, high: str) -> list[Expression]:
    """Return expressions of the numbers between two of equally many digits."""
    if not low:
        return [text("")]
    if low == "0" * len(low) and high == "9" * len(high):
        return [Repeat(DIGIT, len(low), len(low))]
    if low[0] == high[0]:
        return [Chain((text(low[0]), one)) for one in same_length(low[1:], high[1:])]
    rest = len(low) - 1
    found: list[Expression] = [
        Chain((text(low[0]), one)) for one in same_length(low[1:], "9" * rest)
    ]
    if int(high[0]) - int(low[0]) > 1:
        middle = Chars(((ord(low[0]) + 1, ord(high[0]) - 1),))
        found.append(Chain((middle, Repeat(DIGIT, rest, rest))))
    return found + [Chain((text(high[0]), one)) for one in same_length("0" * rest, high[1:])]

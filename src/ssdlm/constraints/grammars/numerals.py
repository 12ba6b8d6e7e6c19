"""Numbers between two limits, digit by digit.  [numerals] -> schema

A number without a limit has at most MOST_DIGITS digits before its point, so that every reader of
JSON takes it exactly.
"""

from __future__ import annotations

from ssdlm.constraints.grammars.expression import (
    Chain,
    Chars,
    Either,
    Expression,
    Repeat,
    any_of,
    text,
)

MOST_DIGITS = 15
GREATEST = 10**MOST_DIGITS - 1
DIGIT = any_of("0123456789")
FRACTION = Chain((text("."), Repeat(DIGIT, 1, MOST_DIGITS)))


def integers(low: int | float, high: int | float) -> Expression | None:
    """Return the expression of the whole numbers from `low` to `high`, None if there are none."""
    first, last = int(max(low, -GREATEST)), int(min(high, GREATEST))
    options: list[Expression] = []
    if first < 0:
        options += [Chain((text("-"), one)) for one in naturals(max(1, -last), -first)]
    options += naturals(max(0, first), last)
    return Either(tuple(options)) if options else None


def decimals(low: int | float, high: int | float, *, is_below: bool) -> Expression | None:
    """Return the expression of numbers from `low` to `high`, which are whole; None without any.

    The whole numbers among them, and those with a fraction between two of them. With `is_below`,
    those above the greatest of them and below the next one too, if they are not negative: -6.0 is
    not below -6.
    """
    first, last = int(max(low, -GREATEST)), int(min(high, GREATEST))
    options = [integers(first, last)]
    # 3.5 is between 3 and 4, and -3.5 between -4 and -3.
    options += [Chain((one, FRACTION)) for one in naturals(max(0, first), last - (not is_below))]
    below = naturals(max(0, -last), -first - 1)
    options += [Chain((text("-"), one, FRACTION)) for one in below]
    found = tuple(option for option in options if option is not None)
    return Either(found) if found else None


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

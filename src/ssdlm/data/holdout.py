"""Which documents are kept from training.  prepare -> [holdout]"""

from __future__ import annotations

import hashlib
from fractions import Fraction


def is_held_out(document: int, holdout: float) -> bool:
    """Whether the document of this number (from 0) falls to the hold-out.

    Of every 1 / holdout documents in a row one does, which one a hash of the row's number says: a
    share that is exact at any length, and no rhythm that could meet one in the data.
    """
    share = Fraction(holdout).limit_denominator(1_000_000)
    if share == 0:
        return False
    row = document * share.numerator // share.denominator
    first = _ceil_div(row * share.denominator, share.numerator)
    end = _ceil_div((row + 1) * share.denominator, share.numerator)
    draw = hashlib.sha256(f"holdout {row}".encode()).digest()[:8]
    return document == first + int.from_bytes(draw, "little") % (end - first)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)

"""A job that is done in parts, each by a process of its own, and put together afterwards.

`--shard 0/3` is the first of three parts. Each part says which one it is and of what job, so that
a missing, doubled or foreign one is found by name.  [parts] -> prompt_files, prepare, merge
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssdlm.values import shorten

MOST = 1_000_000
"""Parts of a job."""


class TooManyPartsError(ValueError):
    """More parts than there are things to share out."""

    def __init__(self, message: str, most: int):
        super().__init__(message)
        self.most = most
        """How many parts there can be."""


@dataclass(frozen=True)
class Shard:
    """Which part of how many."""

    number: int
    """From 0."""
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return what `i/n` means, or raise a ValueError."""
        found = re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", text)
        number, count = map(int, found.groups()) if found else (0, 0)
        if not (number < count <= MOST):
            raise ValueError(
                f"shard={shorten(text)} is not a part; use i/n, i from 0 to n - 1: 0/3, 1/3 and 2/3"
            )
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def share(self, total: int, what: str) -> range:
        """Return the part's share of `total` things in a row; each part must get one."""
        if total < self.count:
            raise TooManyPartsError(
                f"shard={self} is one of {self.count} parts, and there are {total} {what}; use "
                f"at most {total} parts",
                total,
            )
        return range(total * self.number // self.count, total * (self.number + 1) // self.count)


@dataclass(frozen=True)
class Claim:
    """What a part says of itself."""

    path: Path
    shard: Shard
    job: str
    """Identifies the job: the same in all of its parts."""


def in_order(claims: Sequence[Claim]) -> list[Claim]:
    """Return the parts of one job in their order; a foreign, doubled or missing one is named."""
    jobs = Counter((claim.job, claim.shard.count) for claim in claims)
    usual = jobs.most_common(1)[0][0]
    own = next(claim for claim in claims if (claim.job, claim.shard.count) == usual)
    for claim in claims:
        if claim.job != own.job:
            raise ValueError(
                f"{claim.path} is part {claim.shard} of another job than {own.path}; leave it out"
            )
        if claim.shard.count != own.shard.count:
            raise ValueError(
                f"{claim.path} is part {claim.shard} and {own.path} is part {own.shard}; "
                "give the parts of one cut"
            )
    found: dict[int, Claim] = {}
    for claim in claims:
        if other := found.get(claim.shard.number):
            raise ValueError(
                f"{other.path} and {claim.path} are both part {claim.shard}; give each part once"
            )
        found[claim.shard.number] = claim
    missing = [str(Shard(i, own.shard.count)) for i in range(own.shard.count) if i not in found]
    if missing:
        names = ", ".join(missing[:5]) + (", ..." if missing[5:] else "")
        raise ValueError(f"missing: part {names}; write it with --shard {missing[0]} and add it")
    return [found[number] for number in sorted(found)]

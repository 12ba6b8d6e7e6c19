"""Parts of a file of texts, and the file that they are together.  [here] -> prompt_files, merge

A line of a part is the line of the whole file with one more field at its end, which says where it
stands: its run, part, number of parts, number of the text in the part, texts of the part.
"""

from __future__ import annotations

import filecmp
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ssdlm.storage.delivery import delivered_file, fetched
from ssdlm.storage.files import STANDARD, write_file
from ssdlm.storage.parts import Claim, Shard, in_order
from ssdlm.storage.remote import Place

MARK = re.compile(
    rb', "shard": \["([0-9a-f]{12})", (\d{1,7}), (\d{1,7}), (\d{1,15}), (\d{1,15})\]\}\n\Z'
)
LONGEST_MARK = 100


@dataclass(frozen=True)
class Mark:
    """Where a line stands."""

    run: str
    shard: Shard
    number: int
    """Of the text, in the part, from 0."""
    total: int
    """Texts of the part."""
    start: int
    """Where the mark begins in its line."""


def append_part(
    file: IO[str], rows: Iterable[Mapping[str, Any]], shard: Shard, number: int, total: int
) -> None:
    """Add texts of a part, a line each, to an open file; the first has this number, of `total`."""
    for place, row in enumerate(rows, number):
        mark = json.dumps([row["run"], shard.number, shard.count, place, total])
        # Bytes at the end, so that a field of that name in the file of prompts stays what it is.
        file.write(f'{json.dumps(row)[:-1]}, "shard": {mark}}}\n')


def mark_of(line: bytes) -> Mark | None:
    """Return what the end of a line says, None where it is not of a part."""
    found = MARK.search(line, max(0, len(line) - LONGEST_MARK))
    if found is None:
        return None
    number, count, place, total = map(int, found.groups()[1:])
    return Mark(found[1].decode(), Shard(number, count), place, total, found.start())


def merge_texts(paths: Sequence[Place], target: Place) -> bool:
    """Write the file that one process would have written; tell whether it was there before.

    `-` is standard output.
    """
    with fetched(paths) as here, delivered_file(target) as near:
        return merge_files(here, near)


def merge_files(paths: Sequence[Path], target: Path) -> bool:
    """Put parts that are on this machine together; tell whether the file was there before."""
    claims = in_order([read_claim(path) for path in paths])
    lines = (line for claim in claims for line in texts_of(claim))
    if target == STANDARD:
        sys.stdout.buffer.writelines(lines)
        return False
    was_there = target.exists()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if was_there and not filecmp.cmp(temporary, target, shallow=False):
            raise ValueError(
                f"{target} exists and is not what these parts are together; "
                "remove it or choose another name"
            )

    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, write)
    return was_there


def read_claim(path: Path) -> Claim:
    """Return what the first line of a part says of it."""
    with path.open("rb") as file:
        mark = mark_of(file.readline())
    if mark is None:
        raise ValueError(f"{path} is not a part; write one with `ssdlm generate --shard i/n`")
    return Claim(path, mark.shard, mark.run)


def texts_of(claim: Claim) -> Iterator[bytes]:
    """Yield the lines of a part as the whole file has them; a part that is not whole is refused."""
    number, total = 0, 1
    with claim.path.open("rb") as file:
        for line in file:
            mark = mark_of(line)
            place = mark and (mark.run, mark.shard, mark.number)
            if mark is None or place != (claim.job, claim.shard, number):
                raise ValueError(
                    f"{claim.path} line {number + 1} is cut, or not what stands there in part "
                    f"{claim.shard}; write the part again"
                )
            number, total = number + 1, mark.total
            yield line[: mark.start] + b"}\n"
    if number != total:
        raise ValueError(
            f"{claim.path} has {number} of {total} texts; run its command again to finish it"
        )

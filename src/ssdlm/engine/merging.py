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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from ssdlm.storage.delivery import delivered_file, fetched
from ssdlm.storage.files import STANDARD, write_file
from ssdlm.storage.lines import file_lines
from ssdlm.storage.parts import Claim, Shard, in_order
from ssdlm.storage.remote import Place, Remote

MARK = re.compile(
    rb', "shard": \["([0-9a-f]{12})", (\d{1,7}), (\d{1,7}), (\d{1,15}), (\d{1,15})\]\}\n\Z'
)
LONGEST_MARK = 100
LONGEST_TAIL = 1 << 20
"""Bytes of a file in which its last whole line ends."""


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


@dataclass(frozen=True)
class MergeReport:
    """What parts are together."""

    texts: int
    was_there: bool = False
    """The file was there before, the same."""


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


def num_prompts_done(parts: Sequence[Place], num_done: int, num_prompts: int) -> int:
    """Return how many of a job's prompts are done, which is cut into parts of which some are whole.

    Of a part under way we count texts, so where prompts get different numbers of them it is about
    so many; what is under way elsewhere is not seen.
    """
    if num_done == len(parts):
        return num_prompts
    if any(isinstance(part, Remote) for part in parts):
        return num_prompts * num_done // len(parts)
    done = 0.0
    for number, part in enumerate(parts):
        own = len(Shard(number, len(parts)).share(num_prompts, "prompts"))
        done += own * share_written(Path(str(part)))
    return min(int(done), num_prompts - 1)


def share_written(part: Path) -> float:
    """Return how much of a part is there, 1 being all, while it is written or afterwards."""
    for path in (part.with_name(part.name + ".part"), part):
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_TAIL))
            mark = mark_of(file.read().rpartition(b"\n")[0] + b"\n")
            return (mark.number + 1) / mark.total if mark else 0.0
    return 0.0


def merge_texts(paths: Sequence[Place], target: Place) -> MergeReport:
    """Write the file that one process would have written; `-` is standard output."""
    if isinstance(target, Path) and target.is_dir():
        raise ValueError(
            f"output={target} is a folder; give a file, such as {target / 'all.jsonl'}"
        )
    with fetched(paths) as here, delivered_file(target) as near:
        return merge_files(here, near)


def merge_files(paths: Sequence[Path], target: Path) -> MergeReport:
    """Put parts that are on this machine together."""
    claims = in_order([read_claim(path) for path in paths])
    num_texts = 0

    def write_lines(file: BinaryIO) -> None:
        nonlocal num_texts
        for claim in claims:
            for line in texts_of(claim):
                file.write(line)
                num_texts += 1

    if target == STANDARD:
        write_lines(sys.stdout.buffer)
        return MergeReport(num_texts)
    was_there = target.exists()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            write_lines(file)
            file.flush()
            os.fsync(file.fileno())
        if was_there and not filecmp.cmp(temporary, target, shallow=False):
            raise ValueError(
                f"{target} exists and is not what these parts are together; "
                "remove it or choose another name"
            )

    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, write)
    return MergeReport(num_texts, was_there)


def read_claim(path: Path) -> Claim:
    """Return what the first line of a part says of it."""
    mark = mark_of(next(file_lines(path), b""))
    if mark is None:
        raise ValueError(f"{path} is not a part; write one with `ssdlm generate --shard i/n`")
    return Claim(path, mark.shard, mark.run)


def texts_of(claim: Claim) -> Iterator[bytes]:
    """Yield the lines of a part as the whole file has them; a part that is not whole is refused."""
    number, total = 0, 1
    for line in file_lines(claim.path):
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

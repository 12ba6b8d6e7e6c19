"""Which documents repeat another: a first reading of the input, before it is tokenised.

    sources -> [repeats] -> prepare

Texts count as the same where they differ in case and white space alone. Only their digests are
kept, on disk, in `BUCKETS` files that are looked at one after another; what comes out is a byte
for each document, in a file as well. So memory is a few bytes for every `BUCKETS` documents.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ssdlm.data.formats import Tally
from ssdlm.data.sources import Source
from ssdlm.progress import Show
from ssdlm.storage.files import about

RULES = ("none", "holdout", "all")
"""What `deduplicate` may be: keep everything; keep copies of a held-out text out of training; keep
each text once."""
TRAIN, HOLDOUT, LEFT_OUT = 0, 1, 2
"""What becomes of a document; the first two count through `shards.SPLITS`."""
FILE = "splits.bin"
"""A byte for each document, in a folder that is being prepared."""
BUCKETS = 64
STRETCH = 1 << 16
"""Documents whose bytes are looked at together."""
RECORD = np.dtype([("text", "V16"), ("number", "<i8")])
"""A document in a bucket: the digest of its text, and its number."""

IsHeldOut = Callable[[int], bool]
"""Tells whether the document of a number, counted from 0, is in the hold-out."""


def plan(
    sources: Sequence[Source],
    out_dir: Path,
    rule: str,
    is_held_out: IsHeldOut,
    *,
    has_holdout: bool,
    show: Show,
) -> None:
    """Write what becomes of each document to `FILE` in a folder, in one move."""
    temporary = out_dir / f"{FILE}.tmp"
    with about(temporary), tempfile.TemporaryDirectory(prefix="repeats-", dir=out_dir) as folder:
        buckets = [Path(folder, f"{number:02d}") for number in range(BUCKETS)]
        count = write_digests(sources, buckets, show)
        temporary.touch()
        if count:
            splits = np.memmap(temporary, np.uint8, "w+", shape=(count,))
            mark = mark_all if rule == "all" else mark_holdout
            mark(splits, buckets, is_held_out, has_holdout)
            splits.flush()
    os.replace(temporary, out_dir / FILE)


def read_splits(out_dir: Path) -> np.ndarray:
    """Return what becomes of each document, mapped into memory."""
    path = out_dir / FILE
    splits = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    if splits.size and int(splits.max()) > LEFT_OUT:
        raise ValueError(f"{path} is damaged; delete {out_dir} and prepare again")
    return splits


def write_digests(sources: Sequence[Source], buckets: Sequence[Path], show: Show) -> int:
    """Write the digest of every document into its bucket; return how many documents there are."""
    number = 0
    done = 0
    with contextlib.ExitStack() as stack:
        files: list[BinaryIO] = [stack.enter_context(path.open("wb")) for path in buckets]
        for source in sources:
            tally = Tally()
            for digest in digests(source, tally):
                files[digest[0] % BUCKETS].write(digest + number.to_bytes(8, "little"))
                number += 1
                # One less, because a small file has been read before its documents are.
                show(done + tally.bytes_read() - 1, f"{number:,} documents looked at")
            done += source.num_bytes
        show(done, f"{number:,} documents looked at")
    return number


def digests(source: Source, tally: Tally) -> Iterator[bytes]:
    """Yield 16 bytes for each document: the digest of its words, without regard to case."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in source.pieces(tally):
        digest.update(" ".join([*piece.text.casefold().split(), ""]).encode())
        if piece.ends_document:
            yield digest.digest()
            digest = hashlib.blake2b(digest_size=16)


def read_bucket(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a bucket's documents, in order, and a number for each one's text."""
    records = np.fromfile(path, RECORD)
    order = np.ascontiguousarray(records["text"]).view(">u8").reshape(-1, 2)
    by_text = np.lexsort((order[:, 1], order[:, 0]))
    is_new = (order[by_text][1:] != order[by_text][:-1]).any(1)
    texts = np.empty(len(records), np.int64)
    texts[by_text] = np.concatenate(([0], np.cumsum(is_new)))[: len(records)]
    return records["number"], texts


def mark_holdout(
    splits: np.ndarray, buckets: Sequence[Path], is_held_out: IsHeldOut, has_holdout: bool
) -> None:
    """Hold documents out by their number, and leave copies of these out of training."""
    hold_out(splits, is_held_out, has_holdout)
    for path in buckets:
        numbers, texts = read_bucket(path)
        is_held = splits[numbers] == HOLDOUT
        is_copy = np.isin(texts, texts[is_held])
        splits[numbers[is_copy & ~is_held]] = LEFT_OUT
    if any(numbers.size for numbers in numbers_of(splits, TRAIN)):
        return
    # Training always gets a document: the first, whose copies are then held out nowhere.
    for path in buckets:
        numbers, texts = read_bucket(path)
        if len(numbers) and numbers[0] == 0:
            splits[numbers[texts == texts[0]]] = LEFT_OUT
    splits[0] = TRAIN


def mark_all(
    splits: np.ndarray, buckets: Sequence[Path], is_held_out: IsHeldOut, has_holdout: bool
) -> None:
    """Keep the first document of each text, and hold out of those by their number among them."""
    for path in buckets:
        numbers, texts = read_bucket(path)
        is_first = np.zeros(len(texts), bool)
        is_first[np.unique(texts, return_index=True)[1]] = True
        splits[numbers[~is_first]] = LEFT_OUT
    hold_out(splits, is_held_out, has_holdout)


def hold_out(splits: np.ndarray, is_held_out: IsHeldOut, has_holdout: bool) -> None:
    """Hold out of the documents that are there; neither side is left empty, if there are two."""
    count = held = last = 0
    for numbers in numbers_of(splits, TRAIN):
        for number in numbers.tolist():
            if is_held_out(count):
                splits[number] = HOLDOUT
                held += 1
            count, last = count + 1, number
    if held == 0 and has_holdout and count > 1:
        splits[last] = HOLDOUT
    elif held == count:
        splits[last] = TRAIN


def numbers_of(splits: np.ndarray, code: int) -> Iterator[np.ndarray]:
    """Yield the numbers of the documents of one code, a stretch at a time."""
    for start in range(0, len(splits), STRETCH):
        yield start + np.flatnonzero(splits[start : start + STRETCH] == code)


def num_left_out(splits: np.ndarray) -> int:
    """Return how many documents are left out."""
    return sum(len(numbers) for numbers in numbers_of(splits, LEFT_OUT))

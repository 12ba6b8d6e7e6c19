"""The token store on its way to disk, in parts, so that a kill costs one part at most.

A part is a run of whole documents: one shard for each split that any of them is in. It is written
under temporary names, renamed, and only then entered in the journal; what the journal does not
contain is written again, to the same bytes.  encoding -> [writer] -> shards
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ssdlm.config import ranged, require_ranges
from ssdlm.data.encoding import Encoded
from ssdlm.data.formats import Tally
from ssdlm.data.shards import (
    FORMAT,
    JOURNAL,
    SPLITS,
    ShardEntry,
    TallyEntry,
    refuse_other_format,
    token_dtype,
)
from ssdlm.storage.files import about, read_checked, sha256, write_json
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import quote, require

SHARD_TOKENS = 1 << 24
"""A part ends with the first document that reaches this."""


def is_held_out(document: int, holdout: float) -> bool:
    """Return whether the document of this number, counted from 0, is in the hold-out.

    Of every 1 / holdout documents in a row one is; a hash of the row's number says which. So the
    share is exact at any length, and has no period that could coincide with one in the data.
    """
    share = Fraction(holdout).limit_denominator(1_000_000)
    if share == 0:
        return False
    row = document * share.numerator // share.denominator
    first = -(-row * share.denominator // share.numerator)  # rounded up
    end = -(-(row + 1) * share.denominator // share.numerator)
    draw = hashlib.sha256(f"holdout {row}".encode()).digest()[:8]
    return document == first + int.from_bytes(draw, "little") % (end - first)


@dataclass(frozen=True)
class Counts:
    """How much a split contains."""

    documents: int = 0
    tokens: int = 0
    """With one end-of-text per document."""
    bytes: int = 0
    """UTF-8 bytes of text."""


@dataclass(frozen=True)
class Position:
    """Where the next part starts, and what was read before it."""

    part: int = ranged(0, least=0)
    source: int = ranged(0, least=0)
    """Sources before this one are done."""
    documents_of_source: int = ranged(0, least=0, most=10**15)
    documents: int = ranged(0, least=0, most=10**15)
    """Of all sources."""

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True)
class JournalFile:
    """`progress.json`, as a `Journal` is stored."""

    later_fields = True
    settings: dict[str, Any]
    position: Position
    shards: dict[str, tuple[ShardEntry, ...]]
    tallies: tuple[TallyEntry, ...]

    def __post_init__(self) -> None:
        names, done = quote(list(self.shards)), self.position.source
        require(set(self.shards) == set(SPLITS), "shards", names, "of train and holdout")
        inputs = self.settings.get("inputs")
        num_inputs = len(inputs) if isinstance(inputs, list) else 0
        require(done < max(num_inputs, 1), "source", done, f"there are {num_inputs}")
        require(len(self.tallies) == done, "tallies", len(self.tallies), f"{done} sources are done")


@dataclass
class Journal:
    """What a killed run leaves for the next: the parts on disk, and where the next one starts."""

    settings: dict[str, Any]
    position: Position = field(default_factory=Position)
    shards: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {s: [] for s in SPLITS})
    tallies: list[dict[str, Any]] = field(default_factory=list)
    """Of the sources that are done."""

    @classmethod
    def load(cls, out_dir: Path, settings: dict[str, Any]) -> Journal:
        """Return the journal of an interrupted run in the folder, else a new one."""
        path = out_dir / JOURNAL
        if not path.is_file():
            return cls(settings)
        refuse_other_format(path)
        found = read_checked(path, JournalFile, remedy=f"delete {out_dir} to start over")
        return cls(
            found.settings,
            found.position,
            {split: [asdict(shard) for shard in found.shards[split]] for split in SPLITS},
            [asdict(tally) for tally in found.tallies],
        )

    def save(self, out_dir: Path) -> None:
        """Write the journal."""
        write_json(out_dir / JOURNAL, asdict(self) | {"format": FORMAT})

    def counts(self, split: str) -> Counts:
        """Return what the shards of a split contain together."""
        return total(self.shards[split])

    def enter(self, part: Part, position: Position, tallies: list[Tally]) -> None:
        """Add a part that is on disk, and where the next one starts."""
        for split, entry in part.entries.items():
            self.shards[split].append(entry)
        self.position = position
        self.tallies = [tally.to_json() for tally in tallies[: position.source]]


def total(shards: list[dict[str, Any]]) -> Counts:
    """Return the sum over shards, as the index lists them."""
    return Counts(
        *(sum(shard[key] for shard in shards) for key in ("documents", "tokens", "bytes"))
    )


class Part:
    """A run of documents on its way to disk."""

    def __init__(self, out_dir: Path, number: int, dtype: np.dtype[Any], end_of_text: int):
        self.number = number
        self.entries: dict[str, dict[str, Any]] = {}
        """What the index will say of each shard; complete after `commit`."""
        self.out_dir = out_dir
        self.end = np.array([end_of_text], dtype=dtype)
        self.files: dict[str, BinaryIO] = {}
        self.counts = {split: Counts() for split in SPLITS}
        self.before_last = {split: Counts() for split in SPLITS}

    @property
    def num_tokens(self) -> int:
        """Tokens of all splits."""
        return sum(counts.tokens for counts in self.counts.values())

    def append(
        self, split: str, ids: np.ndarray, num_bytes: int, *, starts: bool, ends: bool
    ) -> None:
        """Add a piece of a document; `starts` and `ends` say which of its ends are in it."""
        if split not in self.files:
            self.files[split] = open(self.temporary(split), "w+b")  # noqa: SIM115
        old = self.counts[split]
        if starts:
            self.before_last[split] = old
        # No document may contain what separates documents.
        ids = ids[ids != self.end[0]]
        with about(self.temporary(split)):
            self.files[split].write(ids.tobytes())
            if ends:
                self.files[split].write(self.end.tobytes())
        self.counts[split] = Counts(
            old.documents + ends, old.tokens + len(ids) + ends, old.bytes + num_bytes
        )

    def move_last_document(self, source: str, target: str) -> None:
        """Move the document that was added last from one split to another, which has none yet."""
        before, after = self.before_last[source], self.counts[source]
        file = self.files[source]
        start = before.tokens * self.end.itemsize
        file.seek(start)
        with about(self.temporary(target)), open(self.temporary(target), "wb") as moved:
            while chunk := file.read(1 << 20):
                moved.write(chunk)
        file.truncate(start)
        file.seek(start)
        self.files[target] = open(self.temporary(target), "r+b")  # noqa: SIM115
        self.counts[target] = Counts(
            *(
                getattr(after, key) - getattr(before, key)
                for key in ("documents", "tokens", "bytes")
            )
        )
        self.counts[source] = before

    def commit(self) -> None:
        """Give the shards their names; one that ended up with nothing is dropped."""
        for split, file in self.files.items():
            temporary = self.temporary(split)
            with about(temporary):
                file.flush()
                os.fsync(file.fileno())
                file.close()
            if self.counts[split].tokens == 0:
                temporary.unlink()
                continue
            path = temporary.with_suffix("")
            entry = {"name": path.name, **asdict(self.counts[split])}
            self.entries[split] = entry | {"sha256": sha256(temporary)}
            os.replace(temporary, path)
        self.files = {}

    def close(self) -> None:
        """Remove what was not committed."""
        for split, file in self.files.items():
            file.close()
            self.temporary(split).unlink(missing_ok=True)

    def temporary(self, split: str) -> Path:
        """Return the name of a split's shard while it is written."""
        return self.out_dir / f"{split}-{self.number:05d}.bin.tmp"


class StoreWriter:
    """Tokenised pieces on their way into parts: decides splits, and where a part ends."""

    def __init__(
        self,
        out_dir: Path,
        journal: Journal,
        tokenizer: Tokenizer,
        tallies: list[Tally],
        splits: np.ndarray | None = None,
    ):
        self.out_dir = out_dir
        self.splits = splits
        """What becomes of each document (`repeats`); None where the hold-out goes by number."""
        self.journal = journal
        self.tokenizer = tokenizer
        self.tallies = tallies
        self.holdout: float = journal.settings["holdout"]
        self.starts_document = True
        self.position = journal.position
        self.num_committed = sum(journal.counts(split).tokens for split in SPLITS)
        self.part = self.new_part()

    def describe(self) -> str:
        """Return what has been written, in a few words."""
        num_tokens = self.num_committed + self.part.num_tokens
        return f"{self.position.documents:,} documents, {num_tokens:,} tokens"

    def append(self, encoded: Encoded) -> None:
        """Add one piece; a full part is closed first, so that the last one is never empty."""
        if self.starts_document:
            if encoded.source != self.position.source:
                self.position = replace(self.position, source=encoded.source, documents_of_source=0)
            if self.part.num_tokens >= SHARD_TOKENS:
                self.commit()
        at, starts, ends = self.position, self.starts_document, encoded.ends_document
        if split := self.split_of(at.documents):
            self.part.append(split, encoded.ids, encoded.num_bytes, starts=starts, ends=ends)
        self.position = replace(
            at,
            documents=at.documents + ends,
            documents_of_source=at.documents_of_source + ends,
        )
        self.starts_document = ends

    def split_of(self, document: int) -> str:
        """Return the split of the document of this number; "" where it is left out."""
        if self.splits is None:
            return "holdout" if is_held_out(document, self.holdout) else "train"
        if document >= len(self.splits):
            raise ValueError(
                f"the input has changed while it was read; delete {self.out_dir} and prepare again"
            )
        return (*SPLITS, "")[self.splits[document]]

    def commit(self) -> None:
        """Close a full part, enter it in the journal and begin the next."""
        self.part.commit()
        self.position = replace(self.position, part=self.position.part + 1)
        self.num_committed += self.part.num_tokens
        self.journal.enter(self.part, self.position, self.tallies)
        self.journal.save(self.out_dir)
        self.part = self.new_part()

    def finish(self) -> None:
        """Close the last part; an empty split gets the last document.

        Training always gets one, the hold-out where one was asked for and training keeps another.
        """
        if self.splits is None:
            self.fill_empty_split()
        self.part.commit()
        self.journal.enter(self.part, self.position, self.tallies)

    def fill_empty_split(self) -> None:
        """Give a split without a document the last one of the other."""
        num_train, num_holdout = (
            self.journal.counts(split).documents + self.part.counts[split].documents
            for split in SPLITS
        )
        if num_train == 0:
            self.part.move_last_document("holdout", "train")
        elif num_holdout == 0 and num_train > 1 and self.holdout > 0:
            self.part.move_last_document("train", "holdout")

    def close(self) -> None:
        """Remove what was not committed."""
        self.part.close()

    def new_part(self) -> Part:
        """Return an empty part that starts at the current position."""
        dtype = token_dtype(self.tokenizer.V)
        return Part(self.out_dir, self.position.part, dtype, self.tokenizer.end_of_text)


def remove_strays(out_dir: Path, journal: Journal) -> None:
    """Delete what an interrupted run wrote and never entered in its journal."""
    known = {shard["name"] for shards in journal.shards.values() for shard in shards}
    for split in SPLITS:
        for path in out_dir.glob(f"{split}-[0-9]*.bin*"):
            if path.name not in known:
                path.unlink()
    for path in out_dir.glob(".*.json.partial"):  # the index, the journal, the tokenizer's files
        path.unlink()
    for path in out_dir.glob("repeats-*"):
        shutil.rmtree(path)

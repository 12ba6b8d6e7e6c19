"""Writing a token store part by part, so that a kill costs one part at most.  prepare -> [parts]

A part is a run of whole documents: one shard for each split that any of them fell to. It is written
under temporary names, renamed, and only then entered in the journal; what the journal does not know
is written again, to the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ssdlm.data.formats import Tally
from ssdlm.data.shards import FORMAT, INDEX, JOURNAL, SPLITS
from ssdlm.storage.files import sha256, write_json


@dataclass(frozen=True)
class Counts:
    """How much a split holds."""

    documents: int = 0
    tokens: int = 0
    """With one end-of-text a document."""
    bytes: int = 0
    """UTF-8 bytes of text."""


@dataclass
class Position:
    """Where the next part starts, and what was read before it."""

    part: int = 0
    source: int = 0
    """Sources before this one are done."""
    documents_of_source: int = 0
    documents: int = 0
    """Of all sources."""


@dataclass
class Journal:
    """All that a killed run leaves for the next."""

    settings: dict[str, Any]
    position: Position = field(default_factory=Position)
    shards: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {s: [] for s in SPLITS})
    tallies: list[dict[str, Any]] = field(default_factory=list)
    """Of the sources that are done."""

    @classmethod
    def load(cls, out_dir: Path, settings: dict[str, Any]) -> Journal:
        """The journal of an interrupted run in the folder, else a new one."""
        path = out_dir / JOURNAL
        if not path.is_file():
            return cls(settings)
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            found["settings"], Position(**found["position"]), found["shards"], found["tallies"]
        )

    def save(self, out_dir: Path) -> None:
        write_json(out_dir / JOURNAL, asdict(self) | {"format": FORMAT})

    def counts(self, split: str) -> Counts:
        """What the shards of a split hold together."""
        return total(self.shards[split])

    def enter(self, part: Part, position: Position, tallies: list[Tally]) -> None:
        """Take note of a part that is on disk, and of where the next one starts."""
        for split, entry in part.entries.items():
            self.shards[split].append(entry)
        self.position = position
        self.tallies = [tally.to_json() for tally in tallies[: position.source]]


def total(shards: list[dict[str, Any]]) -> Counts:
    """The sum over shards, as the index lists them."""
    return Counts(
        *(sum(shard[key] for shard in shards) for key in ("documents", "tokens", "bytes"))
    )


class Part:
    """A run of documents on its way to disk."""

    def __init__(self, out_dir: Path, number: int, dtype: np.dtype[Any], end_of_text: int):
        self.number = number
        self.entries: dict[str, dict[str, Any]] = {}
        """What the index will say of each shard; complete after `commit`."""
        self._out_dir = out_dir
        self._end = np.array([end_of_text], dtype=dtype)
        self._files: dict[str, BinaryIO] = {}
        self._counts = {split: Counts() for split in SPLITS}
        self._before_last = {split: Counts() for split in SPLITS}

    @property
    def num_tokens(self) -> int:
        return sum(counts.tokens for counts in self._counts.values())

    def counts(self, split: str) -> Counts:
        return self._counts[split]

    def append(
        self, split: str, ids: np.ndarray, num_bytes: int, *, starts: bool, ends: bool
    ) -> None:
        """Add a piece of a document: `starts` and `ends` say which of its ends it holds."""
        if split not in self._files:
            self._files[split] = open(self._temporary(split), "w+b")  # noqa: SIM115
        old = self._counts[split]
        if starts:
            self._before_last[split] = old
        # No document may hold what separates documents.
        ids = ids[ids != self._end[0]]
        self._files[split].write(ids.tobytes())
        if ends:
            self._files[split].write(self._end.tobytes())
        self._counts[split] = Counts(
            old.documents + ends, old.tokens + len(ids) + ends, old.bytes + num_bytes
        )

    def move_last_document(self, source: str, target: str) -> None:
        """Move the document that was added last from one split to another, which has none yet."""
        before, after = self._before_last[source], self._counts[source]
        file = self._files[source]
        start = before.tokens * self._end.itemsize
        file.seek(start)
        with open(self._temporary(target), "wb") as moved:
            while chunk := file.read(1 << 20):
                moved.write(chunk)
        file.truncate(start)
        file.seek(start)
        self._files[target] = open(self._temporary(target), "r+b")  # noqa: SIM115
        self._counts[target] = Counts(
            *(
                getattr(after, key) - getattr(before, key)
                for key in ("documents", "tokens", "bytes")
            )
        )
        self._counts[source] = before

    def commit(self) -> None:
        """Give the shards their names; one that ended up with nothing is dropped."""
        for split, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary = self._temporary(split)
            if self._counts[split].tokens == 0:
                temporary.unlink()
                continue
            path = temporary.with_suffix("")
            entry = {"name": path.name, **asdict(self._counts[split])}
            self.entries[split] = entry | {"sha256": sha256(temporary)}
            os.replace(temporary, path)
        self._files = {}

    def close(self) -> None:
        """Let go of whatever was not committed."""
        for split, file in self._files.items():
            file.close()
            self._temporary(split).unlink(missing_ok=True)

    def _temporary(self, split: str) -> Path:
        return self._out_dir / f"{split}-{self.number:05d}.bin.tmp"


def remove_strays(out_dir: Path, journal: Journal) -> None:
    """Delete what an interrupted run left behind and never entered in its journal."""
    known = {shard["name"] for shards in journal.shards.values() for shard in shards}
    for split in SPLITS:
        for path in out_dir.glob(f"{split}-[0-9]*.bin*"):
            if path.name not in known:
                path.unlink()
    for name in (INDEX, JOURNAL):
        for path in out_dir.glob(f"{name}*.tmp"):
            path.unlink()


@contextlib.contextmanager
def locked(out_dir: Path) -> Iterator[None]:
    """Keep a second run out of the folder while this one writes; a kill frees it."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock, and goes without
        yield
        return
    descriptor = os.open(out_dir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another `ssdlm prepare` is writing to {out_dir}") from error
        yield
    finally:
        os.close(descriptor)

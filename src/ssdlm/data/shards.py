"""The token store: flat files of token ids, mapped into memory.  prepare -> [shards] -> windows

A store is a folder with `index.json` (counts, settings, digests), `tokenizer.json`, and per split a
list of shards `train-00000.bin`, ...: little-endian uint16 (uint32 when V > 65,536), every document
followed by one end-of-text token. A document never spans two shards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ssdlm.config import ranged, require_ranges, required
from ssdlm.storage.files import read_checked, read_json, sha256
from ssdlm.values import quote, require

FORMAT = 1
INDEX = "index.json"
JOURNAL = "progress.json"
PART = "part.json"
"""In place of an index where the folder is one of several parts of a store."""
SPLITS = ("train", "holdout")


def token_dtype(V: int) -> np.dtype[Any]:
    """Return the smallest unsigned type for ids 0 .. V - 1, little-endian on every machine."""
    return np.dtype("<u2" if V <= 65536 else "<u4")


def count() -> Any:
    """Return a field without a default, for a number of documents, tokens or bytes."""
    return ranged(MISSING, least=0, most=10**15)


@dataclass(frozen=True)
class ShardEntry:
    """What an index says of one file of a split."""

    name: str
    documents: int = count()
    tokens: int = count()
    """With one end-of-text per document."""
    bytes: int = count()
    """UTF-8 bytes of text."""
    sha256: str = required()

    def __post_init__(self) -> None:
        require_ranges(self)
        is_plain = re.fullmatch(r"[a-z]+-[0-9]{1,20}\.bin", self.name) is not None
        require(is_plain, "name", quote(self.name), "it should be the name of a file")


@dataclass(frozen=True)
class SplitEntry:
    """What an index says of a split."""

    documents: int = count()
    tokens: int = count()
    bytes: int = count()
    shards: tuple[ShardEntry, ...] = required()

    def __post_init__(self) -> None:
        for name in ("documents", "tokens", "bytes"):
            total, value = sum(getattr(shard, name) for shard in self.shards), getattr(self, name)
            require(total == value, name, value, f"its shards have {total} together")


@dataclass(frozen=True)
class TallyEntry:
    """What an index or a journal says of a source, as a `Tally` counts it."""

    documents: int = count()
    bad_lines: int = count()
    first_bad_line: int = count()
    """From 1; 0 when there is none."""
    first_reason: str = required()

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True)
class FileEntry(TallyEntry):
    """The same with the source's name, as an index has it."""

    name: str = required()


@dataclass(frozen=True)
class StoreIndex:
    """`index.json`; later versions may add fields to it."""

    later_fields = True
    digest: str
    """Identifies the whole store: both splits and the tokenizer."""
    V: int = ranged(MISSING, least=1, most=2**32)
    end_of_text: int = ranged(MISSING, least=0, most=2**32)
    settings: dict[str, Any] = required()
    splits: dict[str, SplitEntry] = required()
    files: tuple[FileEntry, ...] = required()
    repeats: int = ranged(0, least=0, most=10**15)
    """Documents left out as copies; stores made before have none."""

    def __post_init__(self) -> None:
        require_ranges(self)
        require(self.end_of_text < self.V, "end_of_text", self.end_of_text, f"V is {self.V}")
        for split in SPLITS:
            require(split in self.splits, "splits", quote(list(self.splits)), f"{split} is missing")


def read_index(store_dir: str | os.PathLike[str]) -> StoreIndex:
    """Return the index of a finished store, or raise an error that says what is wrong."""
    folder = Path(store_dir)
    path = folder / INDEX
    if not path.is_file():
        if (folder / JOURNAL).is_file():
            raise ValueError(
                f"{folder} is not finished; run the same `ssdlm prepare` command again"
            )
        if (folder / PART).is_file():
            raise ValueError(f"{folder} is a part of a store; put all together with `ssdlm merge`")
        raise ValueError(f"{folder} has no {INDEX}; make a token store with `ssdlm prepare`")
    refuse_other_format(path)
    return read_checked(path, StoreIndex, remedy=f"delete {folder} and prepare again")


def refuse_other_format(path: Path) -> None:
    """Raise where an index or a journal is of another version."""
    found = read_json(path).get("format")
    if found != FORMAT:
        said = f"has format {quote(found)}, this version reads {FORMAT}"
        raise ValueError(f"{path} {said}; prepare again in another folder")


@dataclass(frozen=True)
class Shard:
    """One file of a split: where it is, and where its tokens stand in the split."""

    path: Path
    start: int
    num_tokens: int
    sha256: str


class TokenStore:
    """One split of a prepared folder, read through memory maps that are opened when needed."""

    def __init__(self, store_dir: Path, index: StoreIndex, split: str):
        counts = index.splits[split]
        self.dir = store_dir
        self.split = split
        self.V = index.V
        self.end_of_text = index.end_of_text
        self.digest = index.digest
        """Identifies the whole store: both splits and the tokenizer."""
        self.num_tokens = counts.tokens
        """Tokens of the split, the end-of-text tokens included."""
        self.num_documents = counts.documents
        self.num_bytes = counts.bytes
        """UTF-8 bytes of the documents' text, separators not counted: for bits per byte."""
        self.dtype = token_dtype(self.V)
        self.shards = place_shards(store_dir, counts.shards, self.dtype)
        self.starts = np.array([shard.start for shard in self.shards], dtype=np.int64)
        self.maps: dict[int, np.ndarray] = {}

    @classmethod
    def open(cls, store_dir: str | os.PathLike[str], split: str = "train") -> TokenStore:
        """Open a split ("train" or "holdout") of a folder that `ssdlm prepare` wrote."""
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is unknown; use one of {', '.join(SPLITS)}")
        return cls(Path(store_dir), read_index(store_dir), split)

    def __len__(self) -> int:
        return self.num_tokens

    def read(self, start: int, length: int) -> np.ndarray:
        """Return a copy of tokens start .. start + length - 1 of the split, from all its shards."""
        if start < 0 or length < 0 or start + length > self.num_tokens:
            raise ValueError(
                f"tokens {start} to {start + length} are outside the {self.num_tokens} tokens of "
                f"the {self.split} split of {self.dir}"
            )
        tokens = np.empty(length, dtype=self.dtype)
        done = 0
        number = int(np.searchsorted(self.starts, start, side="right")) - 1
        while done < length:
            offset = start + done - self.shards[number].start
            part = self.tokens_of(number)[offset : offset + length - done]
            tokens[done : done + len(part)] = part
            done += len(part)
            number += 1
        return self.require_known(tokens)

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return the same for many starts, a row each; rows within one shard are read together."""
        tokens = np.empty((len(starts), length), dtype=self.dtype)
        numbers = np.searchsorted(self.starts, starts, side="right") - 1
        for number in np.unique(numbers):
            mine = np.flatnonzero(numbers == number)
            offsets = starts[mine] - self.shards[number].start
            is_whole = offsets + length <= self.shards[number].num_tokens
            inside = offsets[is_whole].reshape(-1, 1) + np.arange(length)
            tokens[mine[is_whole]] = self.tokens_of(int(number))[inside]
            for row in mine[~is_whole]:
                tokens[row] = self.read(int(starts[row]), length)
        return self.require_known(tokens)

    def documents(self) -> Iterator[np.ndarray]:
        """Yield every document's tokens in order, without its end-of-text."""
        for number in range(len(self.shards)):
            tokens = self.tokens_of(number)
            start = 0
            for end in np.flatnonzero(tokens == self.end_of_text):
                yield self.require_known(np.array(tokens[start:end]))
                start = int(end) + 1

    def require_known(self, tokens: np.ndarray) -> np.ndarray:
        """Return tokens that were read, or raise where one of them is not in the vocabulary."""
        if tokens.size and int(tokens.max()) >= self.V:
            raise ValueError(
                f"{self.dir} contains the token {int(tokens.max())} and has a vocabulary of "
                f"{self.V}; delete it and prepare again"
            )
        return tokens

    def verify(self) -> None:
        """Compare every shard with its digest; a ValueError names the first that differs."""
        for shard in self.shards:
            if sha256(shard.path) != shard.sha256:
                raise ValueError(f"{shard.path} is damaged; delete {self.dir} and prepare again")

    def tokens_of(self, number: int) -> np.ndarray:
        """Return a shard's tokens, mapped into memory when first asked for."""
        if number not in self.maps:
            self.maps[number] = np.memmap(self.shards[number].path, dtype=self.dtype, mode="r")
        return self.maps[number]


def place_shards(
    store_dir: Path, entries: Sequence[ShardEntry], dtype: np.dtype[Any]
) -> list[Shard]:
    """Return the shards of a split one after the other, their sizes checked against the index."""
    shards = []
    start = 0
    for entry in entries:
        path = store_dir / entry.name
        size = path.stat().st_size if path.is_file() else 0
        if size != entry.tokens * dtype.itemsize:
            raise ValueError(
                f"{path} is missing or cut short; delete {store_dir} and prepare again"
            )
        shards.append(Shard(path, start, entry.tokens, entry.sha256))
        start += entry.tokens
    return shards

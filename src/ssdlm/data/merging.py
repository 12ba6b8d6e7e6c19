"""Parts of a token store, put together.  parts -> [merging] -> shards

Documents of all parts, in order, go through the writer of stores, so that the store is, byte for
byte, what one process would have prepared.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from ssdlm.data import repeats
from ssdlm.data.encoding import Encoded
from ssdlm.data.formats import Tally
from ssdlm.data.parts import SIZE, SIZES, PartIndex, read_part
from ssdlm.data.prepare import PrepareReport, begin, refuse_other, report, write_index, writing
from ssdlm.data.shards import INDEX, FileEntry, SplitEntry, StoreIndex, TokenStore, read_index
from ssdlm.data.writer import StoreWriter, total
from ssdlm.progress import bar
from ssdlm.storage.delivery import fetched
from ssdlm.storage.files import sha256
from ssdlm.storage.parts import Claim, Shard, in_order
from ssdlm.storage.remote import Place, place_of
from ssdlm.tokenizer import load_tokenizer


def merge_stores(
    folders: Sequence[Place], out: str | os.PathLike[str], *, is_shown: bool = False
) -> PrepareReport:
    """Write the store that one process would have prepared, or finish one begun there."""
    with fetched(folders) as here:
        return merge_folders(here, place_of(out, "out"), is_shown)


def merge_folders(folders: Sequence[Path], place: Place, is_shown: bool) -> PrepareReport:
    """Put parts that are on this machine together."""
    claims = in_order([claim_of(folder, read_part(folder)) for folder in folders])
    parts = [MergedPart(claim.path, read_part(claim.path)) for claim in claims]
    for part in parts:
        part.verify()
    first = parts[0]
    settings = {name: value for name, value in first.index.settings.items() if name != "shard"}
    names = [entry.name for entry in first.index.files]
    with writing(place) as out_dir:
        was_finished = (out_dir / INDEX).is_file()
        if was_finished:
            refuse_other(read_index(out_dir).settings, settings, names, out_dir)
        else:
            tokenizer = load_tokenizer(first.folder)
            journal = begin(out_dir, settings, names, tokenizer)
            tallies = [tally_of(entry) for entry in first.index.files]
            splits = repeats.read_splits(first.folder) if first.index.splits_sha256 else None
            with (
                bar("merge", first.index.num_documents, is_shown=is_shown) as show,
                closing(StoreWriter(out_dir, journal, tokenizer, tallies, splits)) as writer,
            ):
                for encoded in documents_of(parts, journal.position.documents):
                    writer.append(encoded)
                    show(writer.position.documents, "documents")
                writer.finish()
            write_index(out_dir, journal, tokenizer, names, tallies, splits)
        return report(out_dir, place, was_finished)


def claim_of(folder: Path, index: PartIndex) -> Claim:
    """Return which part of what job a folder is; names of inputs may differ between machines."""
    settings = {name: value for name, value in index.settings.items() if name != "shard"}
    files = [asdict(entry) | {"name": ""} for entry in index.files]
    job = [settings, files, index.V, index.end_of_text, index.splits_sha256]
    digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
    return Claim(folder, Shard.parse(index.shard), digest)


def tally_of(entry: FileEntry) -> Tally:
    """Return what was read of a source, as its entry in an index says."""
    return Tally(entry.documents, entry.bad_lines, entry.first_bad_line, entry.first_reason)


@dataclass(frozen=True)
class MergedPart:
    """A part that is read back."""

    folder: Path
    index: PartIndex

    def open(self) -> TokenStore:
        """Return the part's documents, all of which are in the split of training."""
        shards = self.index.shards
        held = SplitEntry(0, 0, 0, ())
        counts = total([asdict(shard) for shard in shards])
        splits = {"train": SplitEntry(**asdict(counts), shards=shards), "holdout": held}
        index = StoreIndex(
            digest="",
            V=self.index.V,
            end_of_text=self.index.end_of_text,
            settings={},
            splits=splits,
            files=self.index.files,
        )
        return TokenStore(self.folder, index, "train")

    def sizes(self) -> np.ndarray:
        """Return the bytes of text of each document."""
        return np.memmap(self.folder / SIZES, SIZE, "r")

    def verify(self) -> None:
        """Raise where a file of the part is not what was written."""
        store = self.open()
        store.verify()
        shard = Shard.parse(self.index.shard)
        expected = len(shard.share(self.index.num_documents, "documents"))
        files = {SIZES: self.index.sizes_sha256, repeats.FILE: self.index.splits_sha256}
        for path, digest in ((self.folder / name, digest) for name, digest in files.items()):
            if digest and not (path.is_file() and sha256(path) == digest):
                raise ValueError(
                    f"{path} is missing or damaged; delete {self.folder} and prepare the part again"
                )
        if not store.num_documents == len(self.sizes()) == expected:
            raise ValueError(
                f"{self.folder} has {store.num_documents} documents and should have {expected}; "
                "delete it and prepare the part again"
            )


def documents_of(parts: Sequence[MergedPart], start: int) -> Iterator[Encoded]:
    """Yield the documents of all parts from a number on, as they came out of the tokenizer."""
    ends = list(accumulate(entry.documents for entry in parts[0].index.files))
    number = source = 0
    for part in parts:
        for ids, size in zip(part.open().documents(), part.sizes(), strict=True):
            while number >= ends[source]:
                source += 1
            if number >= start:
                yield Encoded(source, ids, int(size), True)
            number += 1

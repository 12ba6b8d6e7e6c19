"""A part of a token store, prepared by a process of its own.  prepare -> [parts] -> merging

    reads all inputs once -> tokenises its run of documents -> a folder, part.json

A part has the tokens of its documents in order, whatever becomes of them, the size of each text,
and what the first reading found: so the store is cut and split as if one process had read it all.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ssdlm.config import ranged, require_ranges, required
from ssdlm.data import repeats
from ssdlm.data.formats import Piece, Tally
from ssdlm.data.prepare import (
    Job,
    begin,
    refuse_other,
    why_no_document,
    write_parts,
    writing,
)
from ssdlm.data.shards import (
    FORMAT,
    INDEX,
    JOURNAL,
    PART,
    FileEntry,
    ShardEntry,
    read_index,
    refuse_other_format,
)
from ssdlm.data.sources import Source
from ssdlm.data.writer import Journal, Position
from ssdlm.progress import bar
from ssdlm.storage.files import about, read_checked, read_json, sha256, write_json
from ssdlm.storage.parts import Shard
from ssdlm.storage.remote import Place, place_of
from ssdlm.tokenizer import Tokenizer

SIZES = "sizes.bin"
"""Bytes of text of each of a part's documents, eight bytes each."""
SIZE = np.dtype("<u8")
SURVEY = "survey.json"
"""While a part is unfinished: what the first reading found in each input."""


@dataclass(frozen=True)
class PartIndex:
    """`part.json`: what a part is, and what the first reading of all inputs found."""

    later_fields = True
    shard: str
    V: int = ranged(MISSING, least=1, most=2**32)
    end_of_text: int = ranged(MISSING, least=0, most=2**32)
    settings: dict[str, Any] = required()
    files: tuple[FileEntry, ...] = required()
    """Of all inputs."""
    splits_sha256: str = required()
    """What becomes of each document of all inputs; empty where that goes by number."""
    sizes_sha256: str = required()
    shards: tuple[ShardEntry, ...] = required()

    def __post_init__(self) -> None:
        require_ranges(self)
        Shard.parse(self.shard)

    @property
    def num_documents(self) -> int:
        """Documents of all inputs."""
        return sum(entry.documents for entry in self.files)


@dataclass(frozen=True)
class PartReport:
    """What a part contains."""

    out: Place
    shard: Shard
    documents: range
    num_tokens: int
    was_finished: bool

    def __str__(self) -> str:
        said = " was already prepared from this input" if self.was_finished else ""
        return (
            f"{self.out}{said}: part {self.shard}, documents {self.documents.start:,} to "
            f"{self.documents.stop - 1:,}, {self.num_tokens:,} tokens; put the parts together with "
            "`ssdlm merge`"
        )


@dataclass(frozen=True)
class Counted:
    """A source that is read once, with the size of each document written down."""

    source: Source
    sizes: BinaryIO
    tallies: list[Tally]
    """Gets one more, of what was read of this source."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def num_bytes(self) -> int:
        return self.source.num_bytes

    def identity(self) -> dict[str, Any]:
        return self.source.identity()

    def pieces(self, tally: Tally) -> Iterator[Piece]:
        self.tallies.append(tally)
        size = 0
        for piece in self.source.pieces(tally):
            size += len(piece.text.encode("utf-8"))
            if piece.ends_document:
                self.sizes.write(size.to_bytes(SIZE.itemsize, "little"))
                size = 0
            yield piece


def prepare_part(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    shard: Shard,
    tokenizer: str | os.PathLike[str] | Tokenizer,
    out: str | os.PathLike[str],
    holdout: float = 0.01,
    deduplicate: str = "holdout",
    workers: int = 1,
    show_progress: bool = False,
) -> PartReport:
    """Tokenise one part of the inputs' documents into a folder, or finish one begun there."""
    job = Job.read(inputs, tokenizer, holdout, deduplicate, workers, show_progress)
    job.settings["shard"] = str(shard)
    place = place_of(out, "out")
    with writing(place) as out_dir:
        was_finished = (out_dir / PART).is_file()
        if was_finished or (out_dir / INDEX).is_file():
            settings = read_part(out_dir).settings if was_finished else read_index(out_dir).settings
            refuse_other(settings, job.settings, job.names, out_dir)
        else:
            journal = begin(out_dir, job.settings, job.names, job.tokenizer)
            if not (out_dir / JOURNAL).is_file():
                survey(job, shard, journal, out_dir)
            write_part(job, shard, journal, out_dir)
        (out_dir / SURVEY).unlink(missing_ok=True)
        index = read_part(out_dir)
    documents = shard.share(index.num_documents, "documents")
    num_tokens = sum(entry.tokens for entry in index.shards)
    return PartReport(place, shard, documents, num_tokens, was_finished)


def survey(job: Job, shard: Shard, journal: Journal, out_dir: Path) -> None:
    """Read all inputs once; write down what becomes of each document, and where the part starts.

    The journal, which is written last, says that this is done.
    """
    temporary = out_dir / f"{SIZES}.tmp"
    tallies: list[Tally] = []
    num_bytes = sum(source.num_bytes for source in job.sources)
    with (
        about(temporary),
        temporary.open("wb") as sizes,
        bar("count documents", num_bytes, is_shown=job.is_shown) as show,
    ):
        sources = [Counted(source, sizes, tallies) for source in job.sources]
        if job.settings["deduplicate"] == "none":
            for source in sources:
                deque(source.pieces(Tally()), maxlen=0)
                show(sum(tally.bytes_read() for tally in tallies), "read")
        else:
            job.plan(sources, out_dir, show)
    counts = [tally.documents for tally in tallies]
    if sum(counts) == 0:
        raise ValueError(why_no_document(job.names, tallies))
    own = shard.share(sum(counts), "documents")
    with about(out_dir / SIZES), (out_dir / SIZES).open("wb") as file:
        np.memmap(temporary, SIZE, "r")[own.start : own.stop].tofile(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.unlink()
    ends = list(accumulate(counts))
    number = next(n for n, end in enumerate(ends) if end > own.start)
    before = ends[number] - counts[number]
    journal.position = Position(0, number, own.start - before, own.start)
    journal.tallies = [tally.to_json() for tally in tallies[:number]]
    write_json(out_dir / SURVEY, {"files": [tally.to_json() for tally in tallies]})
    journal.save(out_dir)


def write_part(job: Job, shard: Shard, journal: Journal, out_dir: Path) -> None:
    """Tokenise the part's documents, all of them as if for training, and describe them."""
    tallies = read_json(out_dir / SURVEY)["files"]
    num_documents = sum(tally["documents"] for tally in tallies)
    own = shard.share(num_documents, "documents")
    write_parts(job, journal, out_dir, np.broadcast_to(np.uint8(0), num_documents), end=own.stop)
    splits = out_dir / repeats.FILE
    write_json(
        out_dir / PART,
        {
            "format": FORMAT,
            "shard": str(shard),
            "V": job.tokenizer.V,
            "end_of_text": job.tokenizer.end_of_text,
            "settings": job.settings,
            "files": [
                {"name": name, **tally} for name, tally in zip(job.names, tallies, strict=True)
            ],
            "splits_sha256": sha256(splits) if splits.is_file() else "",
            "sizes_sha256": sha256(out_dir / SIZES),
            "shards": journal.shards["train"],
        },
    )


def read_part(folder: Path) -> PartIndex:
    """Return what `part.json` of a folder says, or raise an error that names the folder."""
    path = folder / PART
    if not path.is_file():
        if (folder / JOURNAL).is_file():
            raise ValueError(f"{folder} is not finished; run the same command again")
        raise ValueError(f"{folder} is not a part; make one with `ssdlm prepare --shard i/n`")
    refuse_other_format(path)
    return read_checked(path, PartIndex, remedy=f"delete {folder} and prepare the part again")

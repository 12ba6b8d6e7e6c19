"""`ssdlm prepare`: documents become a token store on disk.  sources -> [prepare] -> shards

The order of documents is the order of the inputs, whatever the number of workers. Started again
after a kill, a run goes on from the last part that is on disk and ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ssdlm.data import repeats
from ssdlm.data.encoding import batches, encode, one_thread_each
from ssdlm.data.formats import Piece, Tally
from ssdlm.data.shards import FORMAT, INDEX, JOURNAL, PART, SPLITS, read_index, token_dtype
from ssdlm.data.sources import Source, find_sources
from ssdlm.data.writer import (
    Counts,
    Journal,
    Position,
    StoreWriter,
    is_held_out,
    remove_strays,
)
from ssdlm.progress import Show, bar
from ssdlm.storage.delivery import delivered_folder
from ssdlm.storage.files import locked, write_json
from ssdlm.storage.remote import Place, place_of
from ssdlm.tokenizer import Tokenizer, load_tokenizer
from ssdlm.values import choose, quote, require, shorten

MOST_WORKERS = 1024
MOST_DOCUMENTS = 10**15
WRITTEN = ("train-[0-9]*.bin*", "holdout-[0-9]*.bin*", "tokenizer*.json", ".*.json.partial")
WRITTEN += (f"{repeats.FILE}*", "repeats-*", "sizes.bin*", "survey.json")
"""What a run may leave that was stopped before it wrote a journal."""


@dataclass(frozen=True)
class PrepareReport:
    """What a store contains, and what of the input could not be used."""

    out: Place
    train: Counts
    holdout: Counts
    digest: str
    files: list[dict[str, Any]]
    """For each source its name, documents, bad lines, and the first bad line with its reason."""
    was_finished: bool
    """Nothing was left to do."""
    repeats: int = 0
    """Documents that were left out because another has their text."""

    def __str__(self) -> str:
        lines = [f"{self.out} was already prepared from this input"] if self.was_finished else []
        for split in SPLITS:
            counts: Counts = getattr(self, split)
            lines.append(
                f"{split}: {counts.documents:,} documents, {counts.tokens:,} tokens, "
                f"{counts.bytes:,} bytes of text"
            )
        if self.train.documents == 1 and self.holdout.documents == 0:
            lines.append("only one document: it is for training, and nothing is held out")
        if self.repeats:
            lines.append(f"left out: {self.repeats:,} documents whose text another one has")
        for file in self.files:
            if file["bad_lines"]:
                lines.append(
                    f"{file['name']}: {file['bad_lines']:,} bad lines left out, the first is line "
                    f"{file['first_bad_line']} ({file['first_reason']})"
                )
        return "\n".join(lines)


def prepare(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer,
    out: str | os.PathLike[str],
    holdout: float = 0.01,
    deduplicate: str = "holdout",
    workers: int = 1,
    show_progress: bool = False,
) -> PrepareReport:
    """Tokenise the inputs into a store at `out`, or finish one that was begun there.

    `deduplicate` is one of `repeats.RULES`.
    """
    job = Job.read(inputs, tokenizer, holdout, deduplicate, workers, show_progress)
    place = place_of(out, "out")
    with writing(place) as out_dir:
        was_finished = (out_dir / INDEX).is_file()
        if was_finished:
            refuse_other(read_index(out_dir).settings, job.settings, job.names, out_dir)
        else:
            journal = begin(out_dir, job.settings, job.names, job.tokenizer)
            splits = plan_splits(job, journal, out_dir)
            tallies = write_parts(job, journal, out_dir, splits)
            write_index(out_dir, journal, job.tokenizer, job.names, tallies, splits)
        (out_dir / repeats.FILE).unlink(missing_ok=True)
        return report(out_dir, place, was_finished)


@dataclass(frozen=True)
class Job:
    """What is to be prepared, and how."""

    sources: list[Source]
    tokenizer: Tokenizer
    settings: dict[str, Any]
    """What decides the store; a folder that was begun with others is not continued."""
    workers: int
    is_shown: bool

    @classmethod
    def read(
        cls,
        inputs: Sequence[str | os.PathLike[str]],
        tokenizer: str | os.PathLike[str] | Tokenizer,
        holdout: float,
        deduplicate: str,
        workers: int,
        is_shown: bool,
    ) -> Job:
        """Return what a command asks for; a ValueError names what cannot be."""
        choose("deduplicate", deduplicate, repeats.RULES)
        if not 0 <= holdout < 1:
            raise ValueError(f"holdout={holdout} is not a share of the documents; use 0 to below 1")
        require(1 <= workers <= MOST_WORKERS, "workers", workers, f"use 1 to {MOST_WORKERS}")
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = load_tokenizer(tokenizer)
        sources = find_sources(inputs)
        settings = {
            "holdout": float(holdout),
            "deduplicate": deduplicate,
            "tokenizer_sha256": tokenizer.digest,
            "inputs": [source.identity() for source in sources],
        }
        return cls(sources, tokenizer, settings, workers, is_shown)

    @property
    def names(self) -> list[str]:
        """The names of the sources, for errors and for the index."""
        return [source.name for source in self.sources]

    def plan(self, sources: Sequence[Source], out_dir: Path, show: Show) -> None:
        """Write what becomes of each document of the sources, from a reading of them all."""
        holdout = self.settings["holdout"]
        repeats.plan(
            sources,
            out_dir,
            self.settings["deduplicate"],
            partial(is_held_out, holdout=holdout),
            has_holdout=holdout > 0,
            show=show,
        )


@contextlib.contextmanager
def writing(place: Place) -> Iterator[Path]:
    """Give a folder that is kept from other processes; at the end nothing is under way in it."""
    with delivered_folder(place, ends=(INDEX, PART), mark=JOURNAL, own=WRITTEN) as out_dir:
        out_dir.mkdir(parents=True, exist_ok=True)
        with locked(out_dir, f"another `ssdlm prepare` is writing to {place}; wait for it"):
            was_begun = any(out_dir.iterdir())
            try:
                yield out_dir
            except ValueError:
                if not was_begun and not any(out_dir.glob("*-[0-9]*.bin")):
                    shutil.rmtree(out_dir)  # there is nothing to continue
                raise
            (out_dir / JOURNAL).unlink(missing_ok=True)


def begin(
    out_dir: Path, settings: dict[str, Any], names: Sequence[str], tokenizer: Tokenizer
) -> Journal:
    """Return the journal of a folder, which these settings have begun or nothing is in."""
    journal = Journal.load(out_dir, settings)
    refuse_other(journal.settings, settings, names, out_dir)
    refuse_other_folder(out_dir)
    remove_strays(out_dir, journal)
    tokenizer.save(out_dir)
    return journal


def write_index(
    out_dir: Path,
    journal: Journal,
    tokenizer: Tokenizer,
    names: Sequence[str],
    tallies: Sequence[Tally],
    splits: np.ndarray | None,
) -> None:
    """Write the index of a store whose parts are there, which finishes it."""
    left_out = 0 if splits is None else repeats.num_left_out(splits)
    described = describe_store(journal, tokenizer, names, tallies)
    write_json(out_dir / INDEX, described | {"repeats": left_out})


def report(out_dir: Path, place: Place, was_finished: bool) -> PrepareReport:
    """Return what the index of a store in a folder says, which is for a place."""
    index = read_index(out_dir)
    train, held = (
        Counts(entry.documents, entry.tokens, entry.bytes)
        for entry in (index.splits[split] for split in SPLITS)
    )
    files = [asdict(entry) for entry in index.files]
    return PrepareReport(place, train, held, index.digest, files, was_finished, index.repeats)


def plan_splits(job: Job, journal: Journal, out_dir: Path) -> np.ndarray | None:
    """Return what becomes of each document, from a first reading; None where all are kept.

    A journal on disk says that the reading is done: the file beside it is of the same command.
    """
    if job.settings["deduplicate"] == "none":
        return None
    if not ((out_dir / JOURNAL).is_file() and (out_dir / repeats.FILE).is_file()):
        num_bytes = sum(source.num_bytes for source in job.sources)
        with bar("look for copies", num_bytes, is_shown=job.is_shown) as show:
            job.plan(job.sources, out_dir, show)
        if (out_dir / repeats.FILE).stat().st_size:  # else there is no document, which is an error
            journal.save(out_dir)
    return repeats.read_splits(out_dir)


def write_parts(
    job: Job,
    journal: Journal,
    out_dir: Path,
    splits: np.ndarray | None,
    *,
    end: int = MOST_DOCUMENTS,
) -> list[Tally]:
    """Write every part that the journal lacks, up to the document of number `end`.

    Return what was read of each source.
    """
    tallies = [Tally(**tally) for tally in journal.tallies]
    sizes = [source.num_bytes for source in job.sources]
    with (
        bar("prepare", sum(sizes), is_shown=job.is_shown) as show,
        contextlib.closing(StoreWriter(out_dir, journal, job.tokenizer, tallies, splits)) as writer,
        one_thread_each(),
    ):
        pieces = read_pieces(job.sources, journal.position, tallies, end)
        for encoded in encode(batches(pieces), job.tokenizer, job.workers):
            writer.append(encoded)
            done = sum(sizes[: len(tallies) - 1]) + tallies[-1].bytes_read()
            show(done - 1, writer.describe())  # the end is reached below
        if writer.position.documents == 0:
            raise ValueError(why_no_document(job.names, tallies))
        writer.finish()
        show(sum(sizes), writer.describe())
    return tallies


def read_pieces(
    sources: list[Source], position: Position, tallies: list[Tally], end: int
) -> Iterator[tuple[int, Piece]]:
    """Yield the pieces from a position on with their source's number; add a tally per source."""
    left = end - position.documents
    for number in range(position.source, len(sources)):
        if left <= 0:
            return
        tally = Tally()
        tallies.append(tally)
        to_skip = position.documents_of_source if number == position.source else 0
        for piece in sources[number].pieces(tally):
            if to_skip == 0:
                yield number, piece
                left -= piece.ends_document
                if left == 0:
                    return
            elif piece.ends_document:
                to_skip -= 1


def describe_store(
    journal: Journal, tokenizer: Tokenizer, names: Sequence[str], tallies: Sequence[Tally]
) -> dict[str, Any]:
    """Return what `index.json` says."""
    content = {
        "format": FORMAT,
        "V": tokenizer.V,
        "end_of_text": tokenizer.end_of_text,
        "tokenizer_sha256": tokenizer.digest,
        "shards": {s: [shard["sha256"] for shard in journal.shards[s]] for s in SPLITS},
    }
    return {
        "format": FORMAT,
        "digest": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        "V": tokenizer.V,
        "end_of_text": tokenizer.end_of_text,
        "dtype": token_dtype(tokenizer.V).name,
        "settings": journal.settings,
        "splits": {s: {**asdict(journal.counts(s)), "shards": journal.shards[s]} for s in SPLITS},
        "files": [
            {"name": name, **tally.to_json()} for name, tally in zip(names, tallies, strict=True)
        ],
    }


def refuse_other_folder(out_dir: Path) -> None:
    """Raise where a folder without a journal has something in it: it is not a store's."""
    own = {path.name for pattern in WRITTEN for path in out_dir.glob(pattern)}
    other = sorted(path.name for path in out_dir.iterdir() if path.name not in own)
    if other and not (out_dir / JOURNAL).exists():
        raise ValueError(
            f"{out_dir} is not empty ({other[0]} is there) and not a token store; "
            "give --out a new folder"
        )


def refuse_other(
    old: dict[str, Any], new: dict[str, Any], names: Sequence[str], out_dir: Path
) -> None:
    """Raise a ValueError that says what differs where a folder was written by another command."""
    old = {"deduplicate": "none"} | old  # stores made before kept everything
    if old == new:
        return
    inputs = old.get("inputs")
    if old["deduplicate"] != new["deduplicate"]:
        what = f"deduplicate {shorten(str(old['deduplicate']))}, not {new['deduplicate']}"
    elif old.get("holdout") != new["holdout"]:
        what = f"holdout {quote(old.get('holdout'))}, not {new['holdout']}"
    elif old.get("shard") != new.get("shard"):
        what = f"shard {quote(old.get('shard', 'all'))}, not {new.get('shard', 'all')}"
    elif old.get("tokenizer_sha256") != new["tokenizer_sha256"]:
        what = "another tokenizer"
    elif not isinstance(inputs, list) or inputs == new["inputs"]:
        what = "settings of another version"
    elif len(inputs) != len(new["inputs"]):
        what = f"{len(inputs)} input files, not {len(new['inputs'])}"
    else:
        pairs = zip(names, inputs, new["inputs"], strict=True)
        what = f"other input in place of {next(name for name, a, b in pairs if a != b)}"
    raise ValueError(
        f"{out_dir} was prepared with {what}; use another --out, or delete {out_dir} to start over"
    )


def why_no_document(names: Sequence[str], tallies: Sequence[Tally]) -> str:
    """Return what is wrong with inputs in which no document was found."""
    shown = ", ".join(names[:3]) + (", ..." if names[3:] else "")
    for name, tally in zip(names, tallies, strict=True):
        if tally.bad_lines:
            bad = f"{tally.first_reason} in line {tally.first_bad_line} of {name}"
            return f"no document in {shown}: every line is bad, the first: {bad}"
    return f"no document in {shown}: there is no text in it"

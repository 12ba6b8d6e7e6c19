"""Texts with labels, read from .jsonl, .csv and .tsv files.  [labelled] -> guidance/training

A bad row is an error here and not skipped: a few thousand labels are easily corrected, and a
classifier trained on half of them looks like one trained on all.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssdlm.data.compression import ERRORS, decompressed, split_suffix
from ssdlm.data.formats import RowLines
from ssdlm.storage.jsonl import Line, parse_jsonl
from ssdlm.storage.lines import LinesError, lines_in
from ssdlm.tokenizer import is_utf8

KINDS = (".jsonl", ".csv", ".tsv")
REMEDIES = {",": "quote texts that contain commas", "\t": "remove tabs from texts"}
"""What to do about a text that contains the separator of columns."""
COLUMNS = ("text", "label")
MOST_CHARACTERS = 1 << 29
"""Of the texts of a file: all of its rows are in memory."""


@dataclass(frozen=True)
class Labelled:
    """A text and the name of its label."""

    text: str
    label: str


def read_labelled(*paths: str | Path) -> list[Labelled]:
    """Return the rows of files with columns `text` and `label`, which may be compressed.

    A row that is there several times is there once: a small file may unpack to very many.
    """
    return list(dict.fromkeys(row for path in paths for row in rows_of(Path(path))))


def rows_of(path: Path) -> Iterator[Labelled]:
    """Yield the rows of one file; what is too much for the memory is refused on the way."""
    kind, compression = split_suffix(path)
    if kind not in KINDS:
        raise ValueError(f"{path} is of no known kind; use {', '.join(KINDS)}")
    size = 0
    try:
        with open(path, "rb") as file:
            stream = decompressed(file, compression)
            if kind == ".jsonl":
                rows = parse_jsonl(lines_in(stream), source=f"{path}")
            else:
                rows = parse_table(stream, "\t" if kind == ".tsv" else ",", source=f"{path}")
            for line in rows:
                row = read_row(line.value, line.where)
                size += len(row.text)
                if size > MOST_CHARACTERS:
                    raise ValueError(
                        f"{path} has more than {MOST_CHARACTERS:,} characters of text; give fewer "
                        "rows"
                    )
                yield row
    except LinesError as error:
        raise ValueError(f"cannot use {path}: {error}") from None
    except ERRORS as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        raise ValueError(f"cannot read {path}: {error}") from error
    if not size:
        raise ValueError(f"{path} has no rows; give texts with labels")


def parse_table(stream: io.BufferedReader, delimiter: str, *, source: str) -> Iterator[Line]:
    """Yield the columns of each row under a header, and where they are."""
    # A tab-separated tweet may contain a single quotation mark; only commas need quoting.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    lines = RowLines(stream)
    reader = csv.DictReader(lines, delimiter=delimiter, quoting=quoting)
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            there = ", ".join(reader.fieldnames or ()) or "nothing"
            raise ValueError(f"{source} line 1 names no column {missing[0]!r}, only {there[:80]}")
        for row in reader:
            lines.size = 0
            where = f"{source} line {reader.line_num}"
            refuse_other_lengths(row, where, REMEDIES[delimiter])
            yield Line(where, row)
    except csv.Error as error:
        raise ValueError(f"{source} line {reader.line_num} is not a row ({error})") from None


def refuse_other_lengths(row: Mapping[str | None, Any], where: str, remedy: str) -> None:
    """Raise a ValueError where a row is longer or shorter than the header."""
    # DictReader puts the columns that have no name under None, and None where there is no column.
    more, named = row.get(None, ()), [value for name, value in row.items() if name is not None]
    columns = sum(value is not None for value in named) + len(more)
    if columns != len(named):
        found = f"{where} has {columns} columns where the header has {len(named)}"
        raise ValueError(f"{found}; {remedy if more else 'give every row all columns'}")


def read_row(row: Mapping[str, Any], where: str) -> Labelled:
    """Return a row's text and label; a label may be a number."""
    text, label = (row.get(name) for name in COLUMNS)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where} has no text; give every row a text")
    if label is None or not str(label).strip():
        raise ValueError(f"{where} has no label; give every row a label")
    if isinstance(label, bool) or not isinstance(label, str | int):
        shown = json.dumps(label)[:80]
        raise ValueError(f"{where} has the label {shown}; write a string or an integer")
    if not is_utf8(f"{text}{label}"):
        raise ValueError(f"{where} is not UTF-8; save the file as UTF-8")
    return Labelled(text, str(label).strip())


def without_repeats(rows: Sequence[Labelled], besides: Sequence[Labelled] = ()) -> list[Labelled]:
    """Return each text once, and none that is also in `besides` or that has two labels."""
    labels: dict[str, set[str]] = {}
    for row in rows:
        labels.setdefault(row.text, set()).add(row.label)
    kept = {row.text: row for row in rows if len(labels[row.text]) == 1}
    held = {row.text for row in besides}
    return [row for text, row in kept.items() if text not in held]


def once(rows: Sequence[Labelled], name: str, *, labels: int) -> list[Labelled]:
    """Return each text once; raise where too few labels are left without those that have two."""
    kept = without_repeats(rows)
    left, lost = len({row.label for row in kept}), len({row.text for row in rows}) - len(kept)
    if lost and left < labels:
        raise ValueError(
            f"{name} has {left} label{'' if left == 1 else 's'} without the texts that occur "
            f"with different labels ({lost:,}), which are left out; give each text one label"
        )
    return kept

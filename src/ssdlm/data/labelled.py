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
from ssdlm.storage.jsonl import Line, parse_jsonl
from ssdlm.tokenizer import is_utf8

KINDS = (".jsonl", ".csv", ".tsv")
REMEDIES = {",": "quote texts that contain commas", "\t": "remove tabs from texts"}
"""What to do about a text that contains the separator of columns."""
COLUMNS = ("text", "label")
MOST_BYTES = 1 << 29
"""Of a file, unpacked: all of its rows are in memory."""


@dataclass(frozen=True)
class Labelled:
    """A text and the name of its label."""

    text: str
    label: str


def read_labelled(path: Path) -> list[Labelled]:
    """Return the rows of a file with columns `text` and `label`; it may be compressed."""
    kind, compression = split_suffix(path)
    if kind not in KINDS:
        raise ValueError(f"{path} is of no known kind; use {', '.join(KINDS)}")
    try:
        with open(path, "rb") as file:
            is_long = path.stat().st_size > MOST_BYTES
            content = b"" if is_long else decompressed(file, compression).read(MOST_BYTES + 1)
    except ERRORS as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        raise ValueError(f"cannot read {path}: {error}") from error
    if is_long or len(content) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES:,} bytes; give fewer rows")
    if kind == ".jsonl":
        rows = parse_jsonl(content.split(b"\n"), source=f"{path}")
    else:
        rows = parse_table(content, "\t" if kind == ".tsv" else ",", source=f"{path}")
    found = [read_row(line.value, line.where) for line in rows]
    if not found:
        raise ValueError(f"{path} has no rows; give texts with labels")
    return found


def parse_table(content: bytes, delimiter: str, *, source: str) -> Iterator[Line]:
    """Yield the columns of each row under a header, and where they are."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    # A tab-separated tweet may contain a single quotation mark; only commas need quoting.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            there = ", ".join(reader.fieldnames or ()) or "nothing"
            raise ValueError(f"{source} line 1 names no column {missing[0]!r}, only {there[:80]}")
        for row in reader:
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

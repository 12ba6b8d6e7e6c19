"""Texts with labels out of .jsonl, .csv and .tsv files.  [labelled] -> guidetraining

A row that is wrong is an error here and not skipped: a few thousand labels are easily put right,
and a classifier trained on half of them looks like one trained on all.
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
from ssdlm.tokenizer import is_utf8

KINDS = (".jsonl", ".csv", ".tsv")
REMEDIES = {",": "quote texts that hold commas", "\t": "take tabs out of texts"}
"""What to do about a text that holds what parts columns."""
COLUMNS = ("text", "label")


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
            text = decompressed(file, compression).read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except ERRORS as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        raise ValueError(f"cannot read {path}: {error}") from error
    rows = (
        json_rows(text) if kind == ".jsonl" else table_rows(text, "\t" if kind == ".tsv" else ",")
    )
    try:
        found = [labelled(number, row) for number, row in rows]
    except RowError as error:
        raise ValueError(f"{path}, {error}") from None
    if not found:
        raise ValueError(f"{path} has no rows; give texts with labels")
    return found


class RowError(Exception):
    """A row that is no text with a label."""


def json_rows(text: str) -> Iterator[tuple[int, object]]:
    """Yield the line number and object of each line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise RowError(f"line {number} is not JSON: {error.msg}") from None
            except RecursionError:
                raise RowError(f"line {number} is not JSON: it is too deep") from None


def table_rows(text: str, delimiter: str) -> Iterator[tuple[int, object]]:
    """Yield the line number and columns of each row under a header."""
    # A tab-separated tweet may hold one quotation mark; only commas need quoting.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            there = ", ".join(reader.fieldnames or ()) or "nothing"
            raise RowError(f"line 1 names no column {missing[0]!r}, only {there[:80]}")
        for row in reader:
            refuse_columns(row, f"line {reader.line_num}", REMEDIES[delimiter])
            yield reader.line_num, row
    except csv.Error as error:
        raise RowError(f"line {reader.line_num} is not a row ({error})") from None


def refuse_columns(row: Mapping[str | None, Any], place: str, remedy: str) -> None:
    """Raise on a row, as `csv` reads it, that is longer or shorter than the header."""
    more, named = row.get(None, ()), [value for name, value in row.items() if name is not None]
    columns = sum(value is not None for value in named) + len(more)
    if columns != len(named):
        told = f"{place} has {columns} columns where the header has {len(named)}"
        raise RowError(f"{told}: {remedy if more else 'give every row all columns'}")


def labelled(number: int, row: object) -> Labelled:
    """Return a row's text and label; a label may be a number."""
    values = row if isinstance(row, Mapping) else {}
    text, label = (values.get(name) for name in COLUMNS)
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"line {number} has no text")
    if label is None or not str(label).strip():
        raise RowError(f"line {number} has no label")
    if isinstance(label, bool) or not isinstance(label, str | int):
        told = json.dumps(label)[:80]
        raise RowError(f"line {number} has the label {told}; write a string or an integer")
    if not is_utf8(f"{text}{label}"):
        raise RowError(f"line {number} is not UTF-8; save the file as UTF-8")
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
            f"{name} has {left} label{'' if left == 1 else 's'} without the texts that stand there "
            f"with different labels ({lost:,}), which are left out; give each text one label"
        )
    return kept

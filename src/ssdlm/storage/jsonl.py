"""JSON lines: one object per line, read with clear errors and written whole.  lines -> [jsonl]"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from ssdlm.storage.files import parse_object, write_file
from ssdlm.storage.lines import file_lines

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some editors put before UTF-8; it is no part of the first line."""


class Line(NamedTuple):
    """One object, and where it is, for errors about its content."""

    where: str
    """The source and the line's number from 1, blank lines included."""
    value: dict[str, Any]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file; blank lines are skipped."""
    return [line.value for line in parse_jsonl(file_lines(path), source=str(path))]


def parse_jsonl(lines: Iterable[bytes], *, source: str, is_strict: bool = False) -> Iterator[Line]:
    """Yield the objects of raw lines, which may be an open file; `source` names them in errors."""
    remedy = "correct or remove it"
    for number, raw in enumerate(lines, start=1):
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if raw.strip():
            where = f"{source} line {number}"
            yield Line(where, parse_object(raw, where=where, remedy=remedy, is_strict=is_strict))


def write_jsonl(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Write one object per line: the whole file or nothing."""

    def write_lines(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            append_jsonl(file, values)

    write_file(path, write_lines)


def append_jsonl(file: IO[str], values: Iterable[Mapping[str, Any]]) -> None:
    """Add one line per object to an open file."""
    file.writelines(as_lines(values))


def as_lines(values: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the line of each object."""
    return (json.dumps(value) + "\n" for value in values)

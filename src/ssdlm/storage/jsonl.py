"""JSON lines: one object per line, read with clear errors and written whole.  -> all readers"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ssdlm.storage.files import write

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """One object and where it stands."""

    number: int
    """Counted from 1, blank lines included."""
    value: dict[str, Any]


def read_jsonl(path: Path) -> list[Line]:
    """Return the objects of a file; blank lines are skipped."""
    return list(parse_jsonl(path.read_bytes().splitlines(), source=str(path)))


def parse_jsonl(lines: Iterable[bytes], *, source: str) -> Iterator[Line]:
    """Yield the objects of raw lines; `source` names them in errors."""
    for number, raw in enumerate(lines, start=1):
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if raw.strip():
            yield Line(number, parse_object(raw, where=f"{source} line {number}"))


def parse_object(raw: bytes, *, where: str) -> dict[str, Any]:
    """Return one line's object, or raise a ValueError that says where and what is wrong."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{where} is not UTF-8; save the file as UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deep")
        raise ValueError(f"{where} is not JSON ({reason}); correct or remove it") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object; correct or remove it")
    return value


def write_jsonl(path: Path, values: Iterable[dict[str, Any]]) -> None:
    """Write one object per line: the whole file or nothing."""

    def put(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            append_jsonl(file, values)

    write(path, put)


def append_jsonl(file: IO[str], values: Iterable[dict[str, Any]]) -> None:
    """Add one line per object to an open file."""
    file.writelines(json.dumps(value) + "\n" for value in values)

"""Lines of files, none of which fills the memory.  files, remote -> [lines] -> jsonl, formats"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

from ssdlm.storage import files
from ssdlm.storage.remote import Place, Remote, open_place

MOST_IN_LINE = 1 << 26
"""Bytes of a line of JSON, characters of a row of a table: both are in memory as a whole."""
MOST_IN_PROMPT = 1 << 24
"""Bytes of a prompt, and of a line with one."""
PACKED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"BZh91AY", b"PK\x03\x04")
"""How files of gzip, xz, Zstandard, bzip2 and zip begin."""
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
"""How a text begins that is not UTF-8, where it says so."""


class LinesError(ValueError):
    """A file that as a whole is not lines of UTF-8, or has one too long; the reader names it."""


def lines_in(stream: Any, most: int = MOST_IN_LINE) -> Iterator[bytes]:
    """Yield the lines of an open file; one of more than `most` bytes is refused before it is read.

    So is a file whose first line is not one of UTF-8.
    """
    for number, line in enumerate(iter(lambda: stream.readline(most + 1), b""), start=1):
        if number == 1:
            refuse_other_text(line)
        if len(line) > most:
            raise too_long(number, most)
        yield line


def too_long(number: int, most: int = MOST_IN_LINE) -> LinesError:
    """Return the error about a line that would fill the memory."""
    return LinesError(f"line {number} is longer than {most:,} bytes; cut it")


def refuse_other_text(head: bytes) -> None:
    """Raise where a file that begins so is compressed, or in UTF-16 or UTF-32, marked or not."""
    if head.startswith(PACKED):
        raise LinesError("it is compressed; unpack it first")
    if head.startswith(WIDE) or b"\0" in head:
        raise LinesError("it is not UTF-8 but UTF-16, UTF-32 or no text; save it as UTF-8")


def read_text(path: Path) -> str:
    """Return the text of a file, every character as it is; `-` is standard input."""
    name = "standard input" if path == files.STANDARD else str(path)
    try:
        raw = files.read_whole(path, most=MOST_IN_PROMPT)
        refuse_other_text(raw)
        return raw.decode()
    except FileNotFoundError:
        raise ValueError(f"there is no file {name}; give one, or - for standard input") from None
    except IsADirectoryError:
        raise ValueError(f"{name} is a folder and not a text; give a file") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8 (byte {error.start}); save or type it as UTF-8"
        ) from None
    except LinesError as error:
        raise ValueError(f"{name}: {error}") from None


def file_lines(place: Place, most: int = MOST_IN_LINE) -> Iterator[bytes]:
    """Yield the lines of a file, or of a pipe that ends soon enough; `-` is standard input."""
    name, size = str(place), 0
    opened = open_place(place) if place != files.STANDARD else None
    if opened is None:
        name, opened = "standard input", nullcontext(sys.stdin.buffer if sys.stdin else BytesIO())
    is_file = isinstance(place, Remote) or place.is_file()
    with opened as stream:
        try:
            for line in lines_in(stream, most):
                size += len(line)
                if size > files.MOST_FROM_PIPES and not is_file:
                    raise files.endless(name)
                yield line
        except LinesError as error:
            raise ValueError(f"{name}: {error}") from None

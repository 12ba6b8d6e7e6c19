"""Readers of one file's documents: .txt, .jsonl, .csv, .parquet.  [formats] -> sources

A line or row without a document (broken JSON, no text, not UTF-8) is counted and left out. A file
that as a whole is not what its name says raises an error.
"""

from __future__ import annotations

import codecs
import csv
import io
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ssdlm.extras import lacking
from ssdlm.storage.files import JsonError, parse_object
from ssdlm.storage.jsonl import BYTE_ORDER_MARK
from ssdlm.storage.lines import MOST_IN_LINE, lines_in, refuse_other_text, too_long
from ssdlm.values import shorten

PIECE = 1 << 18
"""Characters of a document that are in memory and tokenised at once."""
COLUMN = "text"


class LayoutError(Exception):
    """A readable file without a column of texts."""


def no_column(names: Iterable[str]) -> LayoutError:
    """Return the error about a table with these columns alone."""
    there = shorten(", ".join(names)) or "nothing"
    return LayoutError(f"it has no column {COLUMN!r}, only {there}")


@dataclass(frozen=True)
class Piece:
    """A document, or one part of a long one."""

    text: str
    ends_document: bool


@dataclass
class Tally:
    """What has been read from one source so far."""

    documents: int = 0
    bad_lines: int = 0
    first_bad_line: int = 0
    """Counted from 1; 0 when there is none."""
    first_reason: str = ""
    file: io.BufferedReader | None = field(default=None, repr=False)
    """The open file, whose position measures the progress."""
    last_position: int = field(default=0, repr=False)

    def count_bad(self, line: int, reason: str) -> None:
        """Count a line without a document."""
        self.bad_lines += 1
        if self.bad_lines == 1:
            self.first_bad_line = line
            self.first_reason = reason

    def to_json(self) -> dict[str, Any]:
        """Return the counts, as index and journal keep them."""
        names = ("documents", "bad_lines", "first_bad_line", "first_reason")
        return {name: getattr(self, name) for name in names}

    def bytes_read(self) -> int:
        """Return how many bytes of the file have been read, also after it was closed."""
        if self.file is not None and not self.file.closed:
            self.last_position = self.file.tell()
        return self.last_position


def read_txt(stream: io.BufferedReader, tally: Tally) -> Iterator[Piece]:
    """Yield the documents of a text, which blank lines separate."""
    for is_blank, lines in groupby(read_lines(stream, tally), key=lambda line: line is None):
        if not is_blank:
            document = newlines_first(line for line in lines if line is not None)
            yield from cut_document(document, tally)


def read_jsonl(stream: io.BufferedReader, tally: Tally) -> Iterator[Piece]:
    """Yield the `text` of the JSON object on each line."""
    for number, raw in enumerate(lines_in(stream), start=1):
        line = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
        if not line.strip():
            continue
        try:
            row = parse_object(line, where=f"line {number}", remedy="correct it")
        except JsonError as error:
            tally.count_bad(number, error.problem)
        else:
            yield from read_document(row.get(COLUMN), number, tally)


class RowLines:
    """The lines of a table, refused where those of one row together are too long."""

    def __init__(self, stream: io.BufferedReader):
        refuse_other_text(stream.peek(1))
        # Bytes that are not UTF-8 become surrogates, so that a reader can tell which row has them.
        self.lines = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        self.number = 0
        self.size = 0
        """Characters of the row that is being read; to be set to 0 after each."""

    def __iter__(self) -> Iterator[str]:
        with self.lines:
            while line := self.lines.readline(MOST_IN_LINE + 1):
                self.number += 1
                self.size += len(line)
                if self.size > MOST_IN_LINE:
                    raise too_long(self.number)
                yield line


def read_csv(stream: io.BufferedReader, tally: Tally) -> Iterator[Piece]:
    """Yield the column `text` of the rows under a header."""
    csv.field_size_limit(MOST_IN_LINE)  # the default of 128 KiB is less than many a document
    lines = RowLines(stream)
    reader = csv.reader(lines)
    header = next(reader, [])
    if COLUMN not in header:
        raise no_column(header)
    column = header.index(COLUMN)
    for row in parse_rows(reader, tally):
        lines.size = 0
        text = row[column] if column < len(row) else None
        yield from read_document(text, reader.line_num, tally)


def parse_rows(reader: Any, tally: Tally) -> Iterator[list[str]]:
    """Yield the rows that can be parsed, blank ones left out."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            tally.count_bad(reader.line_num, f"not CSV ({error})")
        else:
            if row:
                yield row


def read_parquet(stream: io.BufferedReader, tally: Tally) -> Iterator[Piece]:
    """Yield the column `text` of a table."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise lacking("pyarrow", "a .parquet file") from error
    try:
        with make_seekable(stream) as file:
            table = parquet.ParquetFile(file)
            if COLUMN not in table.schema_arrow.names:
                raise no_column(table.schema_arrow.names)
            batches = table.iter_batches(batch_size=64, columns=[COLUMN])
            # Bytes, because one bad string would otherwise spoil its whole batch.
            values = (v for b in batches for v in b.column(0).cast(pa.binary()).to_pylist())
            for number, value in enumerate(values, start=1):
                yield from read_document(value, number, tally)
    except pa.ArrowException as error:
        raise OSError(str(error)) from error


def read_rows(rows: Iterable[Mapping[str, Any]], tally: Tally) -> Iterator[Piece]:
    """Yield the column `text` of a Hub data set's rows."""
    for number, row in enumerate(rows, start=1):
        if COLUMN not in row:
            raise no_column(row)
        yield from read_document(row[COLUMN], number, tally)


READERS: dict[str, Callable[[io.BufferedReader, Tally], Iterator[Piece]]] = {
    ".txt": read_txt,
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_document(value: object, line: int, tally: Tally) -> Iterator[Piece]:
    """Yield a row's document in pieces; count a bad line where the row has none."""
    try:
        text = value.decode("utf-8") if isinstance(value, bytes) else value
        if not isinstance(text, str):
            tally.count_bad(line, f"no {COLUMN!r}")
            return
        text.encode("utf-8")  # JSON can spell half a surrogate pair, which no tokenizer takes
    except UnicodeError:
        tally.count_bad(line, "not UTF-8")
        return
    if text.strip():
        yield from cut_document((text[i : i + PIECE] for i in range(0, len(text), PIECE)), tally)


def cut_document(chunks: Iterable[str], tally: Tally) -> Iterator[Piece]:
    """Yield one document, given in chunks, in pieces of at most `PIECE` characters."""
    pending = ""
    for chunk in chunks:
        pending += chunk
        while len(pending) > PIECE:
            end = find_word_end(pending)
            yield Piece(pending[:end], ends_document=False)
            pending = pending[end:]
    tally.documents += 1
    yield Piece(pending, ends_document=True)


def find_word_end(text: str) -> int:
    """Return where to cut: the last word's end within `PIECE`, since no byte-level token spans one.

    White space goes to the next piece as a whole, for how it splits depends on what follows it.
    """
    end = PIECE
    while end > 0:
        end = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end))
        if end > 0 and not text[end - 1].isspace():
            return end
    return PIECE


def read_lines(stream: io.BufferedReader, tally: Tally) -> Iterator[str | None]:
    """Yield a text's lines, None for a blank one; one longer than `PIECE` bytes comes in parts."""
    refuse_other_text(stream.peek(1))
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    number, last_bad, starts_line, at_end = 0, 0, True, False
    while not at_end:
        raw = stream.readline(PIECE)
        number += starts_line
        at_end = not raw
        try:
            text = decoder.decode(raw, at_end)
            if "\0" in text:
                raise UnicodeError
        except UnicodeError:
            decoder = codecs.getincrementaldecoder("utf-8")()
            if number != last_bad:
                tally.count_bad(number, "not UTF-8" if b"\0" not in raw else "zero bytes")
            last_bad = number
        else:
            if text.endswith("\r\n"):
                text = text[:-2] + "\n"
            is_blank = starts_line and not at_end and not text.strip()
            if text:
                yield None if is_blank else text
        starts_line = raw.endswith(b"\n")


def newlines_first(lines: Iterable[str]) -> Iterator[str]:
    """Yield the same text with newlines moved to the line after them, and none at the very end."""
    newline = ""
    for line in lines:
        yield newline + line.removesuffix("\n")
        newline = "\n" if line.endswith("\n") else ""


def make_seekable(stream: io.BufferedReader) -> Any:
    """Return a table as a file to seek in: a compressed one is unpacked to a temporary file."""
    if stream.seekable():
        return stream
    # A table's footer, which is read first, stands at its end.
    file = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(stream, file, 1 << 20)
    file.seek(0)
    return file

"""Bytes out of a file that may be compressed, as a stream.  [compression] -> sources

A cut-off file must fail here, not end early: half a corpus without a word is the worst outcome.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import Any

BUFFER = 1 << 17
SUFFIXES = (".gz", ".xz", ".zst")
ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading such a stream may raise when the file is damaged."""


def decompressed(file: io.BufferedReader, suffix: str) -> io.BufferedReader:
    """The content of an open file as a stream; any other suffix means plain bytes."""
    if suffix not in SUFFIXES:
        return file
    if not file.peek(1):  # gzip would take it for an empty text
        raise EOFError("it is empty, not even a header")
    reader: Any = {".gz": _gzip, ".xz": lzma.LZMAFile, ".zst": ZstdReader}[suffix](file)
    return io.BufferedReader(reader, BUFFER)


def _gzip(file: io.BufferedReader) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file)


def split_suffix(path: Path) -> tuple[str, str]:
    """The kind of a file and its compression: `a.jsonl.xz` gives ".jsonl" and ".xz"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in SUFFIXES:
        return (suffixes[-2] if len(suffixes) > 1 else ""), suffixes[-1]
    return (suffixes[-1] if suffixes else ""), ""


class ZstdReader(io.RawIOBase):
    """Frames of Zstandard, one after another; the library's own reader accepts a cut-off one."""

    def __init__(self, file: io.BufferedReader):
        self._file = file
        self._frame: Any = None
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            if not self._compressed:
                self._compressed = self._file.read(1 << 14)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("the last Zstandard frame is cut off")
                return 0
            self._ready = memoryview(self._decompress())
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self) -> bytes:
        zstandard = _zstandard()
        if self._frame is None:
            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
            self._frame = decompressor.decompressobj()
        try:
            content = self._frame.decompress(self._compressed)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        self._compressed = b""
        if self._frame.eof:
            self._compressed = self._frame.unused_data
            self._frame = None
        return content


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ValueError("a .zst file needs `pip install 'ssdlm[train]'`") from error
    return zstandard

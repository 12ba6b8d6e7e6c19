"""Files that may be compressed, read as a stream of bytes.  [compression] -> sources, labelled

A truncated file must raise here, not end early: half a corpus without a warning is the worst
outcome.
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
MOST_RATIO, FREE = 500, 1 << 26
"""How many times its size a file may unpack to, and bytes before which nobody asks."""
ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading such a stream may raise when the file is damaged."""


def decompressed(file: io.BufferedReader, suffix: str) -> io.BufferedReader:
    """Return the content of an open file as a stream; any other suffix means plain bytes."""
    if suffix not in SUFFIXES:
        return file
    if not file.peek(1):  # gzip would take it for an empty text
        raise EOFError("it is empty, not even a header")
    if suffix == ".gz":
        reader: Any = gzip.GzipFile(fileobj=file)
    elif suffix == ".xz":
        reader = lzma.LZMAFile(file)  # noqa: SIM115
    else:
        reader = ZstdReader(file)
    return io.BufferedReader(Unpacked(reader, file), BUFFER)


class Unpacked(io.RawIOBase):
    """What comes out of a file, refused where it is far more than any text is packed to."""

    def __init__(self, reader: Any, file: io.BufferedReader):
        self.reader = reader
        self.file = file
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = self.reader.readinto(buffer)
        self.size += count
        if self.size > FREE and self.size > MOST_RATIO * self.file.tell():
            raise OSError(
                f"it unpacks to more than {MOST_RATIO} times its size, as no text does; unpack it "
                "yourself if it is meant"
            )
        return count


def split_suffix(path: Path) -> tuple[str, str]:
    """Return the kind of a file and its compression: `a.jsonl.xz` gives ".jsonl" and ".xz"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in SUFFIXES:
        return (suffixes[-2] if len(suffixes) > 1 else ""), suffixes[-1]
    return (suffixes[-1] if suffixes else ""), ""


class ZstdReader(io.RawIOBase):
    """Frames of Zstandard, one after another; the library's own reader accepts a truncated one."""

    def __init__(self, file: io.BufferedReader):
        self.file = file
        self.frame: Any = None
        """The decompressor of the frame being read; None between two frames."""
        self.compressed = b""
        self.ready = memoryview(b"")
        """Decompressed bytes that nobody has taken yet."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self.ready:
            if not self.compressed:
                # Four bytes may stand for 128 KiB, and all that these stand for comes at once.
                self.compressed = self.file.read(1 << 12)
            if not self.compressed:
                if self.frame is not None:
                    raise EOFError("the last Zstandard frame is cut off")
                return 0
            self.ready = memoryview(self.decompress())
        size = min(len(buffer), len(self.ready))
        buffer[:size] = self.ready[:size]
        self.ready = self.ready[size:]
        return size

    def decompress(self) -> bytes:
        """Return what the bytes at hand decompress to, up to the end of their frame."""
        try:
            import zstandard
        except ImportError as error:
            raise ValueError("a .zst file needs `pip install 'ssdlm[train]'`") from error
        if self.frame is None:
            # Files packed with --long use windows of up to 2 GiB.
            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
            self.frame = decompressor.decompressobj()
        try:
            content = self.frame.decompress(self.compressed)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        self.compressed = b""
        if self.frame.eof:
            self.compressed = self.frame.unused_data
            self.frame = None
        return content

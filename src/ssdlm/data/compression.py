"""Files that may be compressed, read as a stream of bytes.  [compression] -> sources, labelled

A truncated file must raise here, not end early: half a corpus without a warning is the worst
outcome.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssdlm.extras import lacking

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
        reader = MemberReader(file, lzma.LZMADecompressor, lzma.LZMAError, padding=4)
    else:
        reader = zstd_reader(file)
    return io.BufferedReader(Unpacked(reader, file), BUFFER)


def zstd_reader(file: io.BufferedReader) -> MemberReader:
    """Return what a Zstandard file unpacks to."""
    try:
        import zstandard
    except ImportError as error:
        raise lacking("zstandard", "a .zst file") from error
    # Files packed with --long use windows of up to 2 GiB.
    library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    return MemberReader(file, library.decompressobj, zstandard.ZstdError)


class Unpacked(io.RawIOBase):
    """What comes out of a file, refused where it is far more than any text is packed to."""

    def __init__(self, reader: Any, file: io.BufferedReader):
        self.reader = reader
        self.file = file
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        # A reader fills all it is given, however large, before anybody asks how much that is.
        count = self.reader.readinto(memoryview(buffer)[:BUFFER])
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


class MemberReader(io.RawIOBase):
    """The members of a packed file, one after another, each of them whole.

    The libraries' own readers accept less: that of Zstandard a frame that is cut off, that of xz
    anything after the first member, and drops what it cannot read.
    """

    def __init__(
        self,
        file: io.BufferedReader,
        start: Callable[[], Any],
        error: type[Exception],
        padding: int = 1,
    ):
        self.file = file
        self.start = start
        """Returns the decompressor of one member."""
        self.error = error
        """What that raises."""
        self.padding = padding
        """Zeros after a member come in multiples of so many; 1: there are none."""
        self.zeros = 0
        """How many have followed the last member."""
        self.member: Any = None
        """The decompressor of the member being read; None between two members."""
        self.packed = b""
        self.ready = memoryview(b"")
        """Unpacked bytes that nobody has taken yet."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self.ready:
            if not self.packed:
                # Four bytes may stand for 128 KiB, and all that these stand for comes at once.
                self.packed = self.file.read(1 << 12)
            if not self.packed:
                if self.member is not None or self.zeros % self.padding:
                    raise EOFError("its last member is cut off; get the file anew")
                return 0
            self.ready = memoryview(self.unpack())
        size = min(len(buffer), len(self.ready))
        buffer[:size] = self.ready[:size]
        self.ready = self.ready[size:]
        return size

    def unpack(self) -> bytes:
        """Return what the bytes at hand unpack to, up to the end of their member."""
        if self.member is None:
            if self.zeros % self.padding:
                raise OSError("what follows a member is not another one; get the file anew")
            self.member = self.start()
        try:
            content = self.member.decompress(self.packed)
        except self.error as error:
            raise OSError(f"{error}; get the file anew") from error
        self.packed = b""
        if self.member.eof:
            self.packed, self.member = self.member.unused_data, None
            self.skip_zeros()
        return content

    def skip_zeros(self) -> None:
        """Go to the next member, past zeros where some may be."""
        self.zeros = 0
        while self.padding > 1 and (packed := self.packed or self.file.read(1 << 12)):
            self.packed = packed.lstrip(b"\0")
            self.zeros += len(packed) - len(self.packed)
            if self.packed:
                break

"""Files elsewhere, named as `s3://bucket/a.jsonl`, through fsspec.  [remote] -> delivery, sources

Whatever a file system's library says becomes one line that names the file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ssdlm.extras import lacking
from ssdlm.storage.files import PROTOCOL, named_path
from ssdlm.values import first_line, shorten

BLOCK = 1 << 23
"""Bytes that are asked for at a time."""
WHOLE_OR_ABSENT = {"s3", "s3a", "gs", "gcs", "hf", "abfs", "az", "adl", "oci", "oss", "memory"}
"""Where a file has its name only when all of it is there; elsewhere it is renamed at the end."""
MODULES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
"""What a protocol needs; fsspec says it of the others."""


class RemoteError(ValueError):
    """A file elsewhere that cannot be read or written."""


@dataclass(frozen=True)
class Remote:
    """A file or folder elsewhere."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the name."""
        return PurePosixPath(self.path).name

    @property
    def protocol(self) -> str:
        return self.url.partition("://")[0].lower()

    @property
    def system(self) -> Any:
        """The file system of fsspec that has it."""
        return self.found[0]

    @property
    def path(self) -> str:
        """The name within its file system."""
        return self.found[1]

    @cached_property
    def found(self) -> tuple[Any, str]:
        """The file system and the name in it."""
        from fsspec.core import url_to_fs
        from fsspec.registry import available_protocols

        if self.protocol not in available_protocols():
            raise RemoteError(
                f"{shorten(self.url)}: {shorten(self.protocol)} is no known protocol; use s3://, "
                "gs://, hf:// or a file of this machine"
            )
        with in_one_line(self, "use"):
            system, path = url_to_fs(self.url)
        if not path.strip("/"):
            raise RemoteError(f"{self.url} names no file; give a bucket and a name in it")
        return system, path

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url.rstrip('/')}/{name}")

    def beside(self, ending: str) -> Remote:
        """Return the file whose name has this more at its end."""
        return Remote(self.url.rstrip("/") + ending)

    def information(self) -> dict[str, Any] | None:
        """Return what the file system knows of it now, None where there is nothing."""
        with in_one_line(self, "find"):
            self.system.invalidate_cache()
            try:
                return self.system.info(self.path)
            except FileNotFoundError:
                return None

    def exists(self) -> bool:
        """Tell whether a file or folder has the name."""
        return self.information() is not None

    def is_dir(self) -> bool:
        """Tell whether it is a folder."""
        return (self.information() or {}).get("type") == "directory"

    def size(self) -> int:
        """Return how many bytes a file has."""
        found = self.information()
        if found is None:
            raise missing(self)
        return int(found.get("size") or 0)

    def below(self) -> list[Remote]:
        """Return all files of a folder and its subfolders, sorted."""
        with in_one_line(self, "list"):
            return self.named(self.system.find(self.path))

    def matches(self) -> list[Remote]:
        """Return the files that match, where the name is a glob; sorted."""
        with in_one_line(self, "list"):
            return self.named(p for p in self.system.glob(self.path) if self.system.isfile(p))

    def named(self, paths: Any) -> list[Remote]:
        """Return files of the same file system under their whole names, sorted."""
        return [Remote(self.system.unstrip_protocol(path)) for path in sorted(paths)]

    def open(self) -> io.BufferedReader:
        """Return the bytes of a file as a stream, a few blocks of which are in memory."""
        with in_one_line(self, "read"):
            file = self.system.open(self.path, "rb", block_size=BLOCK)
        return io.BufferedReader(RemoteReader(self, file), 1 << 17)

    def read(self) -> bytes:
        """Return the bytes of a file."""
        with self.open() as file:
            return file.read()

    def fetch(self, target: Path) -> None:
        """Copy a file, or all files of a folder, to this machine."""
        if self.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            for file in self.below():
                inner = target / PurePosixPath(file.path).relative_to(self.path.rstrip("/"))
                file.fetch(inner)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with in_one_line(self, "read"):
            self.system.get_file(self.path, str(target))

    def put(self, source: Path) -> None:
        """Copy a file of this machine there: all of it or nothing."""
        path = self.path
        with in_one_line(self, "write"):
            if self.protocol in WHOLE_OR_ABSENT:
                self.system.put_file(str(source), path)
                return
            self.system.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
            self.system.put_file(str(source), f"{path}.tmp")
            self.system.mv(f"{path}.tmp", path)

    def remove(self) -> None:
        """Delete a file."""
        with in_one_line(self, "remove"):
            self.system.rm_file(self.path)

    def remove_all(self) -> None:
        """Delete a folder and all that is in it, if it is there."""
        if self.is_dir():
            with in_one_line(self, "remove"):
                self.system.rm(self.path, recursive=True)


class RemoteReader(io.RawIOBase):
    """An open file elsewhere, errors of which name it."""

    def __init__(self, remote: Remote, file: Any):
        self.remote = remote
        self.file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self.file.seekable())

    def readinto(self, buffer: Any, /) -> int:
        with in_one_line(self.remote, "read"):
            content = self.file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        with in_one_line(self.remote, "read"):
            return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        super().close()


Place = Path | Remote
"""What a user names: a file or folder of this machine, or one elsewhere."""


def place_of(name: str | os.PathLike[str], what: str) -> Place:
    """Return what a name means; an empty one is refused."""
    text = os.fspath(name)
    return Remote(text) if PROTOCOL.match(text) else named_path(text, what)


def open_place(place: Place) -> io.BufferedReader:
    """Return the bytes of a file, wherever it is, as a stream."""
    return place.open() if isinstance(place, Remote) else place.open("rb")


def size_of(place: Place) -> int:
    """Return how many bytes a file has, wherever it is."""
    return place.size() if isinstance(place, Remote) else place.stat().st_size


def missing(remote: Remote) -> RemoteError:
    """Return the error about what is not there."""
    return RemoteError(f"{remote} does not exist; check the bucket and the name")


@contextmanager
def in_one_line(remote: Remote, what: str) -> Iterator[None]:
    """Raise what a file system's library says in a line with the file's name and a remedy."""
    try:
        yield
    except RemoteError:
        raise
    except ImportError as error:
        module, said = MODULES.get(remote.protocol), first_line(error)
        said = f"{remote} needs a package that is not installed: {said}"
        raise RemoteError(lacking(module, str(remote)) if module else said) from error
    except FileNotFoundError as error:
        raise missing(remote) from error
    except PermissionError as error:
        raise RemoteError(
            f"no right to {what} {remote} ({first_line(error)}); check your keys and the rights of "
            "the bucket"
        ) from error
    except Exception as error:  # of the network, the store, its library: of every class
        raise RemoteError(f"cannot {what} {remote}: {first_line(error)}") from error

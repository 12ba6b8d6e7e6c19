"""Sources of documents: files, folders, globs, data sets of the Hub.  [sources] -> prepare

Every kind is read as a stream of pieces. A document is a run of pieces; only one longer than
`PIECE` characters has more than one, so that memory stays flat whatever the input is.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ssdlm.data import formats
from ssdlm.data.compression import ERRORS, SUFFIXES, decompressed, split_suffix
from ssdlm.data.formats import Piece, Tally
from ssdlm.extras import lacking
from ssdlm.storage.lines import LinesError
from ssdlm.storage.remote import Place, Remote, missing, open_place, place_of, size_of
from ssdlm.values import first_line

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(:[\w.-]+)?")


@runtime_checkable
class Source(Protocol):
    """Something that contains documents."""

    @property
    def name(self) -> str: ...

    @property
    def num_bytes(self) -> int:
        """Size on disk, 0 where it is unknown; only the progress bar depends on it."""
        ...

    def identity(self) -> dict[str, Any]:
        """Return what tells this source from another, the same in any folder and on any machine."""
        ...

    def pieces(self, tally: Tally) -> Iterator[Piece]:
        """Yield the documents in order, and count them in the tally."""
        ...


@dataclass(frozen=True)
class FileSource:
    """One file, its kind told by its name."""

    path: Place

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def num_bytes(self) -> int:
        return self.size

    @cached_property
    def size(self) -> int:
        """Looked up once: elsewhere that takes a request."""
        return size_of(self.path)

    def identity(self) -> dict[str, Any]:
        """Return the size and a digest of both ends: reading the whole file would be too slow."""
        with open_place(self.path) as file:
            digest = hashlib.sha256(file.read(1 << 16))
            file.seek(max(0, self.num_bytes - (1 << 16)))
            digest.update(file.read())
        return {"bytes": self.num_bytes, "ends_sha256": digest.hexdigest()}

    def pieces(self, tally: Tally) -> Iterator[Piece]:
        kind, compression = split_suffix(Path(self.path.name))
        try:
            with open_place(self.path) as file:
                tally.file = file
                yield from formats.READERS[kind](decompressed(file, compression), tally)
        except ERRORS as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ValueError(f"cannot read {self.path}: {reason}") from error
        except (formats.LayoutError, LinesError) as error:
            raise ValueError(f"cannot use {self.path}: {error}") from error


@dataclass(frozen=True)
class HubSource:
    """The train split of a data set of the Hub, `name` or `name:config`, at one revision."""

    name: str
    revision: str
    num_bytes: int = 0

    def identity(self) -> dict[str, Any]:
        return {"hub": self.name, "revision": self.revision}

    def pieces(self, tally: Tally) -> Iterator[Piece]:
        from datasets import load_dataset

        repo, _, config = self.name.partition(":")
        try:
            rows = load_dataset(
                repo, config or None, split="train", streaming=True, revision=self.revision
            )
            yield from formats.read_rows(rows, tally)
        except formats.LayoutError as error:
            raise ValueError(f"cannot use data set {self.name}: {error}") from error
        except Exception as error:  # network, permission, unknown configuration
            raise ValueError(f"cannot read data set {self.name}: {first_line(error)}") from error


def find_sources(inputs: Iterable[str | os.PathLike[str]]) -> list[Source]:
    """Return every source that the inputs name, in order; files of a folder or glob are sorted."""
    found: dict[str, Source] = {}
    for given in inputs:
        for source in expand(os.fspath(given)):
            # A file named twice would put the same document on both sides of the hold-out.
            is_here = isinstance(source, FileSource) and isinstance(source.path, Path)
            key = os.path.realpath(source.name) if is_here else source.name
            found.setdefault(key, source)
    if not found:
        raise ValueError("no input: give files, folders, globs or the name of a data set")
    return list(found.values())


def expand(given: str) -> list[Source]:
    """Return the sources that one input names: a folder, a file, a glob or a data set."""
    path = place_of(given, "an input")
    if isinstance(path, Remote):
        return expand_remote(path)
    if path.is_dir():
        # Files of other kinds, a README for instance, are left alone.
        paths = [path for path in sorted(path.rglob("*")) if path.is_file() and is_known(path)]
        if not paths:
            raise ValueError(f"folder {given} has no file that ends in {known_suffixes()}")
        return [file_source(path) for path in paths]
    if path.exists():
        return [file_source(path)]
    if glob.has_magic(given):
        paths = sorted(p for p in set(map(Path, expand_glob(str(path)))) if p.is_file())
        if not paths:
            raise ValueError(f"no file matches {given}")
        return [file_source(p) for p in paths]
    if is_known(path) or not HUB_NAME.fullmatch(given):
        raise ValueError(f"{given} does not exist")
    return [find_on_hub(given)]


def expand_remote(remote: Remote) -> list[Source]:
    """Return the sources that a name elsewhere means: a folder, a file or a glob."""
    if remote.is_dir():
        found = [file for file in remote.below() if is_known(file)]
        if not found:
            raise ValueError(f"folder {remote} has no file that ends in {known_suffixes()}")
    elif remote.exists():
        found = [remote]
    elif glob.has_magic(remote.url):
        found = remote.matches()
        if not found:
            raise ValueError(f"no file matches {remote}")
    else:
        raise missing(remote)
    for file in found:
        refuse_unknown(file)
    return [FileSource(file) for file in found]


def expand_glob(pattern: str) -> list[str]:
    """Return the paths that match; `**` enters each folder once, though links may form a circle."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return glob.glob(pattern)
    at = parts.index("**")
    rest = tuple(dropwhile(lambda part: part == "**", parts[at:])) or ("*",)
    starts = glob.glob(os.path.join(*parts[:at])) if at else ["."]
    return [
        path
        for start in starts
        for folder in folders_below(start)
        for path in expand_glob(os.path.join(glob.escape(folder), *rest))
    ]


def folders_below(start: str) -> Iterator[str]:
    """Yield a folder and all below it, also through links; hidden ones are left out."""
    seen = set()
    for folder, names, _ in os.walk(start, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen:
            names.clear()
            continue
        seen.add(place)
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield folder


def file_source(path: Path) -> FileSource:
    """Return a file as a source, or raise an error if it cannot be read or is of another kind."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    refuse_unknown(path)
    if not os.access(path, os.R_OK):
        raise ValueError(f"cannot read {path}: permission denied")
    return FileSource(path)


def is_known(path: Place) -> bool:
    """Tell whether a file's name says that it can be read."""
    return split_suffix(Path(path.name))[0] in formats.READERS


def refuse_unknown(path: Place) -> None:
    """Raise on a file of another kind than can be read."""
    if not is_known(path):
        raise ValueError(f"{path} is of no known kind; use {known_suffixes()}")


def known_suffixes() -> str:
    """Return the endings of the files that can be read, for an error message."""
    kinds = ", ".join(formats.READERS)
    return f"{kinds} (or any of them with {', '.join(SUFFIXES)} after it)"


def find_on_hub(name: str) -> HubSource:
    """Return a data set at its newest revision, so that a run resumed later reads the same one."""
    try:
        import datasets  # noqa: F401
        from huggingface_hub import HfApi
    except ImportError as error:
        raise lacking(
            "datasets", f"{name} is no file or folder here; a data set of the Hub"
        ) from error
    try:
        info = HfApi().dataset_info(name.partition(":")[0])
    except Exception as error:  # network, permission, no such data set
        raise ValueError(
            f"{name} is neither a file, folder or glob here nor to be had from the Hub: "
            f"{first_line(error)}"
        ) from error
    return HubSource(name, info.sha or "main")

"""Arrays that took long to compute, kept on disk: one file for each key, whole or absent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ssdlm.storage.files import write_file

Arrays = dict[str, np.ndarray]
MOST_SPARE = 512 << 20
"""Bytes of a spare folder: whoever may send grammars to a server may fill a disk with them."""
LEAST_FILE = 64 << 10
"""What a file counts at least, so that they are not too many either."""


@dataclass(frozen=True)
class ArrayCache:
    """Named arrays on disk, by a name and a key that tells all they were computed from."""

    folder: Path | None
    """None: nothing is kept."""
    is_writable: bool = False
    """Add what is missing."""
    is_spare: bool = False
    """Whether a disk that cannot be written is no error, and what was used longest ago goes."""

    def get(self, name: str, key: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return the arrays that are kept under a key, or those that `compute` gives."""
        if self.folder is None:
            return compute()
        path = self.folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
        try:
            found = load_file(path)
        except (OSError, SafetensorError):  # absent, or not what we wrote: made anew
            found = None
        arrays = compute() if found is None else found
        with suppress(OSError) if self.is_spare else nullcontext():
            if self.is_writable and found is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_file(path, lambda temporary: save_file(arrays, temporary))
                if self.is_spare:
                    drop_oldest(self.folder)
            elif self.is_spare:
                path.touch()
        return arrays


def drop_oldest(folder: Path) -> None:
    """Drop the files of a folder that were used longest ago, until the rest is small enough."""
    about, size = [(path.stat(), path) for path in folder.iterdir()], 0
    for one, path in sorted(about, key=lambda pair: pair[0].st_mtime_ns, reverse=True):
        size += max(one.st_size, LEAST_FILE)
        if size > MOST_SPARE:
            path.unlink()


NO_CACHE = ArrayCache(None)


def user_cache(name: str) -> ArrayCache:
    """Return what is kept in a folder of ours among the user's caches, where there are any."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home
        return NO_CACHE
    return ArrayCache(root / "ssdlm" / name, is_writable=True, is_spare=True)

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


@dataclass(frozen=True)
class ArrayCache:
    """Named arrays on disk, by a name and a key that tells all they were computed from."""

    folder: Path | None
    """None: nothing is kept."""
    is_writable: bool = False
    """Add what is missing."""
    is_spare: bool = False
    """Whether a disk that cannot be written is no error."""

    def get(self, name: str, key: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return the arrays that are kept under a key, or those that `compute` gives."""
        if self.folder is None:
            return compute()
        path = self.folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
        try:
            return load_file(path)
        except (OSError, SafetensorError):  # absent, or not what we wrote: made anew
            arrays = compute()
        if self.is_writable:
            with suppress(OSError) if self.is_spare else nullcontext():
                self.folder.mkdir(parents=True, exist_ok=True)
                write_file(path, lambda temporary: save_file(arrays, temporary))
        return arrays


NO_CACHE = ArrayCache(None)


def user_cache(name: str) -> ArrayCache:
    """Return what is kept in a folder of ours among the user's caches, where there are any."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home
        return NO_CACHE
    return ArrayCache(root / "ssdlm" / name, is_writable=True, is_spare=True)

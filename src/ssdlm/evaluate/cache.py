"""Results of judges, kept so that a machine with a GPU judges and another one measures.

judge -> [cache] -> perplexity, mauve
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ssdlm.evaluate.judge import Judge
from ssdlm.storage.files import write_file

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class JudgeCache:
    """Results of judges on disk: one file for each kind of result, judge and list of texts."""

    folder: Path | None
    """None: nothing is kept."""
    is_writable: bool = False
    """Add the results that are missing."""

    def get(
        self, kind: str, judge: Judge, texts: Sequence[Any], compute: Callable[[], Arrays]
    ) -> Arrays:
        """Return the cached results of these texts, or those that `compute` gives."""
        if self.folder is None:
            return compute()
        key = json.dumps([kind, judge.fingerprint, texts]).encode()
        path = self.folder / f"{kind}-{hashlib.sha256(key).hexdigest()[:32]}.safetensors"
        if path.exists():
            return load_file(path)
        arrays = compute()
        if self.is_writable:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(path, lambda temporary: save_file(arrays, temporary))
        return arrays


NO_CACHE = JudgeCache(None)

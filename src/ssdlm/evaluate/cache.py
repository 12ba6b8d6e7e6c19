"""What judges found in texts, kept so that one machine reads and another one measures.

judge -> [readings] -> perplexity, mauve
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
class Readings:
    """What judges found in texts, a file for each list of texts and judge."""

    folder: Path | None
    """None: nothing is kept."""
    is_growing: bool = False
    """Add what is not there."""

    def of(
        self, what: str, judge: Judge, texts: Sequence[Any], read: Callable[[], Arrays]
    ) -> Arrays:
        """Return what is kept of these texts, or what `read` finds in them."""
        if self.folder is None:
            return read()
        told = json.dumps([what, judge.print, texts]).encode()
        path = self.folder / f"{what}-{hashlib.sha256(told).hexdigest()[:32]}.safetensors"
        if path.exists():
            return load_file(path)
        found = read()
        if self.is_growing:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(path, lambda unfinished: save_file(found, unfinished))
        return found


NOT_KEPT = Readings(None)

"""Results of judges, kept so that a machine with a GPU judges and another one measures.

judge -> [cache] -> perplexity, mauve
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssdlm.evaluate.judge import Judge
from ssdlm.storage.arrays import ArrayCache, Arrays


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
        key = json.dumps([kind, judge.fingerprint, texts])
        return ArrayCache(self.folder, self.is_writable).get(kind, key, compute)


NO_CACHE = JudgeCache(None)

"""What a classifier was made of, written beside it: a command that is repeated finds it complete.

[record] -> run, judge
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ssdlm.storage.checkpoint import WEIGHTS
from ssdlm.storage.files import exists_already, read_json, sha256, write_json

CONFIG, KEY = "config.json", "made_of"


def digest_of(*inputs: Any) -> str:
    """Return what tells inputs from others; dataclasses are known by how they are written."""
    return hashlib.sha256(json.dumps(inputs, default=repr).encode()).hexdigest()


def identity(name: str | Path | None) -> Any:
    """Return what tells a model or tokenizer from others: a folder's files, or its name."""
    folder = Path(name or "").expanduser()
    if name is None or not folder.is_dir():
        return None if name is None else str(name)
    return {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}


def write_record(folder: Path, digest: str, **more: Any) -> None:
    """Add to a classifier's configuration what it was made of, and what its weights are."""
    made = {"digest": digest, "weights": sha256(folder / WEIGHTS)} | more
    write_json(folder / CONFIG, read_json(folder / CONFIG) | {KEY: made})


def finished(out: Path, digest: str) -> dict[str, Any] | None:
    """Return the record of a classifier that is there and was made of this; None without one.

    Anything else of that name is refused.
    """
    if not out.exists():
        return None
    try:
        made: dict[str, Any] = read_json(out / CONFIG)[KEY]
        if made["digest"] == digest and made["weights"] == sha256(out / WEIGHTS):
            return made
    except (ValueError, OSError, KeyError, TypeError):
        pass
    raise exists_already(out)

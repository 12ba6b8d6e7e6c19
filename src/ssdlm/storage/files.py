"""Files that are whole or absent: written under another name, then renamed.  -> all writers"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write(path: Path, writer: Callable[[Path], Any]) -> None:
    """Call `writer` with a temporary name beside `path`, then rename: all of a file or nothing.

    Each process has a name of its own, so several may write the same file.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        writer(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; it is on the disk before it has the name."""

    def put(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())

    write(path, put)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()

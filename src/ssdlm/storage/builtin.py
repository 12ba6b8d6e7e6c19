"""What comes with the package: a model and guides, in the folder `builtin`.  [shelf] -> checkpoint

builtin/NAME  a model, `builtin:NAME` to those who open it;  builtin/guides/NAME  a classifier
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

BUILTIN = Path(__file__).resolve().parents[1] / "builtin"
PREFIX = "builtin:"
WEIGHTS = "model.safetensors"
CARDS = ("MODEL_CARD.md", "README.md")
SCALE = ".scale"
"""What int8 tensors are multiplied by; no parameters of their own."""


@dataclass(frozen=True)
class Entry:
    """One thing on the shelf."""

    kind: str
    name: str
    """What one opens it by."""
    parameters: int
    V: int
    size: int
    """Bytes of all its files."""
    gloss: str
    """The first sentence of its card."""

    def __str__(self) -> str:
        sizes = f"{self.parameters / 1e6:.1f}M parameters, {self.V:,} tokens, "
        return f"{self.kind:7}{self.name:15}{sizes}{self.size / 1e6:.1f} MB\n{'':7}{self.gloss}"


def builtin_folder(name: str) -> Path:
    """Return the folder of a built-in model, named with or without the prefix."""
    name = name.removeprefix(PREFIX)
    there = [path.name for path in folders(BUILTIN)]
    if name in there:
        return BUILTIN / name
    listed = ", ".join(PREFIX + other for other in there) or "no model at all"
    raise ValueError(
        f"{PREFIX}{name} is not in this installation, which has {listed}; "
        "install from a whole checkout, or give --model a folder or a Hub id"
    )


def listing() -> list[Entry]:
    """Return all that is built in, models first."""
    models = [entry(folder, "model", PREFIX + folder.name) for folder in folders(BUILTIN)]
    guides = [entry(folder, "guide", folder.name) for folder in folders(BUILTIN / "guides")]
    return models + guides


def folders(shelf: Path) -> list[Path]:
    """Return the folders that hold weights and their configuration, by name."""
    there = sorted(path.parent for path in shelf.glob(f"*/{WEIGHTS}"))
    return [folder for folder in there if (folder / "config.json").exists()]


def entry(folder: Path, kind: str, name: str) -> Entry:
    """Return what is known of a folder without opening its weights."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shapes = {key: value["shape"] for key, value in header(folder / WEIGHTS).items()}
    count = sum(prod(shape) for key, shape in shapes.items() if not key.endswith(SCALE))
    size = sum(path.stat().st_size for path in folder.iterdir())
    return Entry(
        kind, name, count, config.get("V", config.get("vocab_size", 0)), size, gloss(folder)
    )


def header(path: Path) -> dict[str, Any]:
    """Return what a safetensors file says of its tensors: its first bytes alone are read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        values = json.loads(file.read(length))
    return {key: value for key, value in values.items() if key != "__metadata__"}


def gloss(folder: Path) -> str:
    """Return the first sentence of a card, without the titles above it; empty without a card."""
    for name in CARDS:
        if (folder / name).exists():
            parts = (folder / name).read_text(encoding="utf-8").split("\n\n")
            prose = next((part for part in parts if not part.startswith("#")), "")
            return " ".join(prose.split()).partition(". ")[0].rstrip(".")
    return ""

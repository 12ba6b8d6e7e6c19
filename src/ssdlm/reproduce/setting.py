"""One setting of an experiment: who writes, after which prompts, how, and how it is measured.

scale, order -> [cell] -> making -> measuring
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PLAIN_NAME = re.compile(r"[A-Za-z0-9._=+-]+(/[A-Za-z0-9._=+-]+)*")


@dataclass(frozen=True)
class Diffusion:
    """A model of this library writes, with options of `SSDLM.generate`."""

    model: str
    """Folder or Hub id."""


@dataclass(frozen=True)
class Autoregressive:
    """A causal model writes through `transformers`: a BlockDenoiser's context stream, or any."""

    model: str
    """Folder or Hub id."""


@dataclass(frozen=True)
class Given:
    """Someone else has written: a file of generations with `prompt`, `text` and maybe `tokens`."""

    path: str


@dataclass(frozen=True)
class Gold:
    """People wrote: the `gold` continuation of each prompt."""


Author = Diffusion | Autoregressive | Given | Gold


@dataclass(frozen=True)
class Cell:
    """One setting."""

    name: str
    """Unique in its OUT, and the folder of its files below OUT/cells: `50/ours/sampling-0.95`."""
    author: Author
    prompts: str
    """File of prompts; a line's `gold` and `gold_tokens` are the reference."""
    num_prompts: int
    """How many of them are used, from the first."""
    num_samples: int = 1
    """Texts a prompt."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of `SSDLM.generate`, or of the autoregressive model's; they decide the texts."""
    measures: dict[str, Any] = field(default_factory=dict)
    """Of `evaluate`: metrics, features, control_guides, control_judges, mixed_lengths."""
    judge: str = ""
    """Causal LM for perplexity; the order's where it is empty."""
    has_reference: bool = True
    """Compare with the gold continuations."""

    def __post_init__(self) -> None:
        if not PLAIN_NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"cell name {self.name!r} is no path of letters, digits and . _ = + -")

    @property
    def plain_measures(self) -> dict[str, Any]:
        """The measures as JSON gives them back."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.measures.items()}


@dataclass(frozen=True)
class Place:
    """The files of a cell."""

    folder: Path

    @property
    def generations(self) -> Path:
        return self.folder / "generations.jsonl"

    @property
    def made(self) -> Path:
        """How the generations came about: settings, model, seconds."""
        return self.folder / "made.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    @property
    def measured(self) -> Path:
        """What the report was computed from."""
        return self.folder / "measured.json"

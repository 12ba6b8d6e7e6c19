"""One setting of an experiment: whose texts, after which prompts, and how they are measured.

scale, experiment -> [setting] -> generation -> measurement
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PLAIN_NAME = re.compile(r"[A-Za-z0-9._=+-]+(/[A-Za-z0-9._=+-]+)*")

Options = dict[str, Any]
"""Keyword arguments by name, as JSON can keep them."""


@dataclass(frozen=True)
class Diffusion:
    """A model of this library, with options of `SSDLM.generate`."""

    model: str
    """Folder or Hub id."""


@dataclass(frozen=True)
class Autoregressive:
    """A causal model, through `transformers`: a BlockDenoiser's context stream, or any other."""

    model: str
    """Folder or Hub id."""


@dataclass(frozen=True)
class Given:
    """A file of texts that another program wrote: `prompt`, `text` and maybe `tokens` per line."""

    path: str


@dataclass(frozen=True)
class Gold:
    """Human text: the `gold` continuation of each prompt."""


TextSource = Diffusion | Autoregressive | Given | Gold


@dataclass(frozen=True)
class Setting:
    """One setting of an experiment."""

    name: str
    """Unique in its OUT, and the folder of its files below OUT/cells: `50/ours/sampling-0.95`."""
    source: TextSource
    prompts: str
    """File of prompts; a line's `gold` and `gold_tokens` are the reference."""
    num_prompts: int
    """How many of them are used, from the first."""
    num_samples: int = 1
    """Texts per prompt."""
    options: Options = field(default_factory=dict)
    """Of `SSDLM.generate`, or of the autoregressive model's; they decide the texts."""
    measures: Options = field(default_factory=dict)
    """Of `evaluate`: metrics, features, control_guides, control_judges, mixed_lengths."""
    judge: str = ""
    """Causal LM for perplexity; the scale's where it is empty."""
    has_reference: bool = True
    """Compare with the gold continuations."""

    def __post_init__(self) -> None:
        if not PLAIN_NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"setting {self.name!r} is no path of letters, digits and . _ = + -")


class SettingFiles:
    """The files of a setting."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generations = folder / "generations.jsonl"
        self.made = folder / "made.json"
        """How the generations came about: options, model, seconds."""
        self.report = folder / "report.json"
        self.measured = folder / "measured.json"
        """What the report was computed from."""

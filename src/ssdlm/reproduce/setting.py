"""One setting of an experiment: whose texts, after which prompts, and how they are measured.

experiment, tables -> [setting] -> generation -> measurement
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdlm.storage.files import read_json

PLAIN_NAME = re.compile(r"[A-Za-z0-9._=+-]+(/[A-Za-z0-9._=+-]+)*")
ROLE, FORMER_ROLE = "autoregressive", "twin"
"""A role, and its name in older commands and folders."""

Options = dict[str, Any]
"""Keyword arguments by name, as JSON can keep them."""


@dataclass(frozen=True)
class Diffusion:
    """A model of this library, a folder or Hub id, with options of `SSDLM.generate`."""

    model: str


@dataclass(frozen=True)
class Autoregressive:
    """A causal model through `transformers`: a BlockDenoiser's context stream, or any other."""

    model: str


@dataclass(frozen=True)
class Given:
    """A file of texts that another program wrote: `prompt`, `text` and maybe `tokens` per line."""

    path: str


@dataclass(frozen=True)
class Gold:
    """Human text: the `gold` continuation of each prompt."""


@dataclass(frozen=True)
class Instructed(Diffusion):
    """A model of this library that is told, by its chat template, how to continue a prompt."""

    instruction: str


TextSource = Diffusion | Autoregressive | Given | Gold


@dataclass(frozen=True)
class Setting:
    """One setting of an experiment: whose texts, after which prompts, and how they are measured."""

    name: str
    """Unique in its OUT, and the folder of its files below OUT/cells: `50/ours/sampling-0.95`."""
    source: TextSource
    prompts: str
    """File of prompts; a line's `gold` and `gold_tokens` are the reference."""
    num_prompts: int
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
    needs_gradient: bool = False
    """Write nothing where no guide has a gradient for the model's tokens."""

    def __post_init__(self) -> None:
        if not PLAIN_NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"setting {self.name!r} is no path of letters, digits and . _ = + -")

    @property
    def former_name(self) -> str:
        """What the setting was called before its role was renamed."""
        return self.name.replace(f"/{ROLE}/", f"/{FORMER_ROLE}/")


class SettingFiles:
    """The files of a setting: texts and how they came about, report and what it is of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generations, self.made = folder / "generations.jsonl", folder / "made.json"
        self.report, self.measured = folder / "report.json", folder / "measured.json"


def read_if_there(path: Path) -> Options:
    """Return a file's JSON object, an empty one where there is no file."""
    return read_json(path) if path.exists() else {}

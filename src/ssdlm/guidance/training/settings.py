"""How a guide is built and trained, as one frozen value.  [settings] -> building, learning, run"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_type_hints

from ssdlm.guidance.fitting import check_lam
from ssdlm.settings import nearest, parse

SHORTEST = 3
"""Positions of a text: its two special tokens, and one."""


@dataclass(frozen=True)
class GuideConfig:
    """How a guide is built and trained."""

    D: int = 128
    """Width, for a new classifier."""
    num_layers: int = 1
    """Transformer layers, for a new classifier."""
    max_len: int = 256
    """Positions, for a new classifier; a longer text loses its beginning."""
    max_tokens: int = 64
    """The longest text in training, in tokens with the special ones; of a longer one, the latest
    part."""
    epochs: int = 6
    """The most times every text is read."""
    patience: int = 2
    """Epochs without a better macro F1 before training ends."""
    batch_size: int = 64
    lr: float = 2e-3
    """The highest learning rate; it rises for a tenth of the steps, then falls to zero."""
    dropout: float = 0.1
    weight_decay: float = 0.01
    eps: float = 1e-12
    """layer_norm_eps, for a new classifier. Large, it makes the network nearly linear: a word's
    weight then depends little on the words beside it, and all words have one."""
    blur: float = 0.5
    """The share of examples read as soft text."""
    smoothing: float = 0.05
    """The probability that the loss wants spread over all labels."""
    holdout: float = 0.1
    """The share of texts that choose the best epoch; and measure it, if there is no test."""
    lam: float = 2000.0
    """The weight that the guide suggests for itself."""
    seed: int = 0


def configure(assignments: Sequence[str]) -> GuideConfig:
    """Return the settings with `name=value` applied in order."""
    types = get_type_hints(GuideConfig)
    values = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if name not in types:
            raise ValueError(f"a guide has no setting {name!r}; {nearest(name, list(types))}")
        values[name] = parse(types[name], text, name)
    return GuideConfig(**values)


def check(config: GuideConfig) -> None:
    """Raise on settings that cannot be meant."""
    for name, value in vars(config).items():
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} is not a finite number; leave it out or give one")
    if not 0 <= config.seed < 2**63:
        raise ValueError(f"seed={config.seed} is not a whole number from 0 to 2**63 - 1")
    for name in ("max_len", "max_tokens"):
        if getattr(config, name) < SHORTEST:
            raise ValueError(
                f"{name}={getattr(config, name)} has no room for a text; use {SHORTEST} or more"
            )
    check_lam(config.lam)
    for name in ("D", "num_layers", "epochs", "patience", "batch_size"):
        if getattr(config, name) < 1:
            raise ValueError(
                f"{name}={getattr(config, name)} is not a positive number; use 1 or more"
            )
    if config.D % 32:
        raise ValueError(f"D={config.D} cannot be shared among heads; use a multiple of 32")
    for name in ("blur", "smoothing", "dropout"):
        if not 0 <= getattr(config, name) < 1 and not (name == "blur" and config.blur == 1):
            raise ValueError(f"{name}={getattr(config, name)} is not a share; use 0 to 0.5, say")
    if not 0 < config.holdout < 1:
        raise ValueError(f"holdout={config.holdout} is not between 0 and 1; use 0.1, say")
    if not (config.eps > 0 and config.weight_decay >= 0):
        raise ValueError(
            f"eps={config.eps}, weight_decay={config.weight_decay}: use more than 0, and 0 or more"
        )
    if not config.lr > 0:
        raise ValueError(f"lr={config.lr} does not learn; use 0.001, say")

"""How a guide is built and trained, as one frozen value.  [settings] -> model, loop, run"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_type_hints

from ssdlm.guidance.fitting import check_lam
from ssdlm.settings import nearest, parse
from ssdlm.values import require

SHORTEST = 3
"""Tokens of the shortest text: its two special tokens, and one."""


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


def check_config(config: GuideConfig) -> None:
    """Raise on settings that no guide can be trained with."""
    values = vars(config)
    for name, value in values.items():
        require(math.isfinite(value), name, value, "give a finite number")
    require(0 <= config.seed < 2**63, "seed", config.seed, "use a whole number from 0 to 2**63 - 1")
    for name in ("max_len", "max_tokens"):
        remedy = f"a text needs room for {SHORTEST} tokens or more"
        require(values[name] >= SHORTEST, name, values[name], remedy)
    for name in ("D", "num_layers", "epochs", "patience", "batch_size"):
        require(values[name] >= 1, name, values[name], "use 1 or more")
    require(config.D % 32 == 0, "D", config.D, "heads are 32 wide; use a multiple of 32")
    require(0 <= config.blur <= 1, "blur", config.blur, "use a share from 0 to 1")
    for name in ("smoothing", "dropout"):
        require(0 <= values[name] < 1, name, values[name], "use a share from 0 to below 1")
    require(0 < config.holdout < 1, "holdout", config.holdout, "use a share such as 0.1")
    for name in ("eps", "lr"):
        require(values[name] > 0, name, values[name], "use more than 0")
    require(config.weight_decay >= 0, "weight_decay", config.weight_decay, "use 0 or more")
    check_lam(config.lam)

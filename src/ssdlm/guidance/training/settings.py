"""How a guide is built and trained, as one frozen value.  [settings] -> model, loop, run"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_type_hints

from ssdlm.config import MOST, ranged, require_ranges
from ssdlm.guidance.grammar import check_lam
from ssdlm.settings import nearest, parse
from ssdlm.values import quote, require

SHORTEST = 3
"""Tokens of the shortest text: its two special tokens, and one."""


@dataclass(frozen=True)
class GuideConfig:
    """How a guide is built and trained."""

    D: int = ranged(128, least=1, most=MOST)
    """Width, for a new classifier."""
    num_layers: int = ranged(1, least=1, most=1000)
    """Transformer layers, for a new classifier."""
    init: float = ranged(0.02, above=0, most=10)
    """The standard deviation of a new classifier's first weights. A narrow one learns sooner with
    more, such as one over the root of its width."""
    max_len: int = ranged(256, least=SHORTEST, most=MOST)
    """Positions, for a new classifier; a longer text loses its beginning."""
    max_tokens: int = ranged(64, least=SHORTEST, most=MOST)
    """The longest text in training, in tokens with the special ones; of a longer one, the latest
    part."""
    epochs: int = ranged(6, least=1)
    """The most times every text is read."""
    patience: int = ranged(2, least=1)
    """Epochs without a better macro F1 before training ends."""
    batch_size: int = ranged(64, least=1, most=MOST)
    lr: float = ranged(2e-3, above=0)
    """The highest learning rate; it rises for a tenth of the steps, then falls to zero."""
    dropout: float = ranged(0.1, least=0, below=1)
    weight_decay: float = ranged(0.01, least=0)
    eps: float = ranged(1e-12, above=0)
    """layer_norm_eps, for a new classifier. Large, it makes the network nearly linear: a word's
    weight then depends little on the words beside it, and all words have one."""
    blur: float = ranged(0.5, least=0, most=1)
    """The share of examples read as soft text."""
    smoothing: float = ranged(0.05, least=0, below=1)
    """The probability that the loss wants spread over all labels."""
    holdout: float = ranged(0.1, above=0, below=1)
    """The share of texts that choose the best epoch; and measure it, if there is no test."""
    lam: float = 2000.0
    """The weight that the guide suggests for itself."""
    seed: int = ranged(0, least=0, below=2**63)


def configure(assignments: Sequence[str]) -> GuideConfig:
    """Return the settings with `name=value` applied in order."""
    types = get_type_hints(GuideConfig)
    values = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if name not in types:
            raise ValueError(f"a guide has no setting {quote(name)}; {nearest(name, list(types))}")
        values[name] = parse(types[name], text, name)
    return GuideConfig(**values)


def check_config(config: GuideConfig) -> None:
    """Raise on settings that no guide can be trained with."""
    require_ranges(config)
    require(config.D % 32 == 0, "D", config.D, "heads are 32 wide; use a multiple of 32")
    check_lam(config.lam)

"""How a drafter is built and trained, as one frozen value.  [settings] -> texts, loss, loop"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_type_hints

from ssdlm.config import MOST, DrafterConfig, ranged, require_ranges
from ssdlm.denoiser.drafter import BaseNetwork
from ssdlm.settings import nearest, parse
from ssdlm.values import quote, require


@dataclass(frozen=True)
class DraftingConfig:
    """How a drafter is built and trained."""

    layers: int = ranged(2, least=1, most=8)
    """Its layers; the last one reads what the model's last layer has read."""
    hidden: int = ranged(576, least=1, most=MOST)
    """Width of their feed-forward parts."""
    rank: int = ranged(256, least=1, most=MOST)
    """Width of what a guess hands on to the next."""
    guesses: int = ranged(7, least=1, most=15)
    """Guesses written at once."""
    steps: int = ranged(4000, least=1)
    """Optimiser steps."""
    seconds: float = ranged(0.0, least=0)
    """End sooner, after so many seconds of training, the learning rate at 0; 0: no limit."""
    batch: int = ranged(64, least=1, most=MOST)
    """Sequences in a step."""
    max_len: int = ranged(256, least=16, most=MOST)
    """Tokens in a sequence."""
    anchors: int = ranged(24, least=1, most=MOST)
    """Places in each sequence after which is guessed."""
    own: int = ranged(0, least=0)
    """Texts that the model writes itself to be trained on, after beginnings of the data's."""
    own_share: float = ranged(0.5, least=0, most=1)
    """Their share of the sequences."""
    top_p: float = ranged(0.9, above=0, most=1)
    """Where the model's distributions are cut."""
    lr: float = ranged(3e-3, above=0)
    """Peak learning rate of vectors and of matrices that are not square."""
    muon_lr: float = ranged(0.02, above=0)
    """Peak learning rate of the layers' matrices, which Muon moves."""
    cooldown: float = ranged(0.5, least=0, most=1)
    """The share of all steps, the last ones, over which the learning rate falls."""
    ema: float = ranged(0.998, least=0, below=1)
    """Decay of the weights' moving average, which is what is written."""
    log_every: int = ranged(100, least=1)
    """Steps between lines of the log."""
    save_seconds: float = ranged(60.0, least=0)
    """Seconds between checkpoints."""
    measured: int = ranged(48, least=0)
    """Texts on which guesses are counted, after beginnings of the data's hold-out."""
    seed: int = ranged(0, least=0, below=2**63)

    def __post_init__(self) -> None:
        require_ranges(self)
        least = self.guesses + 9
        require(self.max_len > least, "max_len", self.max_len, f"use more than {least}")


def configure(assignments: Sequence[str]) -> DraftingConfig:
    """Return the settings with `name=value` applied in order."""
    types, config = get_type_hints(DraftingConfig), DraftingConfig()
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if name not in types:
            raise ValueError(
                f"a drafter has no setting {quote(name)}; {nearest(name, list(types))}"
            )
        if not equals:
            raise ValueError(f"setting {quote(assignment)} has no value; write key=value")
        config = replace(config, **{name: parse(types[name], text, name)})
    return config


def shape_of(
    config: DraftingConfig, network: BaseNetwork, *, base: str, digest: str
) -> DrafterConfig:
    """Return the sizes of a drafter for a model."""
    own, depth = network.config, network.config.num_layers
    require(config.layers <= depth, "layers", config.layers, f"the model has {depth}")
    # Evenly from the middle to the last one.
    step = depth / (2 * max(1, config.layers - 1))
    reads = tuple(depth - 1 - round(step * (config.layers - 1 - n)) for n in range(config.layers))
    return DrafterConfig(
        base=base,
        digest=digest,
        V=network.V,
        D=own.D,
        num_heads=own.num_heads,
        head_size=network.key_shape[1],
        reads=reads,
        hidden=config.hidden,
        rank=config.rank,
        num_guesses=config.guesses,
    )

"""Texts token by token by the context stream: the fast twin of `diffusion.autoregressive`.

batch -> [chain] -> engine.runners
"""

from __future__ import annotations

from typing import Any

from ssdlm.denoiser.slots import Network
from ssdlm.engine.batch import PLAIN, DecodeBatch, Traits
from ssdlm.ops.counters import GUMBEL
from ssdlm.ops.draws import draw_perturbed
from ssdlm.ops.rows import Rows


class Chain(DecodeBatch):
    """One row a pass: the last token, and what comes after it."""

    def __init__(self, denoiser: Network, traits: Traits = PLAIN, **sizes: Any) -> None:
        super().__init__(denoiser, traits, **sizes)
        self.rows = Rows.causal(1, self.device)

    def draw(self) -> None:
        here = self.here
        hidden = self.read(self.denoiser.embed(self.last[here]), 0)
        logits = self.slots.logits(hidden, self.head, is_single=True)
        logits, prior = self.biased(logits, self.prior)
        places = self.done[here].unsqueeze(1)
        settings = *self.settings(), places, GUMBEL, self.cuts
        self.drawn = draw_perturbed(self.masked(logits), prior, *settings)

    def commit(self) -> None:
        self.write(self.drawn, self.active)

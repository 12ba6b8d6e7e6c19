"""Blocks of the paper's encoder, all positions at once; every pass reads their contexts too.

window -> [encoder] -> engine.runners;  denoiser.padded runs the rows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.diffusion.grid import Grid
from ssdlm.engine.batch import PLAIN, DecodeBatch, Entry, Traits
from ssdlm.engine.path import Path
from ssdlm.engine.programs.window import Window
from ssdlm.ops.draws import draw
from ssdlm.ops.encoder import noised_weights
from ssdlm.shapes import Tensor

CONTEXT_STEP = 8
"""Contexts are padded to multiples of this."""


class EncoderWindow(Window):
    """Texts out of blocks that settle as a whole."""

    is_dense = True

    def __init__(
        self, denoiser: EncoderDenoiser, grid: Grid, traits: Traits = PLAIN, *, B: int, **sizes: Any
    ) -> None:
        self.capacity = sizes["capacity"]
        DecodeBatch.__init__(self, denoiser, traits, **sizes)
        self.follow(Path.of_block(grid, B))
        # By the number of passes done: all noise first, then what a step leaves (Eq. 18).
        a = grid.alpha_bar.flip(0).clone()
        a[0] = 0.0
        gains = denoiser.K * (1 - a).sqrt(), 2 * denoiser.K * a.sqrt(), grid.progress.flip(0)
        self.gain_z, self.gain_w, self.progress = (x.float().to(self.device) for x in gains)

    def set_up(self, capacity: int) -> None:
        self.padded = PaddedEncoder(self.denoiser)
        self.lengths = self.read_lengths = self.whole()
        self.prior = torch.zeros(self.padded.width, device=self.device)
        self.ids = self.whole(capacity)
        self.sizes = self.whole()
        """How much of each block is there: the last one may be short."""

    @torch.no_grad()
    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> Tensor:
        at = super().join(entries, slots, sources)
        for entry, slot in zip(entries, slots, strict=True):
            self.ids[slot, : len(entry.context)] = torch.tensor(entry.context, device=self.device)
            self.lengths[slot] = len(entry.context)
            self.sizes[slot] = min(self.W, entry.length)
        return at

    def make_room(self, length: int) -> None:
        """Contexts have room up to the capacity."""

    def read_contexts(self, ids: Tensor, at: Tensor) -> None:
        """Nothing is read ahead: `ids` has the contexts."""

    read_ids = read_contexts

    def read_blocks(self, at: Tensor) -> None:
        for slot in at.tolist():
            entry, end = self.entries[slot], int(self.lengths[slot]) + self.W
            left = entry.length + len(entry.context) - end
            if left > 0:  # else nobody reads it
                self.ids[slot, end - self.W : end] = self.tokens[slot]
                self.lengths[slot] = end
                self.sizes[slot] = min(self.W, left)

    def do(self, name: str, work: Any) -> None:
        longest = max(
            len(entry.context) + self.W * ((entry.length - 1) // self.W)
            for entry in self.entries.values()
        )
        self.width = min(-(-longest // CONTEXT_STEP) * CONTEXT_STEP, self.capacity)
        super().do(f"{name} {self.width}", work)

    def draw(self) -> None:
        """Noise the tokens, read them behind their contexts, draw anew."""
        here = self.here
        at = self.passes[here].clamp(max=self.T - 1)
        gains = self.gain_z[at], self.gain_w[at]
        weights, sums = noised_weights(
            self.tokens[here], *gains, self.seeds[here], at, self.normals[here],
            V=self.padded.V, width=self.padded.width, dtype=self.padded.dtype,
        )  # fmt: skip
        lengths, sizes = self.lengths[here], self.sizes[here]
        block = self.padded.embed_block(weights, sums, self.progress[at], lengths)
        context = self.padded.embed_context(self.ids[here, : self.width])
        logits = self.padded.logits(block, context, lengths, sizes)
        logits, prior = self.biased(logits, self.prior)
        settings = *self.settings(), at + 1, self.uniforms[here]
        self.drawn = draw(logits, prior, None, *settings, cuts=self.cuts)

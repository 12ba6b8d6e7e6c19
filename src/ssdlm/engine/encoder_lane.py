"""Blocks of an encoder side by side, all positions of each at once.

block_lane -> [encoder_lane] -> fleet;  denoiser.padded runs the rows
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.diffusion.grid import Grid
from ssdlm.engine.block_lane import BlockLane
from ssdlm.engine.lanes import Row, recorded
from ssdlm.ops.counters import NORMAL, NUM_STREAMS, UNIFORM
from ssdlm.ops.draws import draw
from ssdlm.ops.encoder import noised_weights

CONTEXT_STEP = 8
"""Contexts are padded to multiples of this."""


class EncoderLane(BlockLane):
    """Texts out of blocks that settle as a whole; every pass reads their contexts too."""

    def __init__(
        self,
        denoiser: EncoderDenoiser,
        grid: Grid,
        *,
        B: int,
        returns_logits: bool,
        num_slots: int,
        capacity: int,
    ) -> None:
        super().__init__(denoiser, T=grid.T, B=B, num_slots=num_slots)
        self.denoiser, self.returns_logits = denoiser, returns_logits
        self.padded = PaddedEncoder(denoiser)
        # By the number of passes done: all noise first, then what a step leaves (Eq. 18).
        a = grid.alpha_bar.flip(0).clone()
        a[0] = 0.0
        gains = denoiser.K * (1 - a).sqrt(), 2 * denoiser.K * a.sqrt(), grid.progress.flip(0)
        self.gain_z, self.gain_w, self.levels = (x.float().to(self.device) for x in gains)
        self.lengths = torch.zeros_like(self.seeds)
        self.ids = torch.zeros(num_slots, capacity, dtype=torch.int64, device=self.device)
        self.nothing = torch.zeros(self.padded.width, device=self.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        """One for each padded length of contexts."""

    def read_contexts(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        for row, slot in zip(rows, slots, strict=True):
            self.ids[slot, : len(row.context)] = torch.tensor(row.context, device=self.device)

    def read_blocks(self, slots: Sequence[int]) -> None:
        for slot in slots:  # only a last block is short, and nobody reads that
            end = self.texts[slot].length
            self.ids[slot, end - self.B : end] = self.tokens[slot]

    def start_blocks(self, slots: Sequence[int]) -> None:
        super().start_blocks(slots)
        lengths = [self.texts[slot].length for slot in slots]
        self.lengths[self.at(slots)] = torch.tensor(lengths, device=self.device)

    def repeat(self) -> None:
        longest = max(text.length for text in self.texts.values())
        width = min(-(-longest // CONTEXT_STEP) * CONTEXT_STEP, self.ids.shape[1])
        if self.device.type != "cuda":
            self.step(width)
            return
        if width not in self.graphs:
            self.graphs[width] = recorded(lambda: self.step(width), self.active)
        self.graphs[width].replay()

    def step(self, width: int) -> None:
        """Do one pass: noise the tokens, read them behind their contexts, draw anew."""
        at, stream = self.passes.clamp(max=self.T - 1), NUM_STREAMS * self.blocks
        gains = self.gain_z[at], self.gain_w[at]
        weights, sums = noised_weights(
            self.tokens, *gains, self.seeds, at, stream + NORMAL,
            V=self.padded.V, width=self.padded.width, dtype=self.padded.dtype,
        )  # fmt: skip
        block = self.padded.embed_block(weights, sums, self.levels[at], self.lengths)
        context = self.padded.embed_context(self.ids[:, :width])
        logits = self.padded.logits(block, context, self.lengths, self.sizes)
        top_ps = self.top_ps
        if self.returns_logits:  # a block ends as the likeliest tokens
            top_ps = torch.where(at == self.T - 1, 0.0, top_ps)
        settings = self.never, self.heats, top_ps, self.seeds, at + 1, stream + UNIFORM
        tokens = draw(logits, self.nothing, None, *settings)
        self.tokens.copy_(torch.where(self.active.bool().unsqueeze(1), tokens, self.tokens))
        self.passes.add_(self.active)

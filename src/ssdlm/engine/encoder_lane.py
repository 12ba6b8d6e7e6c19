"""Blocks of an encoder side by side, all positions of each at once.

block_lane -> [encoder_lane] -> fleet;  denoiser.padded runs the rows
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.denoiser.kernels import draw_kernels, encoder_kernels
from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.diffusion.grid import Grid
from ssdlm.diffusion.noise import NORMAL, NUM_STREAMS, UNIFORM, RowNoise
from ssdlm.diffusion.projection import sampling, suppress
from ssdlm.diffusion.simplex import to_logits
from ssdlm.engine.block_lane import BlockLane
from ssdlm.engine.lanes import Row, recorded

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
        self.padded = PaddedEncoder(denoiser) if PaddedEncoder.takes(denoiser) else None
        # By the number of passes done: all noise first, then what a step leaves (Eq. 18).
        a = grid.alpha_bar.flip(0).clone()
        a[0] = 0.0
        gains = denoiser.K * (1 - a).sqrt(), 2 * denoiser.K * a.sqrt(), grid.progress.flip(0)
        self.gain_z, self.gain_w, self.levels = (x.float().to(self.device) for x in gains)
        self.lengths = torch.zeros_like(self.seeds)
        self.ids = torch.zeros(num_slots, capacity, dtype=torch.int64, device=self.device)
        self.nothing = torch.zeros(self.padded.width if self.padded else 0, device=self.device)
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
        if self.device.type != "cuda":
            self.plain_step()
            return
        longest = max(text.length for text in self.texts.values())
        width = min(-(-longest // CONTEXT_STEP) * CONTEXT_STEP, self.ids.shape[1])
        if width not in self.graphs:
            self.graphs[width] = recorded(lambda: self.step(width), self.active)
        self.graphs[width].replay()

    def step(self, width: int) -> None:
        """Do one pass on a GPU: noise the tokens, read them behind their contexts, draw anew."""
        assert self.padded is not None
        at, stream = self.passes.clamp(max=self.T - 1), NUM_STREAMS * self.blocks
        gains = self.gain_z[at], self.gain_w[at]
        weights, sums = encoder_kernels().noised_weights(
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
        tokens = draw_kernels().draw(logits, self.nothing, None, *settings)
        self.tokens.copy_(torch.where(self.active.bool().unsqueeze(1), tokens, self.tokens))
        self.passes.add_(self.active)

    def plain_step(self) -> None:
        """Do one pass as the plain loop does, text by text."""
        K, V = self.denoiser.K, self.denoiser.V
        for slot in self.texts:
            size, length, done = (
                int(self.sizes[slot]),
                int(self.lengths[slot]),
                int(self.passes[slot]),
            )
            noise, where_ = RowNoise(self.seeds[slot : slot + 1]), {"block": int(self.blocks[slot])}
            z = noise.normal(**where_, step=done, B=size, V=V)
            data = to_logits(self.tokens[slot : slot + 1, :size], V=V, K=K)
            w_t = self.gain_w[done] / (2 * K) * data + self.gain_z[done] * z
            cache = self.denoiser.prefill(self.ids[slot : slot + 1, :length])
            logits = self.denoiser.denoise(cache, w_t, self.levels[done])
            never, top_p = int(self.never[slot]), float(self.top_ps[slot])
            logits = suppress(logits, (never,) if never >= 0 else ())
            u = noise.uniform(**where_, step=done + 1, B=size)
            is_end = self.returns_logits and done == self.T - 1
            tokens = (
                logits.argmax(-1) if is_end or top_p == 0 else sampling(K, top_p).draw(logits, u)
            )
            self.tokens[slot, :size] = tokens[0]
            self.passes[slot] += 1

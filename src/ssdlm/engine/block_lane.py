"""Blocks side by side, all positions of each at once (Algorithm 2), each at its own step.

lanes -> [block_lane] -> fleet;  denoiser.padded runs the rows, the plain twin is diffusion.sampler
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.denoiser.kernels import draw_kernels, encoder_kernels
from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.diffusion.grid import Grid
from ssdlm.diffusion.noise import NORMAL, NUM_STREAMS, UNIFORM, RowNoise
from ssdlm.diffusion.projection import sampling, suppress
from ssdlm.diffusion.simplex import to_logits
from ssdlm.engine.lanes import Lane, Row, Text, recorded

CONTEXT_STEP = 8
"""Contexts are padded to multiples of this."""


@dataclass
class Progress:
    """How far a text has come."""

    row: Row
    tokens: list[int]
    passes: int = 0
    """Passes of its block so far."""

    def size(self, B: int) -> int:
        """Return how long its block is; the last one may be short."""
        return min(B, self.row.length - len(self.tokens))


class BlockLane(Lane):
    """Texts out of blocks that settle as a whole, by the paper's own step and projection.

    A position's state is its latest token and fresh noise, so tokens are all that is kept.
    """

    reads_context = False

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
        self.denoiser, self.device, self.num_slots, self.B = denoiser, denoiser.device, num_slots, B
        self.T, self.returns_logits = grid.T, returns_logits
        self.padded = PaddedEncoder(denoiser) if PaddedEncoder.takes(denoiser) else None
        # By the number of passes done: all noise first, then what a step leaves (Eq. 18).
        a = grid.alpha_bar.flip(0).clone()
        a[0] = 0.0
        gains = denoiser.K * (1 - a).sqrt(), 2 * denoiser.K * a.sqrt(), grid.progress.flip(0)
        self.gain_z, self.gain_w, self.levels = (x.float().to(self.device) for x in gains)
        whole = {"device": self.device, "dtype": torch.int64}
        self.seeds, self.blocks, self.passes, self.active, self.lengths, self.sizes = (
            torch.zeros(num_slots, **whole) for _ in range(6)
        )
        self.never = torch.full((num_slots,), -1, **whole)
        self.top_ps = torch.ones(num_slots, device=self.device)
        self.heats = torch.ones(num_slots, device=self.device)
        self.tokens = torch.zeros(num_slots, B, **whole)
        self.ids = torch.zeros(num_slots, capacity, **whole)
        self.nothing = torch.zeros(self.padded.width if self.padded else 0, device=self.device)
        self.texts: dict[int, Progress] = {}
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        """One for each padded length of contexts."""

    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        for row, slot in zip(rows, slots, strict=True):
            self.texts[slot] = Progress(row, [])
            self.ids[slot, : len(row.context)] = torch.tensor(row.context, device=self.device)
            self.never[slot], self.top_ps[slot] = row.never, row.top_p
            self.seeds[slot], self.blocks[slot], self.active[slot] = row.seed, 0, 1
            self.start_block(slot)

    def start_block(self, slot: int) -> None:
        """Let a text's next block begin, as noise."""
        text = self.texts[slot]
        self.lengths[slot] = len(text.row.context) + len(text.tokens)
        self.sizes[slot], self.passes[slot] = text.size(self.B), 0

    def leave(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.texts[slot]
            self.active[slot] = 0

    def passes_for(self, num_tokens: int) -> int:
        del num_tokens
        return min(self.T - text.passes for text in self.texts.values())

    @torch.no_grad()
    def run(self, count: int) -> None:
        longest = max(len(text.row.context) + len(text.tokens) for text in self.texts.values())
        width = min(-(-longest // CONTEXT_STEP) * CONTEXT_STEP, self.ids.shape[1])
        for _ in range(count):
            self.repeat(width)
        for text in self.texts.values():
            text.passes += count
        self.take_blocks([slot for slot, text in self.texts.items() if text.passes == self.T])

    def repeat(self, width: int) -> None:
        """Do one pass over contexts of up to `width` tokens."""
        if self.device.type != "cuda":
            self.plain_step()
            return
        if width not in self.graphs:
            active = self.active.clone()
            self.active.zero_()  # nobody moves while it is tried out
            self.graphs[width] = recorded(lambda: self.step(width))
            self.active.copy_(active)
        self.graphs[width].replay()

    def take_blocks(self, slots: list[int]) -> None:
        """Put decided blocks behind their texts, and begin the next ones."""
        decided = self.tokens.tolist() if slots else []
        for slot in slots:
            text = self.texts[slot]
            size, start = text.size(self.B), len(text.row.context) + len(text.tokens)
            text.tokens, text.passes = text.tokens + decided[slot][:size], 0
            if len(text.tokens) < text.row.length:
                self.ids[slot, start : start + size] = self.tokens[slot, :size]
                self.blocks[slot] += 1
                self.start_block(slot)

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

    def read(self) -> list[Text]:
        texts = []
        for slot in range(self.num_slots):
            tokens = self.texts[slot].tokens if slot in self.texts else []
            texts.append(Text(tokens, [self.T * (1 + at // self.B) for at in range(len(tokens))]))
        return texts

"""Blocks of our denoiser side by side, whatever the path of noise levels through a block.

block_lane -> [window_lane] -> fleet;  denoiser.slots runs the rows behind their contexts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.slots import Slots
from ssdlm.diffusion.grid import Grid
from ssdlm.engine.block_lane import BlockLane
from ssdlm.engine.lanes import Contexts, Row, padded_length, recorded
from ssdlm.ops.counters import NORMAL, NUM_STREAMS, UNIFORM
from ssdlm.ops.draws import draw, new_evidence_
from ssdlm.ops.rows import Behind, Rows
from ssdlm.shapes import Tensor


class WindowLane(BlockLane):
    """Texts out of blocks of one length, whose positions have levels of their own or share one.

    A slot holds a text but for its last token, which every pass reads again, beside the block.
    """

    def __init__(
        self, denoiser: BlockDenoiser, grid: Grid, *, B: int, num_slots: int, capacity: int
    ) -> None:
        super().__init__(denoiser, T=grid.T, B=B, num_slots=num_slots)
        self.denoiser, self.prior = denoiser, denoiser.prior
        self.slots = Slots(denoiser, num_slots, capacity)
        self.contexts = Contexts(denoiser, self.slots)
        self.rows, self.decided = Rows.window(B, self.device), Rows.causal(B, self.device)
        self.head, self.blank = denoiser.head.to(denoiser.dtype), denoiser.blank()
        # By the number of passes done: (T, B) levels, and the gains of noise and token at them.
        progress = grid.progress.flip(0)[: self.T]
        progress = progress.unsqueeze(1).expand(-1, B) if progress.dim() == 1 else progress
        a = grid.alpha_bar.flip(0)[: self.T].reshape(self.T, -1).expand(-1, B)
        levels = progress.float().to(self.device)
        gain = denoiser.gain(levels).cpu() * denoiser.K
        is_open = (progress > 0) & (progress < 1)
        gains = (torch.where(is_open, gain * part, 0.0) for part in ((1 - a).sqrt(), 2 * a.sqrt()))
        self.gain_z, self.gain_w = (one.float().to(self.device).contiguous() for one in gains)
        self.levels = levels.contiguous()
        self.last = torch.zeros(num_slots, 1, dtype=torch.int64, device=self.device)
        self.is_moving = torch.zeros_like(self.active)
        """Whose block is decided and not read yet."""
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def read_contexts(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        at = self.at(slots)
        lengths = [len(row.context) - 1 for row in rows]
        padded = padded_length(max(lengths))
        table = [
            (length, row.context[-1], *row.context[:-1]) + (0,) * (padded - length)
            for row, length in zip(rows, lengths, strict=True)
        ]
        whole = torch.tensor(table, device=self.device)
        self.slots.lengths[at], self.last[at, 0] = whole[:, 0], whole[:, 1]
        self.contexts.read(whole[:, 2:].contiguous(), at)

    def read_blocks(self, slots: Sequence[int]) -> None:
        self.is_moving[self.at(slots)] = 1
        self.do("read", self.read_decided)
        self.is_moving.zero_()

    def repeat(self) -> None:
        self.do("step", self.step)

    def do(self, name: str, work: Callable[[], None]) -> None:
        """Do one kind of pass, on a GPU as one graph."""
        if self.device.type != "cuda":
            work()
            return
        if name not in self.graphs:
            self.graphs[name] = recorded(work, self.active, self.is_moving)
        self.graphs[name].replay()

    def read_decided(self) -> None:
        """Read the blocks of those who move on; what others have behind their text is noise."""
        ids = torch.cat((self.last, self.tokens[:, :-1]), 1)
        behind = Behind(self.decided, self.slots.all_slots, self.slots.lengths)
        self.slots.run(self.denoiser.embed(ids), behind, slice(0, 1))
        self.slots.lengths.add_(self.B * self.is_moving)
        is_moving = self.is_moving.bool().unsqueeze(1)
        self.last.copy_(torch.where(is_moving, self.tokens[:, -1:], self.last))

    def step(self) -> None:
        """Do one pass: noise the tokens, read them behind their contexts, draw anew."""
        at = self.passes.clamp(max=self.T - 1)
        levels, ell = self.levels[at], self.evidence(at)
        behind = Behind(self.rows, self.slots.all_slots, self.slots.lengths)
        hidden = self.slots.run(self.inputs(ell, levels), behind, slice(1, None))
        tokens = self.draw(self.slots.logits(hidden, self.head), ell, at)
        is_open = self.active.bool().unsqueeze(1) & (levels > 0)  # what is clean stays
        self.tokens.copy_(torch.where(is_open, tokens, self.tokens))
        self.passes.add_(self.active)

    def evidence(self, at: Tensor) -> Tensor:
        """Return what the state of each position says by itself: its token under fresh noise."""
        shape = self.num_slots, self.B, self.denoiser.V
        ell = torch.empty(shape, device=self.device)
        streams = NUM_STREAMS * self.blocks + NORMAL
        settings = self.tokens, self.gain_z[at], self.gain_w[at], self.seeds, at, streams
        new_evidence_(ell, *settings, first=0)
        return ell

    def inputs(self, ell: Tensor, levels: Tensor) -> Tensor:
        """Return what the rows read: the last word, and the block behind it."""
        tables, word = self.denoiser.tables(), self.denoiser.embed(self.last)
        inside = (self.prior + ell).softmax(-1).to(word.dtype) @ tables
        level = levels.unsqueeze(-1)
        soft = torch.where(level == 0, F.embedding(self.tokens, tables), inside)
        soft = torch.where(level == 1, self.blank, soft)
        left = torch.cat((word, soft[:, :-1, : word.shape[-1]]), 1)
        noisy = self.denoiser.embed_noisy(soft, left, levels, self.blank)
        return torch.cat((word, noisy), 1)

    def draw(self, logits: Tensor, ell: Tensor, at: Tensor) -> Tensor:
        """Draw a token for each position from what the network says without the prior."""
        streams = NUM_STREAMS * self.blocks + UNIFORM
        settings = self.never, self.heats, self.top_ps, self.seeds, at + 1, streams
        return draw(logits, self.prior, ell, *settings)

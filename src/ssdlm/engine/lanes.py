"""Texts side by side through one pass of the network, each at its own place.

    requests -> [lanes] -> texts;  denoiser.slots runs the rows, diffusion.sliding is the plain twin

A lane has a number of slots. A text joins a free one, takes a token a pass, and leaves; what the
others do is nothing to it. All that a pass reads and writes lies in tensors of fixed shape, and no
pass looks at a number: a GPU repeats it as one graph, and is asked for tokens once a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.slots import Behind, Rows, Slots
from ssdlm.diffusion import schedule
from ssdlm.diffusion.grid import Sliding
from ssdlm.diffusion.noise import NORMAL, UNIFORM, RowNoise
from ssdlm.diffusion.projection import Truncation, sampling, suppress
from ssdlm.shapes import Tensor

PREFILL = 64
"""Contexts are read in runs whose lengths are multiples of this."""


@dataclass(frozen=True)
class Row:
    """A text that joins a lane."""

    context: tuple[int, ...]
    seed: int
    length: int
    top_p: float
    temperature: float
    never: int
    """A token that is not written; -1 for none."""


class SlidingLane:
    """Texts out of sliding windows, one position a pass (`diffusion.sliding`)."""

    def __init__(
        self, denoiser: BlockDenoiser, *, width: float, num_slots: int, capacity: int, most: int
    ) -> None:
        self.denoiser, self.device = denoiser, denoiser.device
        self.num_slots, self.most = num_slots, most
        # Far from both ends of a text all passes are alike; a long text's middle shows how.
        count = int(width) + 3
        steady = list(Sliding(4 * count, width).moves([4 * count], [4 * count]))[2 * count]
        self.W = steady.window.stop - steady.window.start
        after = steady.levels.progress[0]
        self.slots = Slots(denoiser, num_slots, capacity)
        self.rows = Rows.window(self.W, self.device)
        self.prior, self.blank = denoiser.prior.contiguous(), denoiser.blank()
        whole = {"device": self.device, "dtype": torch.int64}
        self.seeds = torch.zeros(num_slots, **whole)
        self.steps = torch.ones(num_slots, **whole)
        self.done = torch.zeros(num_slots, **whole)
        self.active = torch.zeros(num_slots, **whole)
        self.never = torch.full((num_slots,), -1, **whole)
        self.last = torch.zeros(num_slots, 1, **whole)
        self.text = torch.zeros(num_slots, most + 1, **whole)
        self.heats = torch.ones(num_slots, device=self.device)
        self.top_ps = torch.ones(num_slots, device=self.device)
        self.set_levels(after)
        self.graph: torch.cuda.CUDAGraph | None = None

    def set_levels(self, after: Tensor) -> None:
        """Keep what the levels after a pass mean for the evidence of what stays open."""
        V, num_open = self.denoiser.V, self.W - 1
        levels = after[1:].float()
        gain = self.denoiser.gain(levels) * self.denoiser.K
        alpha = schedule.cosine(levels)
        self.gain_z = (gain * (1 - alpha).sqrt()).float().to(self.device)
        self.gain_w = (2 * gain * alpha.sqrt()).float().to(self.device)
        self.after = levels.to(self.device)
        self.levels = torch.ones(self.num_slots, self.W, device=self.device)
        self.ell = torch.zeros(self.num_slots, self.W, V if num_open else 0, device=self.device)

    @torch.no_grad()
    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        """Put texts into free slots: their contexts are read, but for the last token."""
        at = torch.tensor(slots, device=self.device)
        for target, values in (
            (self.seeds, [row.seed for row in rows]),
            (self.never, [row.never for row in rows]),
            (self.heats, [row.temperature for row in rows]),
            (self.top_ps, [row.top_p for row in rows]),
            (self.last, [[row.context[-1]] for row in rows]),
        ):
            target[at] = torch.tensor(values, device=self.device)
        self.steps[at], self.done[at], self.active[at] = 1, 0, 1
        self.levels[at], self.ell[at] = 1.0, 0.0
        lengths = [len(row.context) - 1 for row in rows]
        self.slots.lengths[at] = torch.tensor(lengths, device=self.device)
        padded = -(-max(lengths) // PREFILL) * PREFILL
        if padded:
            ids = [[*row.context[:-1], *[0] * (padded - len(row.context) + 1)] for row in rows]
            x = self.denoiser.embed(torch.tensor(ids, device=self.device))
            start = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
            self.slots.run(x, Behind(Rows.causal(padded, self.device), at, start), slice(0, 1))

    def leave(self, slots: Sequence[int]) -> None:
        """Free slots; what is in them is written over by whoever joins."""
        self.active[torch.tensor(slots, device=self.device)] = 0

    @torch.no_grad()
    def run(self, count: int) -> None:
        """Do some passes; no text may have fewer to go."""
        if self.device.type != "cuda":
            for _ in range(count):
                self.step()
            return
        if self.graph is None:
            self.capture()
        assert self.graph is not None
        for _ in range(count):
            self.graph.replay()

    def capture(self) -> None:
        """Record a pass as one graph; nobody is active while it is tried out."""
        active = self.active.clone()
        self.active.zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()
        self.active.copy_(active)

    def step(self) -> None:
        """Do one pass: read the tokens decided last, denoise the windows, draw, move on."""
        denoiser, D = self.denoiser, self.denoiser.config.D
        word = denoiser.embed(self.last)
        if self.W == 1:  # a position without evidence starts from the word before it
            x = word.expand(-1, 2, -1).contiguous()
        else:
            soft = (self.prior + self.ell[:, :-1]).softmax(-1).to(word.dtype) @ denoiser.tables()
            blank = self.blank.expand(len(word), 1, -1)
            soft = torch.cat((soft, blank), 1)
            left = torch.cat((word, soft[:, :-1, :D]), 1)
            noisy = denoiser.embed_noisy(soft, left, self.levels, self.blank)
            x = torch.cat((word, noisy), 1)
        lengths = self.slots.lengths
        behind = Behind(self.rows, self.slots.all_slots, lengths)
        hidden = self.slots.run(x, behind, slice(1, None))
        tokens = self.draw(hidden @ denoiser.head.to(hidden.dtype).T)
        self.text.scatter_(1, self.done.unsqueeze(1), tokens[:, :1])
        is_active = self.active.bool().unsqueeze(1)
        self.last.copy_(torch.where(is_active, tokens[:, :1], self.last))
        if self.W > 1:
            self.renoise(tokens, is_active)
        for counter in (lengths, self.done, self.steps):
            counter.add_(self.active)

    def draw(self, logits: Tensor) -> Tensor:
        """Draw a token for each open position from what the network says without the prior."""
        evidence = self.ell if self.W > 1 else None
        if self.slots.is_fast:
            from ssdlm.denoiser.kernels import rows as kernels

            settings = self.never, self.heats, self.top_ps, self.seeds, self.steps
            return kernels.draw(logits, self.prior, evidence, *settings, UNIFORM)
        return torch.cat([self.plain_draw(logits, row) for row in range(self.num_slots)])

    def plain_draw(self, logits: Tensor, row: int) -> Tensor:
        """Draw one text's tokens as the plain loop does."""
        ell = torch.zeros_like(logits[row : row + 1]).float()
        ell = self.ell[row : row + 1] if self.W > 1 else ell
        whole = logits[row : row + 1].float() + self.prior + ell
        never = int(self.never[row])
        whole = suppress(whole, (never,) if never >= 0 else ())
        top_p = float(self.top_ps[row])
        cut = Truncation(lambda w_t, _: w_t, top_p, float(self.heats[row]))
        u = RowNoise(self.seeds[row : row + 1]).uniform(
            block=0, step=int(self.steps[row]), B=self.W
        )
        return sampling(self.denoiser.K, 1.0 if top_p > 0 else 0.0).draw(cut(whole, ell, u), u)

    def renoise(self, tokens: Tensor, is_active: Tensor) -> None:
        """Give what stays open its evidence at the next level, a place further to the left."""
        new = torch.empty_like(self.ell[:, 1:])
        kept = tokens[:, 1:].contiguous()
        gains = self.gain_z, self.gain_w
        if self.slots.is_fast:
            from ssdlm.denoiser.kernels import rows as kernels

            kernels.new_evidence_(new, kept, *gains, self.seeds, self.steps, NORMAL)
        else:
            for row in range(self.num_slots):
                noise = RowNoise(self.seeds[row : row + 1])
                z = noise.normal(
                    block=0, step=int(self.steps[row]), B=self.W - 1, V=self.denoiser.V, first=1
                )
                new[row] = self.gain_z.unsqueeze(-1) * z[0]
                new[row].scatter_add_(1, kept[row].unsqueeze(1), self.gain_w.unsqueeze(1))
        is_active = is_active.unsqueeze(-1)
        self.ell[:, :-1] = torch.where(is_active, new, self.ell[:, :-1])
        levels = torch.where(is_active[..., 0], self.after, self.levels[:, :-1])
        self.levels[:, :-1] = levels

    def read(self) -> tuple[list[list[int]], list[int]]:
        """Return the tokens of every slot so far, and how many there are; a GPU is waited for."""
        both = torch.cat((self.text, self.done.unsqueeze(1)), 1).tolist()
        return [row[:-1][: row[-1]] for row in both], [row[-1] for row in both]

"""Texts side by side through one pass of the network, each at its own place.

    schedule -> [lanes] -> texts;  denoiser.slots runs the rows, the plain twins are in diffusion

A lane has a number of slots. A text joins a free one, takes its tokens pass by pass, and leaves;
what the others do is nothing to it. All that a pass reads and writes lies in tensors of fixed
shape, and no pass looks at a number: a GPU repeats it as one graph, and is asked for tokens once a
block, or after every pass where a grammar has to know them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F

from ssdlm.constraints.placement import Placement
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.slots import Slots
from ssdlm.diffusion import schedule
from ssdlm.diffusion.grid import Sliding
from ssdlm.engine.held import Held
from ssdlm.ops.counters import GUMBEL, NORMAL, UNIFORM
from ssdlm.ops.draws import draw, draw_perturbed, new_evidence_
from ssdlm.ops.rows import Behind, Rows
from ssdlm.shapes import Tensor

VOCABULARY_STEP = 64
"""On a GPU the vocabulary may be padded to a multiple of this, by tokens that are never drawn."""
PREFILL = 64
"""Contexts are read in runs whose lengths are multiples of this."""


@dataclass(frozen=True)
class Row:
    """A text that joins a lane."""

    context: tuple[int, ...]
    seed: int
    top_p: float
    temperature: float
    never: int
    """A token that is not written; -1 for none."""
    length: int = 0
    """Tokens to write, for a lane in which texts get on at different speeds."""
    placement: Placement | None = None
    """What the text is held to, in a lane for such texts."""


class Text(NamedTuple):
    """A text as far as it has come."""

    tokens: list[int]
    when: list[int]
    """The pass that decided each token, counted from 1."""


@runtime_checkable
class Lane(Protocol):
    """Slots for texts of one kind: what a schedule knows of them."""

    num_slots: int
    reads_context = True
    """Whether a pass of its own reads a text's context."""

    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        """Put texts into free slots."""
        ...

    def leave(self, slots: Sequence[int]) -> None:
        """Free slots; what is in them is written over by whoever joins."""
        ...

    def passes_for(self, num_tokens: int) -> int:
        """Return how many passes may go by before somebody looks, with so many tokens to go."""
        ...

    def run(self, count: int) -> None:
        """Do some passes; no text may have fewer to go."""
        ...

    def read(self) -> list[Text]:
        """Return the texts of all slots so far; a GPU is waited for."""
        ...


class Contexts:
    """Reads contexts into slots, one alone by a graph."""

    def __init__(self, denoiser: BlockDenoiser, slots: Slots) -> None:
        self.denoiser, self.slots = denoiser, slots
        self.readers: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        """Graphs that read one context, by its padded length."""

    def read(self, ids: Tensor, at: Tensor) -> None:
        """Read padded contexts (N, C) into slots, if there is anything to read."""
        if ids.shape[1] and len(ids) == 1 and ids.is_cuda:
            self.read_one(ids, at)
        elif ids.shape[1]:
            self.read_all(ids, at)

    def read_all(self, ids: Tensor, at: Tensor) -> None:
        """Read padded contexts into slots from their beginning."""
        behind = Behind(Rows.causal(ids.shape[1], ids.device), at, torch.zeros_like(at))
        self.slots.run(self.denoiser.embed(ids), behind, slice(0, 1))

    def read_one(self, ids: Tensor, at: Tensor) -> None:
        """Read one padded context, by a graph for its length."""
        key = ids.shape[1]
        if key not in self.readers:
            inputs = ids.clone(), at.clone()
            self.readers[key] = recorded(lambda: self.read_all(*inputs)), *inputs
        graph, own_ids, own_at = self.readers[key]
        own_ids.copy_(ids)
        own_at.copy_(at)
        graph.replay()


class TokenLane(Lane):
    """Texts that get on token by token, each with its own seed, temperature, nucleus and place."""

    rows: Rows
    """How a pass's rows stand behind a slot."""

    def __init__(
        self,
        denoiser: BlockDenoiser,
        *,
        num_slots: int,
        capacity: int,
        is_padded: bool = True,
        is_held: bool = False,
        is_invariant: bool = False,
    ) -> None:
        self.denoiser, self.device, self.num_slots = denoiser, denoiser.device, num_slots
        self.slots = Slots(denoiser, num_slots, capacity, is_invariant=is_invariant)
        head, prior = denoiser.head.to(denoiser.dtype), denoiser.prior
        if is_padded and self.device.type == "cuda":  # odd widths are slow to multiply
            more = -len(prior) % VOCABULARY_STEP
            head = F.pad(head, (0, 0, 0, more)) if more else head
            prior = F.pad(prior, (0, more), value=-torch.inf)
        self.prior = self.added = prior.contiguous()
        """What a draw adds to the network's logits."""
        self.head = head
        self.held = Held(num_slots, len(prior), self.device) if is_held else None
        whole = {"device": self.device, "dtype": torch.int64}
        self.seeds = torch.zeros(num_slots, **whole)
        self.done = torch.zeros(num_slots, **whole)
        self.active = torch.zeros(num_slots, **whole)
        self.never = torch.full((num_slots,), -1, **whole)
        self.last = torch.zeros(num_slots, 1, **whole)
        self.text = torch.zeros(num_slots, capacity + 1, **whole)
        self.heats = torch.ones(num_slots, device=self.device)
        self.top_ps = torch.ones(num_slots, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.contexts = Contexts(denoiser, self.slots)

    @torch.no_grad()
    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        """Put texts into free slots: their contexts are read, but for the last token."""
        lengths = [len(row.context) - 1 for row in rows]
        padded = padded_length(max(lengths))
        # Everything in one table: each way to a GPU takes as long as a layer.
        whole = [
            (slot, row.seed, row.never, row.context[-1], length, 0, 1, *row.context[:-1])
            + (0,) * (padded - length)
            for slot, row, length in zip(slots, rows, lengths, strict=True)
        ]
        table = torch.from_numpy(np.array(whole)).to(self.device)
        real = torch.tensor([(row.temperature, row.top_p) for row in rows], device=self.device)
        at, ids = table[:, 0].contiguous(), table[:, 7:].contiguous()
        counts = self.seeds, self.never, self.last[:, 0], self.slots.lengths, self.done, self.active
        for number, target in enumerate(counts, 1):
            target[at] = table[:, number]
        self.heats[at], self.top_ps[at] = real[:, 0], real[:, 1]
        if self.held is not None:
            self.held.join([row.placement for row in rows], slots)
        self.contexts.read(ids, at)

    def leave(self, slots: Sequence[int]) -> None:
        self.active[torch.tensor(slots, device=self.device)] = 0
        if self.held is not None:
            self.held.leave(slots)

    @torch.no_grad()
    def run(self, count: int) -> None:
        if self.device.type == "cuda" and self.graph is None:
            self.graph = recorded(self.step, self.active)
        step = self.step if self.graph is None else self.graph.replay
        for _ in range(count):
            step()
            if self.held is not None:
                self.held.read(self.last[:, 0].tolist())

    def step(self) -> None:
        """Do one pass: read what was decided last, draw, move on."""
        raise NotImplementedError

    def passes_for(self, num_tokens: int) -> int:
        return num_tokens

    def legal(self, logits: Tensor) -> Tensor:
        """Return logits (N, W, V) with -inf for tokens that may not come next."""
        if self.held is None:
            return logits
        allowed = self.held.allowed[:, None, : logits.shape[-1]]
        return logits.masked_fill(~allowed, -torch.inf)

    def write(self, tokens: Tensor) -> None:
        """Put a decided token (N, 1) at the end of each active text."""
        self.text.scatter_(1, self.done.unsqueeze(1), tokens)
        self.last.copy_(torch.where(self.active.bool().unsqueeze(1), tokens, self.last))
        self.slots.lengths.add_(self.active)
        self.done.add_(self.active)

    def read(self) -> list[Text]:
        rows = torch.cat((self.done.unsqueeze(1), self.text), 1).tolist()
        return [Text(row[1 : 1 + row[0]], list(range(1, 1 + row[0]))) for row in rows]


class SlidingLane(TokenLane):
    """Texts out of sliding windows, one position a pass (`diffusion.sliding`)."""

    def __init__(
        self,
        denoiser: BlockDenoiser,
        *,
        width: float,
        num_slots: int,
        capacity: int,
        is_held: bool = False,
    ) -> None:
        levels = steady_levels(width)
        self.W = len(levels)
        sizes = {"num_slots": num_slots, "capacity": capacity, "is_held": is_held}
        super().__init__(denoiser, **sizes, is_padded=self.W == 1)  # wider ones keep their evidence
        self.rows, self.blank = Rows.window(self.W, self.device), denoiser.blank()
        # What stays open goes on to these levels: noise by one gain, the token by another.
        self.after = levels[1:].float().to(self.device)
        gain, a = denoiser.gain(self.after) * denoiser.K, schedule.cosine(self.after)
        self.gain_z, self.gain_w = (gain * (1 - a).sqrt()).float(), (2 * gain * a.sqrt()).float()
        self.levels = torch.ones(num_slots, self.W, device=self.device)
        self.uniform = torch.full_like(self.seeds, UNIFORM)
        self.normal = torch.full_like(self.seeds, NORMAL)
        V = denoiser.V if self.W > 1 else 0
        self.ell = torch.zeros(num_slots, self.W, V, device=self.device)

    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        super().join(rows, slots)
        at = torch.tensor(slots, device=self.device)
        self.levels[at], self.ell[at] = 1.0, 0.0  # all noise

    def step(self) -> None:
        behind = Behind(self.rows, self.slots.all_slots, self.slots.lengths)
        hidden = self.slots.run(self.inputs(), behind, slice(1, None))
        tokens = self.draw(self.slots.logits(hidden, self.head))
        if self.W > 1:
            self.renoise(tokens)
        self.write(tokens[:, :1])

    def inputs(self) -> Tensor:
        """Return what the rows read: a decided word, and the open positions behind it."""
        word = self.denoiser.embed(self.last)
        if self.W == 1:  # a position without evidence starts from the word before it
            return word.expand(-1, 2, -1).contiguous()
        # The last of them has just come in, and has no evidence.
        inside = (self.prior + self.ell[:, :-1]).softmax(-1).to(word.dtype)
        blank = self.blank.expand(len(word), 1, -1)
        soft = torch.cat((inside @ self.denoiser.tables(), blank), 1)
        left = torch.cat((word, soft[:, :-1, : word.shape[-1]]), 1)
        noisy = self.denoiser.embed_noisy(soft, left, self.levels, self.blank)
        return torch.cat((word, noisy), 1)

    def draw(self, logits: Tensor) -> Tensor:
        """Draw a token for each open position from what the network says without the prior."""
        settings = self.never, self.heats, self.top_ps, self.seeds, self.done + 1, self.uniform
        evidence = self.ell if self.W > 1 else None
        return draw(self.legal(logits), self.added, evidence, *settings)

    def renoise(self, tokens: Tensor) -> None:
        """Give what stays open its evidence at the next level, a place further to the left."""
        kept, is_active = tokens[:, 1:].contiguous(), self.active.bool().view(-1, 1)
        new = torch.empty_like(self.ell[:, 1:])
        settings = self.gain_z, self.gain_w, self.seeds, self.done + 1, self.normal
        new_evidence_(new, kept, *settings, first=1)
        self.ell[:, :-1] = torch.where(is_active.unsqueeze(-1), new, self.ell[:, :-1])
        self.levels[:, :-1] = torch.where(is_active, self.after, self.levels[:, :-1])


class ChainLane(TokenLane):
    """Texts token by token by the context stream (`diffusion.autoregressive`)."""

    def __init__(
        self,
        denoiser: BlockDenoiser,
        *,
        num_slots: int,
        capacity: int,
        is_held: bool = False,
        is_invariant: bool = False,
    ) -> None:
        super().__init__(
            denoiser,
            num_slots=num_slots,
            capacity=capacity,
            is_held=is_held,
            is_invariant=is_invariant,
        )
        self.rows = Rows.causal(1, self.device)

    def step(self) -> None:
        behind = Behind(self.rows, self.slots.all_slots, self.slots.lengths)
        hidden = self.slots.run(self.denoiser.embed(self.last), behind)
        logits = self.legal(self.slots.logits(hidden, self.head))
        settings = self.never, self.heats, self.top_ps, self.seeds, self.done.unsqueeze(1)
        self.write(draw_perturbed(logits, self.prior, *settings, GUMBEL))


def recorded(work: Callable[[], None], *who: Tensor) -> torch.cuda.CUDAGraph:
    """Return work on a GPU as one graph; it is done twice before, to get kernels ready.

    `who` tell which texts get on with it, and are 0 meanwhile.
    """
    before = [one.clone() for one in who]
    for one in who:
        one.zero_()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        work()
    for one, old in zip(who, before, strict=True):
        one.copy_(old)
    return graph


def padded_length(length: int) -> int:
    """Return the length at which a context of so many tokens is read."""
    return -(-length // PREFILL) * PREFILL


@cache
def steady_levels(width: float) -> Tensor:
    """Return the levels of a window that moves a position a pass, after a pass."""
    count = 4 * (int(width) + 3)
    # Far from both ends of a text all passes are alike.
    return list(Sliding(count, width).moves([count], [count]))[count // 2].levels.progress[0]

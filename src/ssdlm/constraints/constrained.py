"""A denoiser that writes only what is allowed: pinned tokens, words to hold, words to leave out.

    denoiser -> control -> [constraint] -> projection

It wraps a denoiser and is one itself. Every row has a plan, a place for each thing that must stand
in its text, and an automaton. The plan is legal before the first call; the calls made while all is
still noise move words to where the network wants them, and no move is made that leaves no legal
text. What the logits then say is read from left to right, and where the best token would be the
wrong one, all wrong ones are taken out. So the argmax is legal after every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from ssdlm.constraints.placement import FREE, Plan
from ssdlm.denoiser import Around, Denoiser, remember
from ssdlm.diffusion.projection import Projection, shunned
from ssdlm.diffusion.simplex import to_logits
from ssdlm.shapes import Block, Context, Levels, Simplex, Tensor

SETTLED = 0.6
"""The progress at which words stay where they are; above it the network knows little yet."""


@dataclass
class ConstrainedCache:
    """The context and the denoiser's own cache; each row's plan, and where its text has come to."""

    context: Context
    tried: list[list[Plan]]
    """The plans each row has had in this block; the last one counts."""
    states: list[int]
    written: int = 0
    """Tokens of the text in the context."""
    inner: Any = None
    is_ready: bool = False
    """Whether a call has been made for this block."""

    @property
    def plans(self) -> list[Plan]:
        return [plans[-1] for plans in self.tried]


@dataclass
class constrained(Around):
    """A denoiser under one plan a row; `guard` does the same for what a projection draws."""

    denoiser: Denoiser
    plans: Sequence[Plan]
    has_levels: bool = False
    """Whether it takes a noise level for each position: then what is pinned is marked as clean."""
    unwanted: tuple[int, ...] = ()
    """Tokens that are not written where another is legal."""
    call: Call | None = field(default=None, repr=False)

    @property
    def max_len(self) -> None:
        """The sampler hands over the whole text; what the denoiser has no room for is cut here."""
        return None

    def prefill(self, context: Context) -> ConstrainedCache:
        states = [made.demand.automaton.start for made in self.plans]
        return ConstrainedCache(context, [[made] for made in self.plans], states)

    def extend(self, cache: ConstrainedCache, block: Block) -> ConstrainedCache:
        tried, states = [], []
        for plans, state, tokens in zip(cache.tried, cache.states, block.tolist(), strict=True):
            # A row that was done before the others has kept the text of an earlier plan.
            ends = [(made, made.read(state, cache.written, tokens)) for made in reversed(plans)]
            made, end = next((made, end) for made, end in ends if end is not None)
            tried.append([made])
            states.append(end)
        context, written = torch.cat((cache.context, block), 1), cache.written + block.shape[1]
        return ConstrainedCache(context, tried, states, written, cache.inner)

    def denoise(self, cache: ConstrainedCache, w_t: Simplex, progress: Tensor) -> Simplex:
        B = w_t.shape[1]
        levels = progress.reshape(*progress.shape, *[1] * (2 - progress.dim())).expand(len(w_t), B)
        is_open = not cache.is_ready or bool((levels > SETTLED).all())
        if not cache.is_ready:
            cache.inner = remember(self.denoiser, cache.inner, cache.context, B=B)
            cache.is_ready = True
        pins = pinned(cache, B, is_open).to(w_t.device)
        logits = self.look(cache, w_t, progress, levels, pins)
        if is_open:
            for plans, said, state in zip(cache.tried, logits, cache.states, strict=True):
                made = settle_words(plans[-1], said, state, cache.written)
                plans += [made] if made is not plans[-1] else []
        decided = torch.full(levels.shape, FREE, device=w_t.device)
        if bool((levels == 0).any()):
            decided = w_t.argmax(-1).masked_fill(levels > 0, FREE)
        self.call = Call(cache, logits, decided.tolist())
        return self.call.restrict(pinned(cache, B, False).to(w_t.device))

    def look(
        self, cache: ConstrainedCache, w_t: Simplex, progress: Tensor, levels: Levels, pins: Block
    ) -> Simplex:
        """Return the denoiser's logits for a block in which what is pinned is clean."""
        is_pinned = pins >= 0
        if bool(is_pinned.any()):
            clean = to_logits(pins.clamp(min=0), V=self.V, K=self.K)
            w_t = torch.where(is_pinned.unsqueeze(-1), clean, w_t)
            progress = levels.masked_fill(is_pinned, 0.0) if self.has_levels else progress
        return shunned(self.denoiser.denoise(cache.inner, w_t, progress), self.unwanted)

    def guard(self, project: Projection) -> Projection:
        """Return the projection with illegal tokens replaced; for texts that end as w_0."""

        def project_legally(logits: Simplex, u: Levels) -> Simplex:
            w_hat = project(logits, u)
            assert self.call is not None, "a projection follows a call"
            drawn = w_hat.argmax(-1)
            walks = self.call.walks(drawn)
            legal = torch.tensor([[r.token for r in walk] for walk in walks]).to(drawn.device)
            clean = to_logits(legal, V=self.V, K=self.K)
            return torch.where((legal == drawn).unsqueeze(-1), w_hat, clean)

        return project_legally


class Reading(NamedTuple):
    """One position as it is read: its token, and the legal ones where those were looked up."""

    token: int
    legal: np.ndarray | None


@dataclass(frozen=True)
class Call:
    """What the denoiser said, and the plans under which it is read."""

    cache: ConstrainedCache
    logits: Simplex
    decided: list[list[int]]
    """The tokens at positions that are clean already, FREE elsewhere."""

    def walks(self, tokens: Block) -> list[list[Reading]]:
        """Read each row from left to right."""
        return [self.walk(row, row_tokens) for row, row_tokens in enumerate(tokens.tolist())]

    def walk(self, row: int, tokens: list[int]) -> list[Reading]:
        """Return a row's legal tokens: its own where they are legal, else the best that is."""
        made, state = self.cache.plans[row], self.cache.states[row]
        readings: list[Reading] = []
        for index, token in enumerate(tokens):
            place = self.cache.written + index
            fixed = max(self.decided[row][index], made.slots[place])
            reading = Reading(fixed if fixed >= 0 else token, None)
            if fixed < 0 and not made.takes(state, place, token):
                legal = made.choices(state, place)
                reading = Reading(best(self.logits[row, index], legal), legal)
            state = made.step(state, place, reading.token)
            readings.append(reading)
        return readings

    def restrict(self, pins: Block) -> Simplex:
        """Return the logits without what is illegal; pinned tokens alone have any."""
        is_pinned = pins >= 0
        logits = self.logits.masked_fill(is_pinned.unsqueeze(-1), -torch.inf)
        rows, places = is_pinned.nonzero(as_tuple=True)
        logits[rows, places, pins[rows, places]] = 0.0
        for row, walk in enumerate(self.walks(self.logits.argmax(-1))):
            for index, reading in enumerate(walk):
                if reading.legal is not None:
                    legal = torch.from_numpy(reading.legal).to(logits.device)
                    # Finite, lest the best legal token be as impossible as the rest.
                    left = logits[row, index].clamp(min=torch.finfo(logits.dtype).min)
                    logits[row, index] = left.masked_fill(~legal, -torch.inf)
        return logits


def best(logits: Tensor, legal: np.ndarray) -> int:
    """Return the legal token with the largest logit."""
    ids = torch.from_numpy(legal.nonzero()[0]).to(logits.device)
    return int(ids[logits[ids].argmax()])


def pinned(cache: ConstrainedCache, B: int, is_open: bool) -> Block:
    """Return the block's pinned tokens (N, B), -1 where there are none; while open, no words."""
    start, end = cache.written, cache.written + B
    rows = []
    for made in cache.plans:
        slots = made.slots[start:end]
        if is_open:
            pins = made.demand.pins
            slots = [pins.get(place, FREE) for place in range(start, start + len(slots))]
        rows.append([max(slot, FREE) for slot in slots])
    return torch.tensor(rows, dtype=torch.long)


def settle_words(made: Plan, logits: Tensor, state: int, start: int) -> Plan:
    """Return the plan with each word of this block where the network finds it most probable."""
    B = len(logits)
    for number, (word, place) in enumerate(zip(made.demand.words, made.places, strict=True)):
        if not start <= place < start + B:
            continue
        scores = placement_scores(logits, word.tokens)
        for index in sorted(range(len(scores)), key=lambda i: -scores[i]):
            elsewhere = made.moved(number, start + index)
            if elsewhere is not None and elsewhere.safe[start][state]:
                made = elsewhere
                break
    return made


def placement_scores(logits: Tensor, tokens: tuple[int, ...]) -> list[float]:
    """Return the log-probability of the tokens at each position where they fit into the block."""
    log_probs = logits.float().log_softmax(-1)[:, list(tokens)]
    count = max(0, len(logits) - len(tokens) + 1)
    columns = [log_probs[offset : offset + count, offset] for offset in range(len(tokens))]
    return torch.stack(columns).sum(0).tolist() if count else []

"""A denoiser that writes only legal text: required words, forbidden words, pinned tokens.

    denoiser -> guidance -> [constrained] -> projection

It wraps a denoiser and is one itself, so that the sampler cannot know about constraints. They hold
by three means:

1. Before the first call each row has a placement (`placement`): a position for every required word
   and pinned token, chosen such that some legal text has them there. It has an automaton too
   (`automaton`), whose state after a token tells which tokens may follow: those that complete no
   forbidden word, and from which the rest of the text can still be written.
2. While a block is still mostly noise, the network's logits decide where its required words go.
   Each moves to where its tokens are most probable, unless no legal text would be left. Then it
   stays there, and the network sees it as clean text, just as pinned tokens.
3. After every call the argmax of the logits is read from left to right through the automaton. Where
   the best token is illegal, all illegal tokens at that position get the logit -inf, and reading
   goes on from the best legal one. So the argmax is a legal text after every call; whichever call
   is the last, its text is legal. The other logits stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ssdlm.constraints.placement import FREE, Placement
from ssdlm.diffusion.denoiser import Denoiser, DenoiserWrapper, advance, reads_rows, remember
from ssdlm.diffusion.evidence import as_levels
from ssdlm.diffusion.projection import Projection
from ssdlm.diffusion.simplex import to_logits
from ssdlm.ops.nucleus import suppress
from ssdlm.shapes import Block, Context, Levels, Simplex, Tensor

SETTLED = 0.6
"""The progress at which words stay where they are; above it the network knows little yet."""


@dataclass
class ConstrainedCache:
    """The context and the denoiser's own cache; each row's placement and state."""

    context: Context
    history: list[list[Placement]]
    """The placements that each row has had in this block; the last one counts."""
    states: list[int]
    """The state of each row's automaton where the block begins."""
    written: int = 0
    """Tokens of the text in the context."""
    inner: Any = None
    """The denoiser's own cache; None before the first call."""
    is_read: bool = False
    """Whether `inner` has read all of the context, for this block's length."""

    @property
    def placements(self) -> list[Placement]:
        return [placements[-1] for placements in self.history]


@dataclass
class constrained(DenoiserWrapper):
    """A denoiser held to one placement per row."""

    denoiser: Denoiser
    placements: Sequence[Placement]
    suppressed: tuple[int, ...] = ()
    """Tokens that are not written where another is legal."""
    prediction: Prediction | None = field(default=None, repr=False)
    """That of the latest call."""
    latest: ConstrainedCache | None = field(default=None, repr=False)
    """The cache of the latest call that was about a whole block."""
    seen: tuple[Tensor, ...] = field(default=(), repr=False)
    """The state and the levels of the latest call, where it is about the text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.max_len = None  # the whole text comes here; what the denoiser has no room for is cut

    @property
    def is_free(self) -> bool:
        """Whether nothing is asked of one position more than of another."""
        return all(placement.is_free for placement in self.placements)

    def prefill(self, context: Context) -> ConstrainedCache:
        states = [placement.constraint.automaton.start for placement in self.placements]
        return ConstrainedCache(context, [[placement] for placement in self.placements], states)

    def extend(self, cache: ConstrainedCache, block: Block) -> ConstrainedCache:
        history, states = [], []
        for placements, state, tokens in zip(
            cache.history, cache.states, block.tolist(), strict=True
        ):
            # A row that was done before the others has kept the text of an earlier placement.
            for placement in reversed(placements):
                end = placement.read(state, cache.written, tokens)
                if end is not None:
                    history.append([placement])
                    states.append(end)
                    break
        assert len(states) == len(cache.states), "a block that no placement allows was decided"
        context, written = torch.cat((cache.context, block), 1), cache.written + block.shape[1]
        return ConstrainedCache(context, history, states, written, cache.inner)

    def denoise(
        self,
        cache: ConstrainedCache,
        w_t: Simplex,
        progress: Tensor,
        previous: Simplex | None = None,
    ) -> Simplex:
        del previous
        B = w_t.shape[1]
        levels = as_levels(progress).expand(len(w_t), B)
        may_move, pins = may_move_words(cache, levels), self.visible_pins(cache, levels)
        self.latest = cache
        self.read_context(cache, B)
        logits = self.denoise_with_pins(cache, w_t, progress, levels, pins)
        if may_move:
            for row, placements in enumerate(cache.history):
                moved = move_words(placements[-1], logits[row], cache.states[row], cache.written)
                placements += [moved] if moved is not placements[-1] else []
        return self.hold(cache, logits, w_t, levels, has_own_levels=progress.dim() == 2)

    def next_pins(self, levels: Levels) -> Block:
        """Return the tokens (N, B) that the next call shows the network, FREE for none.

        It is about the same block as the latest one, at these levels, unless that was a block's
        last: then words have not been placed yet.
        """
        cache = self.latest
        if cache is None or bool((levels == 1).all()):  # a block begins
            written = 0 if cache is None else cache.written + levels.shape[1]
            cache = replace(self.prefill(levels[:, :0].long()), written=written)
        return self.visible_pins(cache, levels)

    def visible_pins(self, cache: ConstrainedCache, levels: Levels) -> Block:
        """Return the tokens (N, B) that the network sees as clean text, FREE for none.

        Words are shown once they stay where they are.
        """
        with_words = not may_move_words(cache, levels)
        return pinned_tokens(cache, levels.shape[1], with_words=with_words).to(self.device)

    def read_and_denoise(
        self, cache: ConstrainedCache, new: Context, w_t: Simplex, progress: Tensor
    ) -> tuple[ConstrainedCache, Simplex]:
        # The prompt comes first, and then the text.
        cache = replace(cache, context=new) if cache.inner is None else self.extend(cache, new)
        if not self.is_free:  # what must stand somewhere is seen before the window comes to it
            return cache, self.denoise(cache, w_t, progress)
        inner, logits, _ = advance(self.denoiser, cache.inner, cache.context, w_t, progress)
        cache = replace(cache, inner=inner, is_read=True)
        logits = suppress(logits, self.suppressed)
        return cache, self.hold(cache, logits, w_t, progress, has_own_levels=True)

    def read_context(self, cache: ConstrainedCache, B: int) -> None:
        """Let the denoiser read the context: only now is it known what has room beside a block."""
        if not cache.is_read:
            cache.inner = remember(self.denoiser, cache.inner, cache.context, B=B)
            cache.is_read = True

    def hold(
        self,
        cache: ConstrainedCache,
        logits: Simplex,
        w_t: Simplex,
        levels: Levels,
        *,
        has_own_levels: bool,
    ) -> Simplex:
        """Return a call's logits with -inf for illegal tokens; a window slides out over the end."""
        room = self.placements[0].constraint.length - cache.written
        logits, beyond = logits[:, :room], logits[:, room:]
        w_t, levels = self.seen = w_t[:, :room], levels[:, :room]
        decided = torch.full(levels.shape, FREE, device=w_t.device)
        if bool((levels == 0).any()):
            decided = w_t.argmax(-1).masked_fill(levels > 0, FREE)
        # With a level for each position, one that is noise alone is not being decided yet.
        is_drawn = levels < 1 if has_own_levels else torch.ones_like(levels, dtype=torch.bool)
        self.prediction = self.predict(cache, logits, decided.tolist(), is_drawn.tolist())
        pins = pinned_tokens(cache, w_t.shape[1]).to(w_t.device)
        held = self.prediction.mask_illegal(pins)
        return torch.cat((held, beyond), 1) if beyond.shape[1] else held

    def predict(
        self,
        cache: ConstrainedCache,
        logits: Simplex,
        decided: list[list[int]],
        is_drawn: list[list[bool]],
    ) -> Prediction:
        """Return the logits of a call with what they are held to."""
        del is_drawn
        return Prediction(cache, logits, decided)

    def denoise_with_pins(
        self, cache: ConstrainedCache, w_t: Simplex, progress: Tensor, levels: Levels, pins: Block
    ) -> Simplex:
        """Return the denoiser's logits for a block in which pinned positions are clean."""
        is_pinned = pins >= 0
        if bool(is_pinned.any()):
            clean = to_logits(pins.clamp(min=0), V=self.V, K=self.K)
            w_t = torch.where(is_pinned.unsqueeze(-1), clean, w_t)
            progress = levels.masked_fill(is_pinned, 0.0) if reads_rows(self) else progress
        return suppress(self.denoiser.denoise(cache.inner, w_t, progress), self.suppressed)

    def legal_projection(self, project: Projection) -> Projection:
        """Return the projection with illegal tokens replaced; for texts that end as w_0.

        A projection draws, so that a legal argmax of the logits does not make its tokens legal.
        """

        def project_legally(logits: Simplex, u: Levels) -> Simplex:
            assert self.prediction is not None, "a projection follows a call"
            room = self.prediction.logits.shape[1]
            w_hat = self.draw_legally(project, logits[:, :room], u[:, :room])
            if room == logits.shape[1]:
                return w_hat
            return torch.cat((w_hat, project(logits[:, room:], u[:, room:])), 1)

        return project_legally

    def draw_legally(self, project: Projection, logits: Simplex, u: Levels) -> Simplex:
        """Return the projection of the latest call's logits, illegal tokens replaced."""
        assert self.prediction is not None
        w_hat = project(logits, u)
        drawn = w_hat.argmax(-1)
        legal = torch.tensor(
            [
                [choice.token for choice in self.prediction.read(row, tokens)]
                for row, tokens in enumerate(drawn.tolist())
            ]
        ).to(drawn.device)
        clean = to_logits(legal, V=self.V, K=self.K)
        return torch.where((legal == drawn).unsqueeze(-1), w_hat, clean)


class Choice(NamedTuple):
    """The legal token at one position, and all legal ones (V,) if they had to be looked up."""

    token: int
    legal: np.ndarray | None


@dataclass(frozen=True)
class Prediction:
    """The logits of one call, with the placements to which they are held."""

    cache: ConstrainedCache
    logits: Simplex
    decided: list[list[int]]
    """The tokens at positions that are clean already, FREE elsewhere."""

    def read(self, row: int, tokens: list[int]) -> list[Choice]:
        """Return a row's tokens from left to right, an illegal one replaced by the best legal."""
        placement, state = self.cache.placements[row], self.cache.states[row]
        if placement.allows_all:
            slots = placement.slots[self.cache.written : self.cache.written + len(tokens)]
            fixed = map(max, self.decided[row], slots)
            both = zip(fixed, tokens, strict=True)
            return [Choice(own if own >= 0 else token, None) for own, token in both]
        choices: list[Choice] = []
        for index, token in enumerate(tokens):
            position = self.cache.written + index
            fixed = max(self.decided[row][index], placement.slots[position])
            choice = Choice(fixed if fixed >= 0 else token, None)
            # Nearly all tokens are legal: only where one is not are all the others looked up.
            if fixed < 0 and not placement.is_legal(state, position, token):
                legal = placement.legal_tokens(state, position)
                ids = torch.from_numpy(legal.nonzero()[0]).to(self.logits.device)
                choice = Choice(int(ids[self.logits[row, index, ids].argmax()]), legal)
            state = placement.step(state, position, choice.token)
            choices.append(choice)
        return choices

    def mask_illegal(self, pins: Block) -> Simplex:
        """Return the logits with -inf for illegal tokens and beside pinned ones."""
        is_pinned = pins >= 0
        logits = self.logits.masked_fill(is_pinned.unsqueeze(-1), -torch.inf)
        rows, indices = is_pinned.nonzero(as_tuple=True)
        logits[rows, indices, pins[rows, indices]] = 0.0
        for row, tokens in enumerate(self.logits.argmax(-1).tolist()):
            for index, choice in enumerate(self.read(row, tokens)):
                if choice.legal is not None:
                    legal = torch.from_numpy(choice.legal).to(logits.device)
                    # Finite, lest the best legal token be as impossible as the rest.
                    left = logits[row, index].clamp(min=torch.finfo(logits.dtype).min)
                    logits[row, index] = left.masked_fill(~legal, -torch.inf)
        return logits


def may_move_words(cache: ConstrainedCache, levels: Levels) -> bool:
    """Tell whether a block's required words may still move: at first, and in much noise."""
    return not cache.is_read or bool((levels > SETTLED).all())


def pinned_tokens(cache: ConstrainedCache, B: int, *, with_words: bool = True) -> Block:
    """Return the block's pinned tokens (N, B), FREE where there are none, with required words."""
    rows = [one.tokens(cache.written, B, with_words=with_words) for one in cache.placements]
    return torch.tensor(rows, dtype=torch.long)


def move_words(placement: Placement, logits: Tensor, state: int, start: int) -> Placement:
    """Return the placement with each word of this block where the network finds it most likely."""
    B = len(logits)
    words = zip(placement.constraint.words, placement.positions, strict=True)
    for number, (word, position) in enumerate(words):
        if not start <= position < start + B:
            continue
        scores = word_scores(logits, word.tokens)
        for index in sorted(range(len(scores)), key=lambda i: -scores[i]):
            moved = placement.move(number, start + index)
            if moved is not None and moved.safe[start][state]:
                placement = moved
                break
    return placement


def word_scores(logits: Tensor, tokens: tuple[int, ...]) -> list[float]:
    """Return the log-probability of the tokens at each position where they fit into the block."""
    log_probs = logits.float().log_softmax(-1)[:, list(tokens)]
    count = max(0, len(logits) - len(tokens) + 1)
    columns = [log_probs[offset : offset + count, offset] for offset in range(len(tokens))]
    return torch.stack(columns).sum(0).tolist() if count else []

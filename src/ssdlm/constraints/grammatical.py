"""A denoiser whose texts match a grammar as a whole.

    denoiser -> guidance -> [grammatical] -> projection

The support is exact: a text never leaves the states of the automaton from which it can be finished
in the room there is. Where it could end, end-of-text may follow, and after that anything.

The law depends on what is decided together. Tokens drawn in one pass are independent, given what
the network says. Of such tokens the law given that they match is known, by messages from the end of
the block to its start: m_i(s) = sum over x of p_i(x) m_i+1(s'), with s' the state after x, is the
chance of a match from state s on. From left to right, x is drawn in proportion to p_i(x) m_i+1(s').
A position that is noise alone while others are not is not being decided, and all that is asked of
it is that there is a way to the end: m is 1 or 0. So with one position at a time illegal tokens are
left out, and the rest stay in proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch

from ssdlm.constraints.constrained import ConstrainedCache, Prediction, constrained
from ssdlm.constraints.grammars.kinds import KindTable
from ssdlm.constraints.placement import BOUNDARY, FREE
from ssdlm.diffusion.projection import Projection, Truncate, untruncated
from ssdlm.diffusion.sampler import Step
from ssdlm.diffusion.simplex import to_logits
from ssdlm.shapes import Block, Levels, Simplex, Tensor

LEAST = 1e-290
"""What a message is at least where there is a way to the end, so that it has a logarithm."""


@dataclass
class grammatical(constrained):
    """A denoiser held to one grammar per row."""

    ends_as_drawn: bool = False
    """Whether a text ends as it is drawn (w_0), and not as the argmax of logits."""
    is_weighed: bool = False
    """Whether to keep what draws are worth."""
    truncate: Truncate = untruncated
    """How logits are cut before tokens are drawn, to know their chances without the grammar."""
    seen: tuple[Tensor, ...] = field(default=(), repr=False)
    """The state and the levels of the latest call."""
    log_weights: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False)
    """Of the latest draw (N, b): log p/q of each token, where p is what the network says of it
    without the grammar, and q its chance under it. With illegal tokens left out and no more, that
    is the log of the probability that legal ones have together. Multiplied by the weights of all
    of its tokens, each of the draw that decided it, a text has the law given a match again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # A token that stands behind the window would have to be seen.
        is_free = all(set(placement.slots) == {FREE} for placement in self.placements)
        self.has_windows = self.denoiser.has_windows and is_free

    def denoise_window(
        self, cache: ConstrainedCache, w_t: Simplex, progress: Tensor, tokens: Block, window: slice
    ) -> Tensor:
        self.read_context(cache, w_t.shape[1])
        logits = self.denoiser.denoise_window(cache.inner, w_t, progress, tokens, window)
        before = tokens[:, : window.start].tolist()
        states = [
            placement.read(state, cache.written, row)
            for placement, state, row in zip(cache.placements, cache.states, before, strict=True)
        ]
        here = replace(cache, states=states, written=cache.written + window.start)
        return self.hold(here, logits, w_t[:, window], progress[:, window], has_own_levels=True)

    def hold(
        self,
        cache: ConstrainedCache,
        logits: Simplex,
        w_t: Simplex,
        levels: Levels,
        *,
        has_own_levels: bool,
    ) -> Simplex:
        self.seen = w_t, levels
        return super().hold(cache, logits, w_t, levels, has_own_levels=has_own_levels)

    def predict(
        self,
        cache: ConstrainedCache,
        logits: Simplex,
        decided: list[list[int]],
        is_drawn: list[list[bool]],
    ) -> Prediction:
        return GrammarPrediction(cache, logits, decided, is_drawn, self.ends_as_drawn)

    def legal_projection(self, project: Projection) -> Projection:
        """Return the projection with the tokens of a row drawn one after another, so they match."""

        def project_legally(logits: Simplex, u: Levels) -> Simplex:
            prediction = cast(GrammarPrediction, self.prediction)  # a projection follows a call
            if not self.ends_as_drawn:
                logits = prediction.logits  # what the call returned is about its argmax alone
            w_hat = torch.empty_like(logits)
            if self.is_weighed:
                self.log_weights = logits.new_zeros(logits.shape[:2])
                free = self.truncate(prediction.logits, *self.seen)
            for row in range(len(logits)):
                drawing = Drawing(project, u[row : row + 1], w_hat[row], self.K)
                if self.is_weighed:
                    choices = free[row], prediction.logits[row]
                    drawing = Weighing(drawing, choices, self.log_weights[row])
                for index, token in prediction.walk(row, logits[row], drawing).items():
                    drawing.put(index, token)
            return w_hat

        return project_legally


@dataclass(frozen=True)
class Drawing:
    """Chooses a row's tokens by a projection."""

    project: Projection
    u: Levels
    """The row's uniforms (1, B)."""
    w_hat: Tensor
    """What is projected (B, V), filled in position by position."""
    K: float

    def __call__(self, index: int, logits: Tensor) -> int:
        """Return the token at a position."""
        self.w_hat[index] = self.project(logits[None, None], self.u[:, index : index + 1])[0, 0]
        token = int(self.w_hat[index].argmax())
        if logits[token] == -torch.inf:  # a nucleus of all was rounded to more
            token = int(logits.argmax())
            self.put(index, token)
        return token

    def put(self, index: int, token: int) -> None:
        """Set the token at a position."""
        tokens = torch.tensor([[token]], device=self.w_hat.device)
        self.w_hat[index] = to_logits(tokens, V=self.w_hat.shape[-1], K=self.K)[0, 0]


@dataclass(frozen=True)
class Weighing:
    """Chooses a row's tokens by a projection, and keeps what they are worth."""

    drawing: Drawing
    choices: tuple[Tensor, ...]
    """What the network says without the grammar (B, V): cut to its nucleus, and whole."""
    log_weights: Tensor
    """Those of the row (B,), filled in position by position."""

    def __call__(self, index: int, logits: Tensor) -> int:
        """Return the token at a position."""
        token = self.drawing(index, logits)
        for choice in self.choices:
            p = choice[index].log_softmax(-1)[token]
            if p > -torch.inf:  # else it was cut, and nothing legal was left
                self.log_weights[index] = p - logits.log_softmax(-1)[token]
                break
        return token

    def put(self, index: int, token: int) -> None:
        """Set the token at a position."""
        self.drawing.put(index, token)


@dataclass(frozen=True)
class Reading:
    """Chooses a row's likeliest tokens, and keeps the logits that it saw."""

    logits: Tensor
    """Those of the row (B, V), filled in position by position."""

    def __call__(self, index: int, logits: Tensor) -> int:
        """Return the token at a position."""
        self.logits[index] = logits
        return int(logits.argmax())


@dataclass(frozen=True)
class GrammarPrediction(Prediction):
    """The logits of one call, with the grammars to which they are held."""

    is_drawn: list[list[bool]]
    """Which positions are being decided: what the network says of them counts for those before."""
    ends_as_drawn: bool

    def table(self, row: int) -> KindTable:
        """Return the table of a row's automaton."""
        return cast(KindTable, self.cache.placements[row].constraint.automaton.next_state)

    def fixed(self, row: int, index: int) -> int:
        """Return the token that a position has already, or less than 0."""
        slot = self.cache.placements[row].slots[self.cache.written + index]
        return max(self.decided[row][index], slot)

    def mask_illegal(self, pins: Block) -> Simplex:
        """Return the logits, -inf beside pinned tokens and where a token fits into no text.

        Where the text is the argmax, they are those along the best text, read from the left.
        """
        is_pinned = pins >= 0
        logits = self.logits.masked_fill(is_pinned.unsqueeze(-1), -torch.inf)
        rows, indices = is_pinned.nonzero(as_tuple=True)
        logits[rows, indices, pins[rows, indices]] = 0.0
        for row in range(len(logits)):
            if self.ends_as_drawn:
                self.mask_impossible(row, logits[row])
                continue
            self.walk(row, self.logits[row], Reading(logits[row]))
        return logits

    def mask_impossible(self, row: int, logits: Tensor) -> None:
        """Set the logits (B, V) to -inf of tokens that no text has there, whatever is before."""
        placement, table = self.cache.placements[row], self.table(row)
        kind_of = torch.from_numpy(table.kind_of).to(logits.device)
        states = np.arange(table.num_states) == self.cache.states[row]
        for index in range(len(logits)):
            position = self.cache.written + index
            fixed = self.fixed(row, index)
            if fixed >= 0:
                after = np.zeros_like(states)
                for state in states.nonzero()[0].tolist():
                    after[int(table[state, fixed])] = True
                states = after & placement.safe[position + 1]
                continue
            kinds, states = table.spread(states, placement.safe[position + 1])
            possible = torch.from_numpy(kinds).to(logits.device)[kind_of]
            # Finite, lest the best legal token be as impossible as the rest.
            logits[index] = logits[index].clamp(min=torch.finfo(logits.dtype).min)
            logits[index].masked_fill_(~possible, -torch.inf)

    def walk(
        self, row: int, logits: Tensor, choose: Callable[[int, Tensor], int]
    ) -> dict[int, int]:
        """Choose a row's tokens from left to right; return those that were fixed, by index.

        `choose` gets an index and the logits there (V,), given all tokens before, and returns the
        token.
        """
        placement, state = self.cache.placements[row], self.cache.states[row]
        table, messages = self.table(row), self.messages(row, logits)
        kind_of = torch.from_numpy(table.kind_of).to(logits.device)
        fixed: dict[int, int] = {}
        for index in range(len(logits)):
            position = self.cache.written + index
            token = self.fixed(row, index)
            if token >= 0:
                fixed[index] = token
            else:
                after = table.after_kinds(state)
                weights = np.where(
                    placement.safe[position + 1][after], messages[index + 1][after], 0
                )
                with np.errstate(divide="ignore"):
                    bias = torch.from_numpy(np.log(weights)).to(logits)[kind_of]
                if (allowed := self.allowed(row, index)) is not None:
                    bias = bias.masked_fill(~allowed, -torch.inf)
                held = logits[index] + bias
                if not bool(held.max() > -torch.inf):  # none of the legal ones was left by a cut
                    held = self.logits[row, index].clamp(min=torch.finfo(held.dtype).min) + bias
                token = choose(index, held)
            state = placement.step(state, position, token)
        return fixed

    def allowed(self, row: int, index: int) -> Tensor | None:
        """Return the tokens (V,) that what is required allows at a position; None for all."""
        placement, position = self.cache.placements[row], self.cache.written + index
        needs_boundary, is_early = placement.slots[position] == BOUNDARY, position <= placement.last
        if not (needs_boundary or is_early):
            return None
        allowed = placement.constraint.automaton.allowed_tokens(needs_boundary, is_early)
        return torch.from_numpy(allowed).to(self.logits.device)

    def messages(self, row: int, logits: Tensor) -> list[np.ndarray]:
        """Return the message (S,) before each position of the block, and at its end.

        Each is up to a factor, which no choice depends on.
        """
        placement, table = self.cache.placements[row], self.table(row)
        end = self.cache.written + len(logits)
        messages = [placement.safe[end].astype(float)]
        kind_of = torch.from_numpy(table.kind_of).to(logits.device).long()
        for index in range(len(logits) - 1, -1, -1):
            safe, after = placement.safe[self.cache.written + index], messages[-1]
            fixed = self.fixed(row, index)
            if fixed >= 0:
                before = after[table[:, fixed]]
            elif self.is_drawn[row][index]:
                probs = logits[index].double().softmax(-1)
                if (allowed := self.allowed(row, index)) is not None:
                    probs = probs * allowed
                weights = torch.zeros(table.num_kinds, dtype=probs.dtype, device=probs.device)
                weights.index_add_(0, kind_of, probs)
                before = table.message(weights.cpu().numpy(), after)
            else:
                before = safe.astype(float)
            peak = float(before.max(where=safe, initial=0.0)) or 1.0
            messages.append(np.where(safe, np.maximum(before / peak, LEAST), 0.0))
        return messages[::-1]


def weighed(steps: Iterator[Step], denoiser: grammatical) -> Iterator[Step]:
    """Yield a denoiser's steps, each with what the tokens are worth that it has decided."""
    level = torch.ones(0)
    for step in steps:
        before = level if len(level) else torch.ones(len(step.progress))
        level = torch.zeros_like(before) if step.is_last else step.progress
        is_new = ((before > 0) & (level == 0))[step.window]
        log_weight = (denoiser.log_weights * is_new.to(denoiser.device)).sum(1)
        yield replace(step, log_weight=log_weight)
        level = torch.ones(0) if step.is_last else level

"""Tokens of several rows chosen from left to right, so that each row matches its grammar.

    logits -> messages from the end to the start -> [matching: position by position, all rows]

What the network says stays on its device. The probabilities of the kinds of tokens come from there
together, and at each position the tokens that all rows have chosen: a GPU is waited for once a
position, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch

from ssdlm.constraints.constrained import Prediction
from ssdlm.constraints.grammars.kinds import KindTable
from ssdlm.constraints.placement import BOUNDARY
from ssdlm.diffusion.projection import Projection
from ssdlm.diffusion.simplex import to_logits
from ssdlm.shapes import Block, Levels, Simplex, Tensor

LEAST = 1e-290
"""What a message is at least where there is a way to the end, so that it has a logarithm."""

Choose = Callable[[int, Tensor, Tensor], Tensor]
"""From an index, some rows (n,) and their logits there (n, V) to their tokens (n,)."""


@dataclass(frozen=True)
class Drawing:
    """Chooses tokens by a projection."""

    project: Projection
    u: Levels
    """The uniforms (N, B)."""
    w_hat: Simplex
    """What is projected, filled in position by position."""
    K: float

    def __call__(self, index: int, rows: Tensor, logits: Tensor) -> Tensor:
        """Return the tokens of some rows at a position."""
        w_hat = self.project(logits.unsqueeze(1), self.u[rows, index].unsqueeze(1))
        drawn = w_hat[:, 0].argmax(-1)
        # A nucleus of all may be rounded to more; then the best is taken.
        is_legal = logits.gather(1, drawn.unsqueeze(1)) > -torch.inf
        tokens = torch.where(is_legal[:, 0], drawn, logits.argmax(-1))
        clean = to_logits(tokens.unsqueeze(1), V=logits.shape[-1], K=self.K)
        chosen = torch.where(is_legal, w_hat[:, 0], clean[:, 0].to(w_hat))
        self.w_hat[rows, index] = chosen.to(self.w_hat)
        return tokens


@dataclass(frozen=True)
class Weighing:
    """Chooses tokens by a projection, and keeps what they are worth."""

    drawing: Drawing
    choices: tuple[Simplex, ...]
    """What the network says without the grammar: cut to its nucleus, and whole."""
    log_weights: Tensor
    """Filled in position by position (N, B)."""

    def __call__(self, index: int, rows: Tensor, logits: Tensor) -> Tensor:
        """Return the tokens of some rows at a position."""
        tokens = self.drawing(index, rows, logits)
        cut, whole = (log_prob(choice[rows, index], tokens) for choice in self.choices)
        # One that was cut is drawn where nothing legal was left.
        p = torch.where(cut > -torch.inf, cut, whole)
        worth = (p - log_prob(logits, tokens)).to(self.log_weights)
        self.log_weights[rows, index] = worth.masked_fill(p == -torch.inf, 0.0)
        return tokens


@dataclass(frozen=True)
class Reading:
    """Chooses the likeliest tokens, and keeps the logits that it saw."""

    logits: Simplex
    """Filled in position by position."""

    def __call__(self, index: int, rows: Tensor, logits: Tensor) -> Tensor:
        """Return the tokens of some rows at a position."""
        self.logits[rows, index] = logits
        return logits.argmax(-1)


def log_prob(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities (n,) of tokens (n,) by logits (n, V)."""
    return logits.log_softmax(-1).gather(1, tokens.unsqueeze(1))[:, 0]


@dataclass(frozen=True)
class GrammarPrediction(Prediction):
    """The logits of one call, with the grammars to which they are held."""

    is_drawn: list[list[bool]]
    """Which positions are being decided: what the network says of them counts for those before."""
    ends_as_drawn: bool

    @cached_property
    def tables(self) -> list[KindTable]:
        """The tables of the rows' automata."""
        placements = self.cache.placements
        return [cast(KindTable, one.constraint.automaton.next_state) for one in placements]

    @cached_property
    def kinds_of(self) -> dict[int, Tensor]:
        """The kind of each token (V,), by the table's id, where the logits are."""
        device = self.logits.device
        return {
            id(table): torch.from_numpy(table.kind_of).long().to(device) for table in self.tables
        }

    @cached_property
    def fixed(self) -> list[list[int]]:
        """The token that each position has already, or less than 0."""
        start, B = self.cache.written, self.logits.shape[1]
        return [
            [max(both) for both in zip(decided, one.slots[start : start + B], strict=False)]
            for decided, one in zip(self.decided, self.cache.placements, strict=True)
        ]

    def mask_illegal(self, pins: Block) -> Simplex:
        """Return the logits, -inf beside pinned tokens and where a token fits into no text.

        Where the text is the argmax, they are those along the best text, read from the left.
        """
        is_pinned = pins >= 0
        logits = self.logits.masked_fill(is_pinned.unsqueeze(-1), -torch.inf)
        rows, indices = is_pinned.nonzero(as_tuple=True)
        logits[rows, indices, pins[rows, indices]] = 0.0
        if self.ends_as_drawn:
            for row in range(len(logits)):
                self.mask_impossible(row, logits[row])
        else:
            self.walk(self.logits, Reading(logits))
        return logits

    def mask_impossible(self, row: int, logits: Tensor) -> None:
        """Set the logits (B, V) to -inf of tokens that no text has there, whatever is before."""
        placement, table = self.cache.placements[row], self.tables[row]
        states = np.arange(table.num_states) == self.cache.states[row]
        indices, possible = [], []
        for index, token in enumerate(self.fixed[row]):
            position = self.cache.written + index
            if token >= 0:
                after = np.zeros_like(states)
                for state in states.nonzero()[0].tolist():
                    after[int(table[state, token])] = True
                states = after & placement.safe[position + 1]
                continue
            kinds, states = table.spread(states, placement.safe[position + 1])
            indices.append(index)
            possible.append(kinds)
        if indices:
            kinds = torch.from_numpy(np.stack(possible)).to(logits.device)
            is_possible = kinds[:, self.kinds_of[id(table)]]
            # Finite, lest the best legal token be as impossible as the rest.
            whole = logits[indices].clamp(min=torch.finfo(logits.dtype).min)
            logits[indices] = whole.masked_fill(~is_possible, -torch.inf)

    def walk(self, logits: Simplex, choose: Choose) -> Block:
        """Choose the tokens from left to right, given all before; return the fixed ones (N, B).

        These are less than 0 where a token was chosen.
        """
        states, messages = self.cache.states, self.messages(logits)
        for index in range(logits.shape[1]):
            tokens = [row[index] for row in self.fixed]
            if rows := [row for row, token in enumerate(tokens) if token < 0]:
                after = [messages[row][index + 1] for row in rows]
                bias = self.bias(index, rows, [states[row] for row in rows], after)
                at = torch.tensor(rows, device=logits.device)
                held = logits[at, index] + bias
                # Where a cut left none of the legal ones, they are as the network says.
                whole = self.logits[at, index].clamp(min=torch.finfo(held.dtype).min) + bias
                held = torch.where(held.amax(-1, keepdim=True) > -torch.inf, held, whole)
                for row, token in zip(rows, choose(index, at, held).tolist(), strict=True):
                    tokens[row] = token
            position = self.cache.written + index
            read = zip(self.cache.placements, states, tokens, strict=True)
            states = [placement.step(state, position, token) for placement, state, token in read]
        return torch.tensor(self.fixed)

    def bias(
        self, index: int, rows: Sequence[int], states: Sequence[int], after: Sequence[np.ndarray]
    ) -> Tensor:
        """Return log m(s') (n, V) of the state s' after each token, -inf where there is no way.

        `states` are the rows' states before it, `after` the messages after it.
        """
        found = []
        for row, state, message in zip(rows, states, after, strict=True):
            reached = self.tables[row].after_kinds(state)
            safe = self.cache.placements[row].safe[self.cache.written + index + 1]
            with np.errstate(divide="ignore"):
                weights = np.log(np.where(safe[reached], message[reached], 0))
            kinds = torch.from_numpy(weights).to(self.logits)
            bias = kinds[self.kinds_of[id(self.tables[row])]]
            if (allowed := self.allowed(row, index)) is not None:
                bias = bias.masked_fill(~allowed, -torch.inf)
            found.append(bias)
        return torch.stack(found)

    def allowed(self, row: int, index: int) -> Tensor | None:
        """Return the tokens (V,) that what is required allows at a position; None for all."""
        placement, position = self.cache.placements[row], self.cache.written + index
        needs_boundary, is_early = placement.slots[position] == BOUNDARY, position <= placement.last
        if not (needs_boundary or is_early):
            return None
        allowed = placement.constraint.automaton.allowed_tokens(needs_boundary, is_early)
        return torch.from_numpy(allowed).to(self.logits.device)

    def messages(self, logits: Simplex) -> list[list[np.ndarray]]:
        """Return each row's messages (S,), before each position of the block and at its end.

        Each is up to a factor, which no choice depends on.
        """
        masses, found = self.masses(logits), []
        for row, (placement, table) in enumerate(
            zip(self.cache.placements, self.tables, strict=True)
        ):
            end = self.cache.written + logits.shape[1]
            messages = [placement.safe[end].astype(float)]
            for index in range(logits.shape[1] - 1, -1, -1):
                safe, after = placement.safe[self.cache.written + index], messages[-1]
                if (token := self.fixed[row][index]) >= 0:
                    before = after[table[:, token]]
                elif self.is_drawn[row][index]:
                    before = table.message(masses[row, index], after)
                else:
                    before = safe.astype(float)
                peak = float(before.max(where=safe, initial=0.0)) or 1.0
                messages.append(np.where(safe, np.maximum(before / peak, LEAST), 0.0))
            found.append(messages[::-1])
        return found

    def masses(self, logits: Simplex) -> dict[tuple[int, int], np.ndarray]:
        """Return the probability of each kind of token (G,), by row and index of what is drawn."""
        places, found = [], []
        for row, table in enumerate(self.tables):
            open_ = zip(self.fixed[row], self.is_drawn[row], strict=True)
            drawn = [
                index for index, (token, is_drawn) in enumerate(open_) if token < 0 and is_drawn
            ]
            if not drawn:
                continue
            probs = logits[row, drawn].double().softmax(-1)
            for own, index in zip(probs, drawn, strict=True):
                if (allowed := self.allowed(row, index)) is not None:
                    own.mul_(allowed)
            kind_of = self.kinds_of[id(table)].expand_as(probs)
            masses = probs.new_zeros(len(drawn), table.num_kinds).scatter_add_(1, kind_of, probs)
            places += [(row, index) for index in drawn]
            found += masses.unbind()
        if not found:
            return {}
        sizes = [len(one) for one in found]
        together = torch.cat(found).cpu().numpy()
        return dict(zip(places, np.split(together, np.cumsum(sizes)[:-1]), strict=True))

"""A chain of guesses, each from its row's logits and what the guess before adds to them.

    state = silu(before @ word of the guess before + given)
    guess = argmax((logits + head @ after @ state) / temperature + noise of its place)

[guesses] -> engine.programs.drafted;  the Triton bodies are in `ops.kernels.guesses`
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F

from ssdlm.ops.counters import GUMBEL, gumbel_at
from ssdlm.ops.nucleus import LEAST
from ssdlm.ops.rows import product
from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Tensor

FEW = 256
"""A guess is one of so many tokens on a CPU."""


@dataclass(frozen=True)
class Cell:
    """What a guess adds to the next one's logits."""

    words: Tensor
    """(V, D)."""
    head: Tensor
    """(V', D), which may be padded."""
    before: Tensor
    """(r, D)."""
    after: Tensor
    """(D, r)."""

    @cached_property
    def word_table(self) -> Tensor:
        """(V, r) what the cell reads of each word; for a GPU."""
        return (self.words.to(self.before) @ self.before.T).contiguous()

    @cached_property
    def head_table(self) -> Tensor:
        """(V', r) what a state adds to each token's logit; for a GPU."""
        return (self.head.to(self.after) @ self.after).contiguous()


@dataclass(frozen=True)
class Start:
    """What the rows of a pass begin with: the hidden state before the newest token, and it."""

    hidden: Tensor
    """(D, D)."""
    word: Tensor
    """(D, D)."""
    words: Tensor
    """(V, D)."""
    places: Tensor
    """(G, D) what each guess has of its own."""

    @cached_property
    def both(self) -> Tensor:
        """(D, 2 D) the two side by side; for a CPU."""
        return torch.cat((self.hidden, self.word), 1)

    @cached_property
    def word_table(self) -> Tensor:
        """(V, D) what rows begin with by each word; for a GPU."""
        return (self.words.to(self.word) @ self.word.T).contiguous()


def start_rows(
    hidden: Tensor, ends: Tensor, newest: Tensor, start: Start, *, is_invariant: bool
) -> Tensor:
    """Return the rows (N, G, D) of guesses behind newest tokens (N,).

    Of each text's hidden states (N, R, D) it is number `ends` (N,) that was before its newest one.
    """
    how = {"is_invariant": is_invariant, "is_single": False}
    if on_gpu(hidden):
        from ssdlm.ops.kernels import guesses as kernels

        states = product(hidden, start.hidden, **how)
        return kernels.start_rows(states, ends, newest, start.word_table, start.places)
    own = hidden[torch.arange(len(hidden)), ends].unsqueeze(1)
    word = F.embedding(newest, start.words).to(own).unsqueeze(1)
    both = torch.cat((own, word), -1)
    return product(both, start.both, **how) + start.places


def put_guesses_(
    guesses: Tensor,
    logits: Tensor,
    given: Tensor,
    cell: Cell,
    prior: Tensor,
    suppressed: Tensor,
    temperatures: Tensor,
    top_ps: Tensor,
    seeds: Tensor,
    done: Tensor,
) -> None:
    """Put guesses (N, 1 + G) behind the first of each text, its newest token.

    `logits` (N, G, V) are what the head says of the rows, `given` (N, G, r) what they hand to the
    cell. The first guess is about place `done` (N,) of a text.
    """
    settings = prior, suppressed, temperatures, top_ps, seeds, done
    if on_gpu(logits):
        from ssdlm.ops.kernels import guesses as kernels

        tables = cell.word_table, cell.head_table
        kernels.put_guesses_(guesses, logits, given, *tables, *settings, GUMBEL)
        return
    chain_(guesses, *likeliest(logits, *settings), given, cell, temperatures)


def likeliest(
    logits: Tensor,
    prior: Tensor,
    suppressed: Tensor,
    temperatures: Tensor,
    top_ps: Tensor,
    seeds: Tensor,
    done: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return scores and ids (N, G, F) of the tokens that are likeliest by their rows alone.

    Noise takes long on a CPU: it is had of these alone. A GPU looks at all tokens.
    """
    values, ids = (logits.float() + prior).topk(min(FEW, logits.shape[-1]))
    values = torch.where(ids == suppressed.view(-1, 1, 1), LEAST, values)
    pairs = zip(seeds, done.tolist(), ids, strict=True)
    g = torch.stack([gumbel_at(seed, first=first, ids=own) for seed, first, own in pairs])
    return values / temperatures.view(-1, 1, 1) + g * (top_ps > 0).view(-1, 1, 1), ids


def chain_(
    guesses: Tensor, scores: Tensor, ids: Tensor, given: Tensor, cell: Cell, temperatures: Tensor
) -> None:
    """Put guesses (N, 1 + G) behind the first of each text, out of some with scores (N, G, F)."""
    for k in range(scores.shape[1]):
        read = F.linear(F.embedding(guesses[:, k], cell.words).to(given), cell.before)
        state = F.silu(read + given[:, k])
        after = F.linear(state, cell.after).float().unsqueeze(-1)
        added = (F.embedding(ids[:, k], cell.head).float() @ after).squeeze(-1)
        best = (scores[:, k] + added / temperatures.unsqueeze(-1)).argmax(-1, keepdim=True)
        guesses[:, k + 1] = ids[:, k].gather(1, best)[:, 0]

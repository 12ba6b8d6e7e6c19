"""A chain of guesses, each from its row's logits and what a recurrent cell adds to them.

    state = silu(before @ word of the guess before + given + back @ state)
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
from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Tensor

FEW = 256
"""On a CPU a guess is one of so many tokens, the likeliest by its row alone."""


@dataclass(frozen=True)
class Cell:
    """What a guess hands on to the next."""

    words: Tensor
    """(V, D)."""
    head: Tensor
    """(V', D), which may be padded."""
    before: Tensor
    """(r, D)."""
    back: Tensor
    """(r, r)."""
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
    *,
    few: int = FEW,
) -> None:
    """Put guesses (N, 1 + G) behind the first of each text, its newest token.

    `logits` (N, G, V) are what the head says of the rows, `given` (N, G, r) what they hand to the
    cell. The first guess is about place `done` (N,) of a text.
    """
    if on_gpu(logits):
        from ssdlm.ops.kernels import guesses as kernels

        settings = prior, suppressed, temperatures, top_ps, seeds, done
        tables = cell.word_table, cell.back, cell.head_table
        kernels.put_guesses_(guesses, logits, given, *tables, *settings, GUMBEL)
        return
    for row, own in enumerate(guesses):
        values, ids = (logits[row].float() + prior).topk(min(few, logits.shape[-1]))  # (G, few)
        g = gumbel_at(seeds[row], first=int(done[row]), ids=ids) * (top_ps[row] > 0)
        state = torch.zeros_like(given[row, 0])
        for k in range(len(ids)):
            read = F.linear(cell.words[own[k]].to(given), cell.before)
            state = F.silu(read + given[row, k] + F.linear(state, cell.back))
            added = F.embedding(ids[k], cell.head).float() @ F.linear(state, cell.after).float()
            scores = torch.where(ids[k] == suppressed[row], LEAST, values[k] + added)
            own[k + 1] = ids[k, (scores / temperatures[row] + g[k]).argmax()]

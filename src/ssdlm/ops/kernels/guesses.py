"""A chain of guesses on a GPU, without a launch for each.

All pairs of candidates of neighbouring guesses are scored at once; then the chain is looked up. The
plain bodies are in `ops.guesses`. Only a GPU has Triton, so this module is imported where there is
one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.draws import gumbel_of
from ssdlm.ops.kernels.rows import early, launch
from ssdlm.shapes import Tensor

CANDIDATES = 256
"""Tokens that a guess is one of: the best of as many parts of the vocabulary, or fewer."""
TOKENS = 2048
"""Of the vocabulary that a program looks at, about."""
BEFORE, AFTER = 32, 128
"""Candidates of a guess, and of the next one, that a program links at once."""


@triton.jit
def start_kernel(
    states, ends, newest, word_table, places, out, R, G, STRIDE,
    D: tl.constexpr, WIDTH: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """Write what the row of a guess begins with."""
    text, guess, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, WIDTH)
    mask = column < D
    own = tl.load(places + guess * D + column, mask=mask, other=0.0).to(tl.float32)
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    state = (text * R + tl.load(ends + text)) * D + column
    word = tl.load(newest + text * STRIDE) * D + column
    own += tl.load(states + state, mask=mask, other=0.0).to(tl.float32)
    own += tl.load(word_table + word, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + (text * G + guess) * D + column, own, mask=mask)


def start_rows(
    states: Tensor, ends: Tensor, newest: Tensor, word_table: Tensor, places: Tensor
) -> Tensor:
    """Return the rows (N, G, D) of guesses: a state of (N, R, D), a word's and a place's share."""
    (N, R, D), G = states.shape, len(places)
    out = torch.empty(N, G, D, device=states.device, dtype=states.dtype)
    launch(
        start_kernel, (N, G), states, ends, newest, word_table, places, out, R, G,
        newest.stride(0), D=D, WIDTH=triton.next_power_of_2(D), **early(),
    )  # fmt: skip
    return out


@triton.jit
def likely_kernel(
    logits, prior, suppressed, heats, top_ps, seeds, done, stream, scores, ids, V, STRIDE, NUM,
    G: tl.constexpr, PART: tl.constexpr, MANY: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """Note the best token of some parts of a row's vocabulary, and its score with its noise.

    Every NUM-th token is of the same part: those that are often written have low numbers, and would
    crowd each other out of a part of neighbours.
    """
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * MANY
    text, guess, number = row // G, row % G, tl.arange(0, PART * MANY)
    at = number // MANY * NUM + first + number % MANY
    base = tl.load(prior + at, mask=at < V, other=0.0)
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    values = base + tl.load(logits + row * STRIDE + at, mask=at < V, other=0.0).to(tl.float32)
    heat, never = tl.load(heats + text), tl.load(suppressed + text)
    values = tl.where(at == never, -1e4, values) / heat
    place, four = tl.load(done + text) + guess, tl.arange(0, PART * MANY // 4)
    counter = (four // (MANY // 4) * NUM + first) // 4 + four % (MANY // 4)
    noise = gumbel_of(tl.load(seeds + text), place, counter, stream)
    values += tl.where(tl.load(top_ps + text) > 0, noise, 0.0)
    # Of a slot that has read nothing all may be NaN: then any token will do.
    values = tl.where((at < V) & (values == values), values, -float("inf"))
    best, which = tl.max(tl.reshape(values, (PART, MANY)), 0, return_indices=True)
    part = first + tl.arange(0, MANY)
    tl.store(scores + row * NUM + part, best)
    tl.store(ids + row * NUM + part, tl.minimum(which * NUM + part, V - 1))


@triton.jit
def link_kernel(
    scores, ids, given, word_table, head_table, heats, guesses, links, NUM,
    G: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr, BEFORE: tl.constexpr,
    AFTER: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """Note which of a guess's candidates is the best after each candidate of the guess before.

    The first guess is after the newest token alone.
    """
    row, rank = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    text, guess, inside = row // G, row % G, (rank < RANK)[None, :]
    one, other = tl.program_id(1) * BEFORE + tl.arange(0, BEFORE), tl.arange(0, AFTER)
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if guess == 0:
        before = tl.load(guesses + text * (1 + G) + one * 0)
    else:
        before = tl.load(ids + (row - 1) * NUM + one, mask=one < NUM, other=0).to(tl.int64)
    state = tl.load(word_table + before[:, None] * RANK + rank[None, :], mask=inside, other=0.0)
    state = state.to(tl.float32)
    state += tl.load(given + row * RANK + rank[None, :], mask=inside, other=0.0).to(tl.float32)
    state = (state * tl.sigmoid(state)).to(head_table.dtype.element_ty)
    heat = tl.load(heats + text)
    crown, chosen = tl.full((BEFORE,), -float("inf"), tl.float32), tl.zeros((BEFORE,), tl.int32)
    for first in range(0, NUM, AFTER):
        may = first + other < NUM
        words = tl.load(ids + row * NUM + first + other, mask=may, other=0).to(tl.int64)
        heads = tl.load(
            head_table + words[None, :] * RANK + rank[:, None],
            mask=(rank < RANK)[:, None],
            other=0.0,
        )
        score = tl.load(scores + row * NUM + first + other, mask=may, other=-float("inf"))
        values = score[None, :] + tl.dot(state, heads, input_precision="ieee") / heat
        top, which = tl.max(values, 1, return_indices=True)
        chosen = tl.where(top > crown, first + which, chosen)
        crown = tl.maximum(crown, top)
    tl.store(links + row * NUM + one, chosen, mask=one < NUM)


@triton.jit
def walk_kernel(ids, links, guesses, NUM, G: tl.constexpr, IS_EARLY: tl.constexpr):
    """Write a text's guesses along the links between them."""
    text, number = tl.program_id(0).to(tl.int64), 0
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for k in range(G):
        row = (text * G + k) * NUM
        number = tl.load(links + row + number)
        tl.store(guesses + text * (1 + G) + 1 + k, tl.load(ids + row + number).to(tl.int64))


def likely(
    logits: Tensor, prior: Tensor, suppressed: Tensor, heats: Tensor, top_ps: Tensor, seeds: Tensor,
    done: Tensor, stream: int, *, candidates: int = CANDIDATES,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return scores and ids (N, G, F) of the best tokens of parts of the vocabulary."""
    (N, G, V), device = logits.shape, logits.device
    num = min(candidates, max(4, triton.next_power_of_2(V) // 4))
    part = triton.next_power_of_2(triton.cdiv(V, num))
    many = min(max(4, TOKENS // part), 32, num)
    scores = torch.empty(N, G, num, device=device)
    ids = torch.empty(N, G, num, device=device, dtype=torch.int32)
    settings = prior, suppressed, heats, top_ps, seeds, done, stream
    launch(
        likely_kernel, (N * G, num // many), logits, *settings, scores, ids, V,
        logits.stride(1), num, G=G, PART=part, MANY=many, **early(),
    )  # fmt: skip
    return scores, ids


def chain_(
    guesses: Tensor, scores: Tensor, ids: Tensor, given: Tensor, word_table: Tensor,
    head_table: Tensor, heats: Tensor,
) -> None:  # fmt: skip
    """Put guesses (N, 1 + G) behind the first of each text, out of some with scores (N, G, F)."""
    (N, G, F), rank = scores.shape, given.shape[-1]
    links = torch.empty_like(ids)
    launch(
        link_kernel, (N * G, triton.cdiv(F, BEFORE)), scores, ids, given, word_table, head_table,
        heats, guesses, links, F, G=G, RANK=rank, SIZE=max(16, triton.next_power_of_2(rank)),
        BEFORE=BEFORE, AFTER=AFTER, num_warps=8, **early(),
    )  # fmt: skip
    launch(walk_kernel, (N,), ids, links, guesses, F, G=G, num_warps=1, **early())

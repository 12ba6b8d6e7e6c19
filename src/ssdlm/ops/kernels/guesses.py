"""A chain of guesses on a GPU, a launch for each.

The plain bodies are in `ops.guesses`. Only a GPU has Triton, so this module is imported where there
is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.draws import gumbel_tile
from ssdlm.ops.kernels.rows import early, launch
from ssdlm.shapes import Tensor

TILE = 128
"""Of the vocabulary that a program looks at."""


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
def best_of(scores, ids, row, NUM, PARTS: tl.constexpr):
    """Return the token with the best score of those that a row's tiles have noted."""
    tile = tl.arange(0, PARTS)
    noted = tl.load(scores + row * NUM + tile, mask=tile < NUM, other=-float("inf"))
    at = tl.argmax(noted, 0)
    return tl.load(ids + row * NUM + at).to(tl.int64)


@triton.jit
def guess_kernel(
    guesses, logits, given, word_table, head_table, prior, suppressed, heats, top_ps, seeds, done,
    stream, scores, ids, V, STRIDE, NUM, K, G: tl.constexpr, RANK: tl.constexpr,
    SIZE: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, IS_FIRST: tl.constexpr,
    IS_EARLY: tl.constexpr,
):  # fmt: skip
    """Note the best token of a tile of the vocabulary for guess K, after the guess before it.

    That is what the launch before has noted; one program writes it down.
    """
    text, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE
    at, rank, row = first + tl.arange(0, TILE), tl.arange(0, SIZE), text * G + K
    is_word, inside = at < V, rank < RANK
    heads = tl.load(
        head_table + at[:, None] * RANK + rank[None, :],
        mask=is_word[:, None] & inside[None, :],
        other=0.0,
    )
    base = tl.load(prior + at, mask=is_word, other=0.0)
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    values = base + tl.load(logits + row * STRIDE + at, mask=is_word, other=0.0).to(tl.float32)
    heat, never = tl.load(heats + text), tl.load(suppressed + text)
    noise = gumbel_tile(tl.load(seeds + text), tl.load(done + text) + K, first, stream, TILE // 4)
    if IS_FIRST:
        before = tl.load(guesses + text * (1 + G))
    else:
        before = best_of(scores, ids, row - 1, NUM, PARTS)
        if first == 0:
            tl.store(guesses + text * (1 + G) + K, before)
    state = tl.load(word_table + before * RANK + rank, mask=inside, other=0.0).to(tl.float32)
    state += tl.load(given + row * RANK + rank, mask=inside, other=0.0).to(tl.float32)
    state = state * tl.sigmoid(state)
    added = tl.sum(heads.to(tl.float32) * state[None, :], 1)
    values = (tl.where(at == never, -1e4, values) + added) / heat
    values += tl.where(tl.load(top_ps + text) > 0, noise, 0.0)
    # Of a slot that has read nothing all may be NaN: then any token will do.
    values = tl.where(is_word & (values == values), values, -float("inf"))
    top, which = tl.max(values, 0, return_indices=True)
    tl.store(scores + row * NUM + tl.program_id(1), top)
    tl.store(ids + row * NUM + tl.program_id(1), first + which)


@triton.jit
def last_kernel(
    guesses, scores, ids, NUM, G: tl.constexpr, PARTS: tl.constexpr, IS_EARLY: tl.constexpr
):
    """Write down a text's last guess."""
    text = tl.program_id(0).to(tl.int64)
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tl.store(guesses + text * (1 + G) + G, best_of(scores, ids, text * G + G - 1, NUM, PARTS))


def put_guesses_(
    guesses: Tensor, logits: Tensor, given: Tensor, word_table: Tensor, head_table: Tensor,
    prior: Tensor, suppressed: Tensor, heats: Tensor, top_ps: Tensor, seeds: Tensor, done: Tensor,
    stream: int,
) -> None:  # fmt: skip
    """Put guesses (N, 1 + G) behind the first of each text, its newest token."""
    (N, G, V), device, rank = logits.shape, logits.device, given.shape[-1]
    num = triton.cdiv(V, TILE)
    scores = torch.empty(N, G, num, device=device)
    ids = torch.empty(N, G, num, device=device, dtype=torch.int32)
    parts, settings = triton.next_power_of_2(num), (prior, suppressed, heats, top_ps, seeds, done)
    for k in range(G):
        launch(
            guess_kernel, (N, num), guesses, logits, given, word_table, head_table, *settings,
            stream, scores, ids, V, logits.stride(1), num, k, G=G, RANK=rank,
            SIZE=triton.next_power_of_2(rank), PARTS=parts, TILE=TILE, IS_FIRST=k == 0,
            **early(),
        )  # fmt: skip
    launch(last_kernel, (N,), guesses, scores, ids, num, G=G, PARTS=parts, **early())

"""A chain of guesses on a GPU: a launch for each, over tiles of the vocabulary.

A launch finds the guess before among the best of its tiles, moves the cell on, and leaves the best
of each tile. The plain body is in `ops.guesses`. Only a GPU has Triton, so this module is imported
where there is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.draws import gumbel_tile
from ssdlm.ops.kernels.rows import launch
from ssdlm.shapes import Tensor

TILE = 64
"""Tokens of a program."""
PART = 16
"""Columns of the cell's matrix that are multiplied at once."""


@triton.jit
def guess_kernel(
    logits, given, word_table, back, head_table, prior, suppressed, heats, top_ps, seeds, done,
    stream, guesses, states, peaks, tops, k, N, V, STRIDE, TILES,
    G: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    SHARES: tl.constexpr, PART: tl.constexpr, IS_FIRST: tl.constexpr, IS_OVER: tl.constexpr,
):  # fmt: skip
    """Take up guess k, and leave the best tokens of a tile for the next; past the last, take up."""
    text, tile = tl.program_id(0).to(tl.int64) // TILES, tl.program_id(0) % TILES
    own = guesses + text * (1 + G)
    if IS_FIRST:
        token = tl.load(own)
    else:
        share = tl.arange(0, SHARES)
        before = ((k - 1) * N + text) * TILES
        found = tl.load(peaks + before + share, mask=share < TILES, other=-float("inf"))
        token = tl.load(tops + before + tl.argmax(found, 0))
        if tile == 0:
            tl.store(own + k, token)
    if not IS_OVER:
        rank = tl.arange(0, SIZE)
        inside = rank < RANK
        here = (text * G + k) * RANK
        state = tl.load(word_table + token * RANK + rank, mask=inside, other=0.0).to(tl.float32)
        state += tl.load(given + here + rank, mask=inside, other=0.0).to(tl.float32)
        if not IS_FIRST:
            for part in range(0, RANK, PART):
                column = part + tl.arange(0, PART)
                may = column < RANK
                old = tl.load(states + here - RANK + column, mask=may, other=0.0)
                cells = back + rank[:, None] * RANK + column[None, :]
                matrix = tl.load(cells, mask=inside[:, None] & may[None, :], other=0.0)
                state += tl.sum(matrix.to(tl.float32) * old[None, :], 1)
        state = state * tl.sigmoid(state)
        if tile == 0:
            tl.store(states + here + rank, state, mask=inside)
        word = tile * TILE + tl.arange(0, TILE)
        mask = word < V
        table = head_table + word[:, None].to(tl.int64) * RANK + rank[None, :]
        rows = tl.load(table, mask=mask[:, None] & inside[None, :], other=0.0).to(tl.float32)
        values = tl.sum(rows * state[None, :], 1)
        own_logits = logits + (text * G + k) * STRIDE + word
        values += tl.load(own_logits, mask=mask, other=-float("inf")).to(tl.float32)
        values += tl.load(prior + word, mask=mask, other=0.0)
        values = tl.where(word == tl.load(suppressed + text), -1e4, values) / tl.load(heats + text)
        place = tl.load(done + text) + k
        noise = gumbel_tile(tl.load(seeds + text), place, tile * TILE, stream, TILE // 4)
        values += tl.where(tl.load(top_ps + text) > 0, noise, 0.0)
        # Of a slot that has read nothing all may be NaN: then any token will do.
        values = tl.where(mask & (values == values), values, -float("inf"))
        left = (k * N + text) * TILES + tile
        tl.store(peaks + left, tl.max(values, 0))
        tl.store(tops + left, (tile * TILE + tl.argmax(values, 0)).to(tl.int64))


def put_guesses_(
    guesses: Tensor, logits: Tensor, given: Tensor, word_table: Tensor, back: Tensor,
    head_table: Tensor, prior: Tensor, suppressed: Tensor, heats: Tensor, top_ps: Tensor,
    seeds: Tensor, done: Tensor, stream: int,
) -> None:  # fmt: skip
    """Put guesses (N, 1 + G) behind the first of each text."""
    (N, G, V), rank, device = logits.shape, given.shape[-1], logits.device
    tiles = triton.cdiv(V, TILE)
    states = torch.empty(N, G, rank, device=device)
    peaks = torch.empty(G, N, tiles, device=device)
    tops = torch.empty(G, N, tiles, device=device, dtype=torch.int64)
    settings = prior, suppressed, heats, top_ps, seeds, done, stream
    for k in range(G + 1):
        launch(
            guess_kernel, (N * tiles,), logits, given, word_table, back,
            head_table, *settings, guesses, states, peaks, tops, k, N, V, logits.stride(1), tiles,
            G=G, RANK=rank, SIZE=triton.next_power_of_2(rank), TILE=TILE,
            SHARES=triton.next_power_of_2(tiles), PART=PART, IS_FIRST=k == 0, IS_OVER=k == G,
        )  # fmt: skip

"""Trees of guesses on a GPU: read, walked, the rows of a path kept, and the next tree grown.

The plain bodies are in `ops.trees`. Only a GPU has Triton, so this module is imported
where there is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.draws import WARPS, gumbel_tile
from ssdlm.ops.kernels.rows import launch
from ssdlm.shapes import Tensor


@triton.jit
def read_kernel(
    guesses, words, blank, out, R, M: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr
):
    """Write what one row reads: a guessed word, or in a block behind one a blank."""
    text, row, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, WIDTH)
    place = tl.where(row < R, 0, (row - R) % M)
    node = tl.where(row < R, row, (row - R) // M)
    token, mask = tl.load(guesses + text * R + node), column < D
    source = words + token * D
    if place > 0:
        source = blank
    value = tl.load(source + column, mask=mask)
    tl.store(out + (text * R * (1 + M) + row) * D + column, value, mask=mask)


@triton.jit
def children_kernel(
    drafts, pairs, prior, suppressed, heats, top_ps, seeds, done, depth, stream, above, nodes,
    guesses, V, KNOWN, P, R, STRIDE, cut,
    K: tl.constexpr, TILE: tl.constexpr, COUNTERS: tl.constexpr,
):  # fmt: skip
    """Put the best tokens below one guess, by log p and noise, at its children's nodes.

    Known of them is what the draft says of their place, and what the guess says as a word alone.
    """
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    text, mask = row // P, at < V
    heat, never = tl.load(heats + text), tl.load(suppressed + text)
    token = tl.load(guesses + text * R + tl.load(above + row % P))
    values = tl.load(drafts + text * STRIDE + at, mask=mask, other=-float("inf")).to(tl.float32)
    values += tl.load(pairs + token * KNOWN + at, mask=at < KNOWN, other=0.0).to(tl.float32)
    values += tl.load(prior + at, mask=mask, other=0.0)
    values = tl.where(at == never, -1e4, values) / heat
    noise = gumbel_tile(
        tl.load(seeds + text), tl.load(done + text) + depth - 1, 0, stream, COUNTERS
    )
    is_likely = values >= tl.max(values, 0) - cut
    noise = tl.where(tl.load(top_ps + text) > 0, noise, 0.0)
    values = tl.where(is_likely, values + noise, values - 1e6)
    for rank in range(K):
        node = tl.load(nodes + (row % P) * K + rank)
        if node >= 0:
            best = tl.argmax(values, 0)
            tl.store(guesses + text * R + node, best.to(tl.int64))
            values = tl.where(at == best, -float("inf"), values)


@triton.jit
def advance_kernel(
    chosen, guesses, parents, limits, active, steps, done, lengths, written, when, starts, path,
    count, ends, R, ROOM, M: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Go down a tree from its root while the token after a node is one of its children.

    The tokens on the way are written to a text that moves, and the last is the next tree's root.
    """
    text, at = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    words = tl.load(guesses + text * R + at, mask=at < R, other=-1)
    parent = tl.load(parents + at, mask=at < R, other=-2)
    start, length = tl.load(done + text), tl.load(lengths + text)
    moves = (tl.load(active + text) > 0) & (start < tl.load(limits + text))
    number = tl.load(steps + text) + moves.to(tl.int64)
    node, num, goes_on = 0, 0, 1
    token = tl.load(chosen + text * R)
    for step in range(M):
        tl.store(path + text * M + step, node)
        token = tl.load(chosen + text * R + node)
        place = text * ROOM + start + step
        tl.store(written + place, token, mask=moves & (goes_on > 0))
        tl.store(when + place, number, mask=moves & (goes_on > 0))
        num += goes_on
        child = tl.min(tl.where((parent == node) & (words == token), at, WIDTH), 0)
        goes_on = goes_on * (child < WIDTH).to(tl.int32)
        node = tl.where(goes_on > 0, child, node)
    tl.store(starts + text, length)
    tl.store(count + text, num)
    tl.store(ends + text, node)
    tl.store(steps + text, number)
    tl.store(done + text, start + num, mask=moves)
    tl.store(lengths + text, length + num, mask=moves)
    tl.store(guesses + text * R, token, mask=moves)


@triton.jit
def keep_kernel(table, lengths, path, count, N, H, S, M: tl.constexpr, D: tl.constexpr):
    """Move the keys and values of a path's rows together, behind what a slot holds."""
    home, column = tl.program_id(0).to(tl.int64), tl.arange(0, D)
    text = (home // H) % N
    length, num = tl.load(lengths + text), tl.load(count + text)
    table += (home * S + length) * D
    # A row's new place is never behind its old one, and no later row is overwritten by it.
    for step in range(1, M):
        if step < num:
            row = tl.load(path + text * M + step)
            tl.store(table + step * D + column, tl.load(table + row * D + column))


def read(guesses: Tensor, words: Tensor, blank: Tensor, M: int) -> Tensor:
    """Return what the rows of trees (N, R) read: each word, then behind each a block of M."""
    (N, R), D = guesses.shape, words.shape[1]
    out = torch.empty(N, R * (1 + M), D, device=words.device, dtype=words.dtype)
    width = triton.next_power_of_2(D)
    launch(read_kernel, (N, R * (1 + M)), guesses, words, blank, out, R, M=M, D=D, WIDTH=width)
    return out


def put_children_(
    guesses: Tensor, above: Tensor, nodes: Tensor, drafts: Tensor, pairs: Tensor, prior: Tensor,
    suppressed: Tensor, heats: Tensor, top_ps: Tensor, seeds: Tensor, done: Tensor, depth: int,
    stream: int, cut: float,
) -> None:  # fmt: skip
    """Put the best tokens below nodes `above` (P,) at `nodes` (P, K), -1 where there is none.

    Their logits are those of the drafts (N, V), whose last may be padding, plus the rows of `pairs`
    for the guesses above.
    """
    (N, V), R, (P, K) = drafts.shape, guesses.shape[1], nodes.shape
    tile = triton.next_power_of_2(V)
    settings = suppressed, heats, top_ps, seeds, done, depth, stream
    launch(
        children_kernel, (N * P,), drafts, pairs, prior, *settings, above, nodes, guesses,
        V, pairs.shape[1], P, R, drafts.stride(0), cut,
        K=K, TILE=tile, COUNTERS=tile // 4, num_warps=WARPS,
    )  # fmt: skip


def advance_(
    chosen: Tensor, guesses: Tensor, parents: Tensor, M: int, *, limits: Tensor, active: Tensor,
    steps: Tensor, done: Tensor, lengths: Tensor, text: Tensor, when: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Write what each tree made certain, and make its last token the next root.

    Returns where each text's rows began, the nodes of its path (N, M), how many of them count, and
    the last of them.
    """
    N, R = guesses.shape
    path = torch.empty(N, M, device=guesses.device, dtype=torch.int64)
    starts, count, ends = (torch.empty_like(done) for _ in range(3))
    launch(
        advance_kernel, (N,), chosen, guesses, parents, limits, active, steps, done, lengths, text,
        when, starts, path, count, ends, R, text.shape[1], M=M, WIDTH=triton.next_power_of_2(R),
    )  # fmt: skip
    return starts, path, count, ends


def keep_(keys_values: Tensor, lengths: Tensor, path: Tensor, count: Tensor) -> None:
    """Move the rows of a path together in all layers (L, 2, N, H, S, d)."""
    L, _, N, H, S, D = keys_values.shape
    grid = (L * 2 * N * H,)
    launch(keep_kernel, grid, keys_values, lengths, path, count, N, H, S, M=path.shape[1], D=D)

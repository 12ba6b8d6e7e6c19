"""Trees of guesses on a GPU: grown, walked, and the rows of a path kept.

The plain references are in `engine.tree_lane`. Only a GPU has Triton, so this module is imported
where there is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.denoiser.kernels.draws import WARPS, gumbel_tile, share_of
from ssdlm.denoiser.kernels.rows import launch
from ssdlm.shapes import Tensor


@triton.jit
def above_kernel(guesses, above, alone, drafts, out, R, P, STRIDE, D, WIDTH: tl.constexpr):
    """Write what is known of the tokens below one guess: by its draft, and by its word alone."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    text, mask = row // P, column < D
    token = tl.load(guesses + text * R + tl.load(above + row % P))
    value = tl.load(drafts + text * STRIDE + column, mask=mask).to(tl.float32)
    value += tl.load(alone + token * D + column, mask=mask).to(tl.float32)
    tl.store(out + row * D + column, value, mask=mask)


@triton.jit
def children_kernel(
    logits, prior, suppressed, heats, top_ps, seeds, done, depth, stream, nodes, guesses, V, P, R,
    cut, K: tl.constexpr, TILE: tl.constexpr, COUNTERS: tl.constexpr,
):  # fmt: skip
    """Put the best tokens below one guess, by log p and noise, at its children's nodes."""
    row = tl.program_id(0).to(tl.int64)
    text = row // P
    heat, never = tl.load(heats + text), tl.load(suppressed + text)
    values = share_of(logits + row * V, prior, 0, V, heat, never, TILE)
    noise = gumbel_tile(
        tl.load(seeds + text), tl.load(done + text) + depth - 1, 0, stream, COUNTERS
    )
    is_likely = values >= tl.max(values, 0) - cut
    noise = tl.where(tl.load(top_ps + text) > 0, noise, 0.0)
    values = tl.where(is_likely, values + noise, values - 1e6)
    at = tl.arange(0, TILE)
    for rank in range(K):
        node = tl.load(nodes + (row % P) * K + rank)
        if node >= 0:
            best = tl.argmax(values, 0)
            tl.store(guesses + text * R + node, best.to(tl.int64))
            values = tl.where(at == best, -float("inf"), values)


@triton.jit
def walk_kernel(chosen, guesses, parents, path, count, R, M: tl.constexpr, WIDTH: tl.constexpr):
    """Go down a tree from its root while the token after a node is one of its children."""
    text, at = tl.program_id(0), tl.arange(0, WIDTH)
    words = tl.load(guesses + text * R + at, mask=at < R, other=-1)
    parent = tl.load(parents + at, mask=at < R, other=-2)
    node, steps, goes_on = 0, 0, 1
    for step in range(M):
        tl.store(path + text * M + step, node)
        steps += goes_on
        token = tl.load(chosen + text * R + node)
        child = tl.min(tl.where((parent == node) & (words == token), at, WIDTH), 0)
        goes_on = goes_on * (child < WIDTH).to(tl.int32)
        node = tl.where(goes_on > 0, child, node)
    tl.store(count + text, steps)


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


def below(guesses: Tensor, above: Tensor, alone: Tensor, drafts: Tensor) -> Tensor:
    """Return drafts (N, D) plus the rows of `alone` for the guesses at nodes `above`, (N, P, D)."""
    (N, R), P, D = guesses.shape, len(above), alone.shape[1]
    out = torch.empty(N, P, D, device=alone.device, dtype=alone.dtype)
    sizes, width = (R, P, drafts.stride(0), D), triton.next_power_of_2(D)
    launch(above_kernel, (N * P,), guesses, above, alone, drafts, out, *sizes, WIDTH=width)
    return out


def put_children_(
    guesses: Tensor, nodes: Tensor, logits: Tensor, prior: Tensor, suppressed: Tensor,
    heats: Tensor, top_ps: Tensor, seeds: Tensor, done: Tensor, depth: int, stream: int, cut: float,
) -> None:  # fmt: skip
    """Put the best tokens by logits (N, P, V) and noise at nodes (P, K), -1 where there is none."""
    (N, P, V), R, K = logits.shape, guesses.shape[1], nodes.shape[1]
    tile = triton.next_power_of_2(V)
    settings = suppressed, heats, top_ps, seeds, done, depth, stream
    launch(
        children_kernel, (N * P,), logits, prior, *settings, nodes, guesses, V, P, R, cut,
        K=K, TILE=tile, COUNTERS=tile // 4, num_warps=WARPS,
    )  # fmt: skip


def walk(chosen: Tensor, guesses: Tensor, parents: Tensor, M: int) -> tuple[Tensor, Tensor]:
    """Return the nodes of each text's path (N, M), and how many of them count (N,)."""
    N, R = guesses.shape
    path = torch.empty(N, M, device=guesses.device, dtype=torch.int64)
    count = torch.empty(N, device=guesses.device, dtype=torch.int64)
    width = triton.next_power_of_2(R)
    launch(walk_kernel, (N,), chosen, guesses, parents, path, count, R, M=M, WIDTH=width)
    return path, count


def keep_(keys_values: Tensor, lengths: Tensor, path: Tensor, count: Tensor) -> None:
    """Move the rows of a path together in all layers (L, 2, N, H, S, d)."""
    L, _, N, H, S, D = keys_values.shape
    grid = (L * 2 * N * H,)
    launch(keep_kernel, grid, keys_values, lengths, path, count, N, H, S, M=path.shape[1], D=D)

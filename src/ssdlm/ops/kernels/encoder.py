"""What stands around the products of an encoder's layers, and its noisy input; for GPUs.

A step reads a block of noised tokens as weighted word embeddings. Here the noise is drawn, made
into weights and summed in one launch, and w_t is never built. The plain references are the modules
of `transformers` and `diffusion.noising`. Only a GPU has Triton, so this is imported where one is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.normals import normal_tile
from ssdlm.ops.kernels.rows import launch, look
from ssdlm.shapes import Tensor

COUNTERS = 256
"""Counters of the noise that a program takes, each worth four numbers."""
FARTHEST = tl.constexpr(5.9)
"""No normal number of 24-bit words is further out."""


@triton.jit
def weights_kernel(
    tokens, gain_z, gain_w, seeds, steps, streams, out, sums, V, WIDTH, B, NUM_TILES,
    COUNTERS: tl.constexpr,
):  # fmt: skip
    """Write exp(w_t - bound) of one position of one text, as many as a tile has, and their sum."""
    place, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    text, position = place // B, (place % B).to(tl.int32)
    counter = tile * COUNTERS + tl.arange(0, COUNTERS)
    step, stream = tl.load(steps + text).to(tl.int32), tl.load(streams + text).to(tl.int32)
    z = normal_tile(tl.load(seeds + text), counter, position, step, stream)
    column = tile * 4 * COUNTERS + tl.arange(0, 4 * COUNTERS)
    noise, bonus = tl.load(gain_z + text), tl.load(gain_w + text)
    value = noise * (z - FARTHEST) - bonus + tl.where(column == tl.load(tokens + place), bonus, 0.0)
    weight = tl.where(column < V, tl.exp(value), 0.0).to(out.dtype.element_ty)
    tl.store(out + place * WIDTH + column, weight, mask=column < WIDTH)
    tl.store(sums + place * NUM_TILES + tile, tl.sum(weight.to(tl.float32)))


@triton.jit
def attend_all_kernel(
    qkv, out, lengths, sizes, R, Q, B,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attend from a tile of a text's first Q rows to its block and its context, as they are."""
    text, head = tl.program_id(0) // H, tl.program_id(0) % H
    length, size = tl.load(lengths + text), tl.load(sizes + text)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)[None, :]
    is_row = (row < Q)[:, None]
    base = qkv + (text.to(tl.int64) * R * 3 * H + head) * D
    q = tl.load(base + row[:, None] * 3 * H * D + column, mask=is_row, other=0.0)
    peak = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, D), tl.float32)
    end = B + length
    for first in range(0, end, TILE):
        other = first + tl.arange(0, TILE)
        seen = (other < size) | ((other >= B) & (other < end))
        where_ = other[:, None] * 3 * H * D + column
        k = tl.load(base + H * D + where_, mask=seen[:, None], other=0.0)
        v = tl.load(base + 2 * H * D + where_, mask=seen[:, None], other=0.0)
        peak, total, sums = look(q, k, v, seen[None, :], peak, total, sums, D)
    result = sums / tl.maximum(total, 1e-30)[:, None]
    at = ((text.to(tl.int64) * Q + row[:, None]) * H + head) * D + column
    tl.store(out + at, result.to(out.dtype.element_ty), mask=is_row)


@triton.jit
def add_norm_kernel(x, y, weight, bias, eps, D: tl.constexpr, WIDTH: tl.constexpr):
    """Write the layer norm of x + y to x, one row."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    mask, at = column < D, row * D + column
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    value += tl.load(y + at, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, value - tl.sum(value) / D, 0.0)
    scaled = centred * tl.rsqrt(tl.sum(centred * centred) / D + eps)
    scaled = scaled * tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    scaled += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(x + at, scaled.to(x.dtype.element_ty), mask=mask)


def noised_weights(
    tokens: Tensor, gain_z: Tensor, gain_w: Tensor, seeds: Tensor, steps: Tensor, streams: Tensor,
    *, V: int, width: int, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return exp(w_t) of noised tokens (N, B) up to a factor, (N * B, width), and its sums."""
    (N, B), num_tiles = tokens.shape, triton.cdiv(width, 4 * COUNTERS)
    out = torch.empty(N * B, width, device=tokens.device, dtype=dtype)
    sums = torch.empty(N * B, num_tiles, device=tokens.device)
    settings = tokens, gain_z, gain_w, seeds, steps, streams, out, sums, V, width, B, num_tiles
    launch(weights_kernel, (N * B, num_tiles), *settings, COUNTERS=COUNTERS)
    return out, sums.sum(1, keepdim=True)


def attend_all(qkv: Tensor, lengths: Tensor, sizes: Tensor, B: int, *, count: int) -> Tensor:
    """Return what the first `count` rows of (N, R, 3, H, d) read.

    That is the first `sizes` of B rows, and `lengths` behind those.
    """
    N, R, _, H, D = qkv.shape
    out = torch.empty(N, count, H, D, device=qkv.device, dtype=qkv.dtype)
    rows = 64 if N * H > 132 else 32  # many programs had better be larger
    grid = (N * H, triton.cdiv(count, rows))
    tables = qkv, out, lengths, sizes
    launch(attend_all_kernel, grid, *tables, R, count, B, H=H, D=D, ROWS=rows, TILE=64)
    return out


def add_norm_(x: Tensor, y: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    """Return the layer norm of x + y, in x's own place."""
    D = x.shape[-1]
    settings, width = (norm.weight, norm.bias, norm.eps), triton.next_power_of_2(D)
    launch(add_norm_kernel, (x.numel() // D,), x, y, *settings, D=D, WIDTH=width)
    return x

"""Rows behind cached keys and values by a few launches, for GPUs.

A pass over a handful of rows is bound by launches, not by arithmetic. Here a layer's attention is
one of them, or two, and a norm is one. The plain references are in `denoiser.slots`. Only a GPU has
Triton, so this module is imported where there is one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from ssdlm.ops.rows import ROW_TILE, HeadNorms
from ssdlm.shapes import Tensor

KEY_TILE = 64
HOPPER = 9
"""The first make of GPU on which a launch can begin while the one before is at work."""
MANY = 1000
"""Programs from which on a GPU is full of them."""


@triton.jit
def normed(x, D: tl.constexpr, EPS: tl.constexpr):
    """Return x over its root mean square along the last axis, in float32."""
    return x * tl.rsqrt(tl.sum(x * x, -1, keep_dims=True) / D + EPS)


@triton.jit
def norm_kernel(x, out, D: tl.constexpr, WIDTH: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    values = tl.load(x + row * D + column, mask=column < D, other=0.0).to(tl.float32)
    mean = tl.sum(values * values) / D
    tl.store(out + row * D + column, values * tl.rsqrt(mean + 1e-6), mask=column < D)


@triton.jit
def square_kernel(x, count, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    values = tl.load(x + at, mask=at < count, other=0.0)
    values = tl.maximum(values, 0.0)
    tl.store(x + at, values * values, mask=at < count)


@triton.jit
def turned(
    base, column, other, cos, sin, mask, weights, kind: tl.constexpr, D: tl.constexpr,
    NORMS: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Return vectors of heads, rotated; normed before, if NORMS is 1, by weights, if it is 2."""
    x = tl.load(base + column, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(base + other, mask=mask, other=0.0).to(tl.float32)
    if NORMS > 0:
        x, y = normed(x, D, EPS), normed(y, D, EPS)
    if NORMS > 1:
        x = x * tl.load(weights + column).to(tl.float32)
        y = y * tl.load(weights + other).to(tl.float32)
    return (x.to(kind).to(tl.float32) * cos + y.to(kind).to(tl.float32) * sin).to(kind)


@triton.jit
def place_kernel(
    qkv, query, keys, values, lengths, slots, offsets, rotary, weights, R, S, H,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, NORMS: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """Norm and rotate one row's queries and keys; put keys and values behind its slot's."""
    KV = H // GROUP
    text, row = tl.program_id(0) // R, tl.program_id(0) % R
    slot, length = tl.load(slots + text).to(tl.int64), tl.load(lengths + text)
    place = length + tl.load(offsets + row)
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, D)[None, :]
    other, mask = (column + D // 2) % D, (head < H) & (column < D)
    base = qkv + tl.program_id(0).to(tl.int64) * (H + 2 * KV) * D + head * D
    cos = tl.load(rotary + place * 2 * D + column)
    sin = tl.load(rotary + place * 2 * D + D + column)
    kind: tl.constexpr = query.dtype.element_ty
    at = tl.program_id(0).to(tl.int64) * H * D + head * D + column
    q = turned(base, column, other, cos, sin, mask, weights, kind, D, NORMS, EPS)
    tl.store(query + at, q, mask=mask)
    base += H * D
    mask = (head < KV) & (column < D)
    home = ((slot * KV + head) * S + length + row) * D + column
    k = turned(base, column, other, cos, sin, mask, weights + D, kind, D, NORMS, EPS)
    tl.store(keys + home, k, mask=mask)
    value = tl.load(base + KV * D + column, mask=mask, other=0.0)
    tl.store(values + home, value, mask=mask)


@triton.jit
def look_at(
    q, keys, values, first, count, seen, peak, total, sums, D: tl.constexpr, TILE: tl.constexpr
):
    """Take one tile of a slot's keys and values into a running softmax."""
    column, at = tl.arange(0, D)[None, :], tl.arange(0, TILE)
    inside = first + at < count
    where_ = (first + at)[:, None] * D + column
    k = tl.load(keys + where_, mask=inside[:, None], other=0.0)
    v = tl.load(values + where_, mask=inside[:, None], other=0.0)
    return look(q, k, v, seen & inside[None, :], peak, total, sums, D)


@triton.jit
def look(q, k, v, seen, peak, total, sums, D: tl.constexpr):
    """Take some keys and values into a running softmax."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (D**-0.5)
    scores = tl.where(seen, scores, -1e30)
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    share = tl.where(seen, tl.exp(scores - new_peak[:, None]), 0.0)
    shrink = tl.exp(peak - new_peak)
    total = total * shrink + tl.sum(share, 1)
    part = tl.dot(share.to(v.dtype), v, input_precision="ieee")
    return new_peak, total, sums * shrink[:, None] + part


@triton.jit
def attend_kernel(
    query, keys, values, out, lengths, slots, sees, counts, R, S,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    COUNTED: tl.constexpr,
):  # fmt: skip
    """Attend from a tile of a text's rows to its slot, all of it, and to the rows it may see."""
    text, head = tl.program_id(0) // H, tl.program_id(0) % H
    slot, length = tl.load(slots + text).to(tl.int64), tl.load(lengths + text)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)[None, :]
    is_row = row < R
    at = ((text.to(tl.int64) * R + row[:, None]) * H + head) * D + column
    q = tl.load(query + at, mask=is_row[:, None], other=0.0)
    keys += (slot * (H // GROUP) + head // GROUP) * S * D
    values += (slot * (H // GROUP) + head // GROUP) * S * D
    peak = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, D), tl.float32)
    all_seen = tl.full((ROWS, TILE), 1, tl.int1)
    for first in range(0, length, TILE):
        peak, total, sums = look_at(
            q, keys, values, first, length, all_seen, peak, total, sums, D, TILE
        )
    keys += length.to(tl.int64) * D
    values += length.to(tl.int64) * D
    most = tl.load(counts + text) if COUNTED else R
    for first in range(0, R, TILE):
        other = first + tl.arange(0, TILE)
        may = is_row[:, None] & (other < most)[None, :]
        at_row = row[:, None].to(tl.int64) * R  # R * R may be more than 32 bits hold
        seen = tl.load(sees + at_row + other[None, :], mask=may, other=0) != 0
        peak, total, sums = look_at(q, keys, values, first, R, seen, peak, total, sums, D, TILE)
    result = sums / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def attend_few_kernel(
    qkv, keys, values, out, lengths, slots, offsets, rotary, weights, sees, counts, R, S,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, NORMS: tl.constexpr,
    EPS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, COUNTED: tl.constexpr,
    IS_EARLY: tl.constexpr, IS_AHEAD: tl.constexpr,
):  # fmt: skip
    """Do what `place_kernel` and `attend_kernel` do for one head of one text of a few rows.

    Heads of a group write the same keys and values. With IS_EARLY a program begins while the launch
    before is at work. With IS_AHEAD it reads the first keys and values, which earlier passes wrote,
    meanwhile; where a GPU is full of programs, what they would hold leaves room for fewer.
    """
    KV: tl.constexpr = H // GROUP
    text, head = tl.program_id(0) // H, tl.program_id(0) % H
    slot, length = tl.load(slots + text).to(tl.int64), tl.load(lengths + text)
    row, column = tl.arange(0, ROWS), tl.arange(0, D)[None, :]
    is_row = (row < R)[:, None]
    other = (column + D // 2) % D
    turn = rotary + (length + tl.load(offsets + row, mask=row < R, other=0))[:, None] * 2 * D
    cos = tl.load(turn + column, mask=is_row, other=0.0)
    sin = tl.load(turn + D + column, mask=is_row, other=0.0)
    base = qkv + (text.to(tl.int64) * R + row[:, None]) * (H + 2 * KV) * D
    shared = head // GROUP
    kind: tl.constexpr = out.dtype.element_ty
    keys += (slot * KV + shared) * S * D
    values += (slot * KV + shared) * S * D
    most = tl.load(counts + text) if COUNTED else R
    may = is_row & (row < most)[None, :]
    seen = tl.load(sees + row[:, None] * R + row[None, :], mask=may, other=0) != 0
    number = tl.arange(0, TILE)
    old = number[:, None] * D + column
    if IS_AHEAD:
        is_old = (number < length)[:, None]
        k_old = tl.load(keys + old, mask=is_old, other=0.0)
        v_old = tl.load(values + old, mask=is_old, other=0.0)
    if IS_EARLY:  # what was read so far was there before
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    q = turned(base + head * D, column, other, cos, sin, is_row, weights, kind, D, NORMS, EPS)
    base += (H + shared) * D
    k = turned(base, column, other, cos, sin, is_row, weights + D, kind, D, NORMS, EPS)
    v = tl.load(base + KV * D + column, mask=is_row, other=0.0)
    home = (length + row[:, None]) * D + column
    tl.store(keys + home, k, mask=is_row)
    tl.store(values + home, v, mask=is_row)
    peak = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    peak, total, sums = look(q, k, v, seen, peak, total, tl.zeros((ROWS, D), tl.float32), D)
    all_seen = tl.full((ROWS, TILE), 1, tl.int1)
    if IS_AHEAD:
        inside = all_seen & (number < length)[None, :]
        peak, total, sums = look(q, k_old, v_old, inside, peak, total, sums, D)
    for first in range(TILE * IS_AHEAD, length, TILE):
        peak, total, sums = look_at(
            q, keys, values, first, length, all_seen, peak, total, sums, D, TILE
        )
    result = sums / tl.maximum(total, 1e-30)[:, None]
    at = ((text.to(tl.int64) * R + row[:, None]) * H + head) * D + column
    tl.store(out + at, result.to(kind), mask=is_row)


@triton.jit
def attend_alone_kernel(
    query, keys, values, out, lengths, slots, seen, R, S,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, MOST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attend from one row, key after key in the order of its text, whichever rows are beside it.

    A word that was just guessed and one that was read long ago are summed in the same places.
    """
    text, row, head = tl.program_id(0) // R, tl.program_id(0) % R, tl.program_id(1)
    slot, length = tl.load(slots + text).to(tl.int64), tl.load(lengths + text).to(tl.int32)
    seen += row.to(tl.int64) * (MOST + 1)
    count, column = length + tl.load(seen), tl.arange(0, D)
    at = (tl.program_id(0).to(tl.int64) * H + head) * D + column
    q = tl.load(query + at).to(tl.float32)
    keys += (slot * (H // GROUP) + head // GROUP) * S * D
    values += (slot * (H // GROUP) + head // GROUP) * S * D
    peak, total, sums = -1e30, 0.0, tl.zeros((D,), tl.float32)
    for first in range(0, count, TILE):
        number = first + tl.arange(0, TILE)
        inside, is_own = number < count, number >= length
        own = tl.load(seen + 1 + number - length, mask=inside & is_own, other=0)
        home = tl.where(is_own, length + own, number)[:, None] * D + column[None, :]
        k = tl.load(keys + home, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + home, mask=inside[:, None], other=0.0).to(tl.float32)
        scores = tl.where(inside, tl.sum(k * q[None, :], 1) * (D**-0.5), -1e30)
        new_peak = tl.maximum(peak, tl.max(scores, 0))
        share = tl.where(inside, tl.exp(scores - new_peak), 0.0)
        shrink = tl.exp(peak - new_peak)
        total = total * shrink + tl.sum(share, 0)
        sums = sums * shrink + tl.sum(v * share[:, None], 0)
        peak = new_peak
    tl.store(out + at, (sums / total).to(out.dtype.element_ty))


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Run a kernel, unless there is nothing to do."""
    if all(grid):
        kernel[grid](*arguments, **settings)


@cache
def early() -> dict[str, bool]:
    """Return the settings of a launch that may begin before the one before it has ended.

    It waits for that one itself, and before it reads anything that a launch of the same pass wrote.
    """
    can_be = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= HOPPER
    can_be = can_be and hasattr(tl.extra.cuda, "gdc_wait")
    return {"IS_EARLY": True, "launch_pdl": True} if can_be else {"IS_EARLY": False}


def norm(x: Tensor) -> Tensor:
    """Return x over its root mean square."""
    out, D = torch.empty_like(x), x.shape[-1]
    launch(norm_kernel, (x.numel() // D,), x, out, D=D, WIDTH=triton.next_power_of_2(D))
    return out


def relu_squared_(x: Tensor) -> Tensor:
    """Return the square of what is positive of x, in x's own place."""
    launch(square_kernel, (triton.cdiv(x.numel(), 1024),), x, x.numel(), TILE=1024)
    return x


def sizes_of(qkv: Tensor, keys: Tensor, norms: HeadNorms | None) -> dict[str, Any]:
    """Return the sizes of heads, and how they are normed."""
    KV, D = keys.shape[1], qkv.shape[-1]
    H = qkv.shape[2] - 2 * KV
    kind = 0 if norms is None else 1 + (norms.weights is not None)
    return {"GROUP": H // KV, "D": D, "NORMS": kind, "EPS": 0.0 if norms is None else norms.eps}


def weights_of(qkv: Tensor, norms: HeadNorms | None) -> Tensor:
    """Return the weights (2, d) of norms; anything where there are none."""
    return qkv if norms is None or norms.weights is None else norms.weights


def place(
    qkv: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, slots: Tensor, offsets: Tensor,
    rotary: Tensor, norms: HeadNorms | None,
) -> Tensor:  # fmt: skip
    """Put keys and values of rows (N, R, H + 2 H', d) behind their slots'; return the queries."""
    (N, R, _, D), KV = qkv.shape, keys.shape[1]
    H, S = qkv.shape[2] - 2 * KV, keys.shape[2]
    query = torch.empty(N, R, H, D, device=qkv.device, dtype=qkv.dtype)
    tables = keys, values, lengths, slots, offsets, rotary, weights_of(qkv, norms)
    heads, sizes = triton.next_power_of_2(H), sizes_of(qkv, keys, norms)
    launch(place_kernel, (N * R,), qkv, query, *tables, R, S, H, HEADS=heads, **sizes)
    return query


def attend(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, slots: Tensor, sees: Tensor,
    counts: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return what rows (N, R, H, d) read from their slots and from each other.

    Rows of a text after the first `counts` (N,) are seen by none.
    """
    N, R, H, D = query.shape
    out, (KV, S) = torch.empty_like(query), keys.shape[1:3]
    grid = (N * H, triton.cdiv(R, ROW_TILE))
    settings = how(grid[0] * grid[1])
    tables = keys, values, out, lengths, slots, sees
    limits, settings["COUNTED"] = lengths if counts is None else counts, counts is not None
    launch(
        attend_kernel, grid, query, *tables, limits, R, S,
        H=H, GROUP=H // KV, D=D, ROWS=ROW_TILE, **settings,
    )  # fmt: skip
    return out


def place_and_attend(
    qkv: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, slots: Tensor, rows: Any,
    rotary: Tensor, norms: HeadNorms | None, counts: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return what rows (N, R, H + 2 H', d) read; keys and values are put behind their slots'."""
    N, R, heads, D = qkv.shape
    if R > ROW_TILE:
        query = place(qkv, keys, values, lengths, slots, rows.offsets, rotary, norms)
        return attend(query, keys, values, lengths, slots, rows.sees, counts)
    H, S = heads - 2 * keys.shape[1], keys.shape[2]
    out = torch.empty(N, R, H, D, device=qkv.device, dtype=qkv.dtype)
    tables = keys, values, out, lengths, slots, rows.offsets, rotary, weights_of(qkv, norms)
    settings = how(N * H) | early() | sizes_of(qkv, keys, norms)
    limits, settings["COUNTED"] = lengths if counts is None else counts, counts is not None
    tables += rows.sees, limits
    settings["IS_AHEAD"] = N * H <= MANY
    launch(attend_few_kernel, (N * H,), qkv, *tables, R, S, H=H, ROWS=ROW_TILE, **settings)
    return out


def place_and_attend_alone(
    qkv: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, slots: Tensor, rows: Any,
    rotary: Tensor, norms: HeadNorms | None,
) -> Tensor:  # fmt: skip
    """Do what `place_and_attend` does, to the bit the same for a row whatever is beside it."""
    query = place(qkv, keys, values, lengths, slots, rows.offsets, rotary, norms)
    (N, R, H, D), (KV, S) = query.shape, keys.shape[1:3]
    out = torch.empty_like(query)
    tables, sizes = (keys, values, out, lengths, slots, rows.listed), {"H": H, "GROUP": H // KV}
    launch(
        attend_alone_kernel, (N * R, H), query, *tables, R, S,
        D=D, MOST=R, TILE=KEY_TILE, **sizes,
    )  # fmt: skip
    return out


def how(num_programs: int) -> dict[str, int]:
    """Return the settings of attention: few programs had better be quick, and many be small."""
    if num_programs > MANY:
        return {"TILE": KEY_TILE // 2, "num_warps": 2, "num_stages": 4}
    return {"TILE": KEY_TILE, "num_warps": 4}

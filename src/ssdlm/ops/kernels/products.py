"""Products of a few rows with a layer's weights, and what stands around them, in one launch each.

With few rows a product is as long as its weights take to be read, and a norm before it or a sum
after it is mostly the wait for a launch. The plain references are in `denoiser.layer`. Only a GPU
has Triton, so this module is imported where there is one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.rows import early, launch
from ssdlm.shapes import Tensor

FEW, SOME = 32, 256
"""Numbers of rows up to which a kernel is quicker than a library's two or three (docs/speed.md)."""
WIDEST, WHOLE = 4096, 2048
"""Inputs of two bytes that a program has at hand at once, with up to 8 rows, and with more."""
MOST_WORK = 1 << 24
"""Multiplications of several wide rows up to which a kernel is quicker than a library."""
MANY = 4096
"""Outputs beyond which matrix units are quicker for a single row."""
MOST_COLUMNS = 8192
"""Outputs up to which a plain product is quicker here; more keep a library busy."""


class Plan(NamedTuple):
    """How a product is shared out."""

    columns: int
    """Outputs that a program computes."""
    tile: int
    """Inputs that it reads at a time; 0: all; -n: all, for n rows, without matrix units."""
    warps: int
    stages: int


INVARIANT = Plan(16, 512, 8, 3)
"""For products of which a row is to be the same to the bit, however many there are."""
INVARIANT_ROWS = 16


@triton.jit
def put(
    out, place, may, sums, others, IS_SQUARED: tl.constexpr, IS_GATED: tl.constexpr,
    IS_ADDED: tl.constexpr,
):  # fmt: skip
    """Write sums at some places: squared where positive, or gating others, or added to `out`."""
    if IS_SQUARED:
        sums = tl.maximum(sums, 0.0)
        sums = sums * sums
    if IS_GATED:
        sums = sums * tl.sigmoid(sums) * others
    if IS_ADDED:
        sums += tl.load(out + place, mask=may, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=may)


@triton.jit
def product_kernel(
    x, weight, scale, out, M, N, K: tl.constexpr, EPS: tl.constexpr, HAS_SCALE: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_SQUARED: tl.constexpr, IS_GATED: tl.constexpr,
    IS_ADDED: tl.constexpr, IS_EARLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of rows by a few rows of the weight, from the beginning to the end.

    With IS_GATED a row of the weight has its gate N rows before it. With IS_EARLY a program begins
    while the launch before is still at work: it reads the first tile of weights meanwhile.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column, at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, TILE)
    is_row, is_column = (row < M)[:, None], (column < N)[None, :]
    sums, others = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    left = x + row[:, None] * K + at[None, :]
    right = weight + column[None, :].to(tl.int64) * K + at[:, None]
    b = tl.load(right, mask=is_column & (at < K)[:, None], other=0.0)
    c = b
    if IS_GATED:
        c = tl.load(right + N * K, mask=is_column & (at < K)[:, None], other=0.0)
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for first in range(0, K, TILE):
        inside = first + at < K
        a = tl.load(left + first, mask=is_row & inside[None, :], other=0.0)
        if IS_NORMED:  # a factor for each row, so it may come last
            squares += tl.sum(a.to(tl.float32) * a.to(tl.float32), 1)
        if HAS_SCALE:
            a = (a * tl.load(scale + first + at, mask=inside, other=0.0)[None, :]).to(b.dtype)
        sums += tl.dot(a, b, input_precision="ieee")
        if IS_GATED:
            others += tl.dot(a, c, input_precision="ieee")
        if TILE < K:  # the next tile; behind the last one there is none
            more = is_column & (first + TILE + at < K)[:, None]
            b = tl.load(right + first + TILE, mask=more, other=0.0)
            if IS_GATED:
                c = tl.load(right + N * K + first + TILE, mask=more, other=0.0)
    if IS_NORMED:
        sums = sums * tl.rsqrt(squares / K + EPS)[:, None]
        others = others * tl.rsqrt(squares / K + EPS)[:, None]
    place = row[:, None] * N + column[None, :]
    put(out, place, is_row & is_column, sums, others, IS_SQUARED, IS_GATED, IS_ADDED)


@triton.jit
def weights_at(weight, first, column, N, K: tl.constexpr, TILE: tl.constexpr):
    """Return numbers (TILE, COLUMNS) of some rows of a weight, from the first on."""
    at = first + tl.arange(0, TILE)
    cells = weight + column[None, :].to(tl.int64) * K + at[:, None]
    return tl.load(cells, mask=(column < N)[None, :] & (at < K)[:, None], other=0.0)


@triton.jit
def whole_kernel(
    x, weight, scale, out, M, N, K: tl.constexpr, EPS: tl.constexpr, HAS_SCALE: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_SQUARED: tl.constexpr, IS_GATED: tl.constexpr,
    IS_ADDED: tl.constexpr, IS_EARLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TILE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Multiply all rows by a few rows of the weight, which are read before anything is waited for.

    A row of the weight is taken in two parts, as powers of two, or in one. With IS_EARLY a program
    begins while the launch before is still at work.
    """
    row = tl.arange(0, ROWS)
    column, at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, TILE)
    is_row, is_column = (row < M)[:, None], (column < N)[None, :]
    b = weights_at(weight, 0, column, N, K, TILE)
    c, b2, c2, rest, factor, factor2 = b, b, b, at, at, at
    if IS_GATED:
        c = weights_at(weight + N * K, 0, column, N, K, TILE)
    if HAS_SCALE:
        factor = tl.load(scale + at, mask=at < K, other=0.0)[None, :]
    if REST > 0:
        rest = TILE + tl.arange(0, REST)
        b2 = weights_at(weight, TILE, column, N, K, REST)
        c2 = b2
        if IS_GATED:
            c2 = weights_at(weight + N * K, TILE, column, N, K, REST)
        if HAS_SCALE:
            factor2 = tl.load(scale + rest, mask=rest < K, other=0.0)[None, :]
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    a = tl.load(x + row[:, None] * K + at[None, :], mask=is_row & (at < K)[None, :], other=0.0)
    squares = tl.zeros((ROWS,), tl.float32)
    if IS_NORMED:  # a factor for each row, so it may come last
        squares += tl.sum(a.to(tl.float32) * a.to(tl.float32), 1)
    if HAS_SCALE:
        a = (a * factor).to(b.dtype)
    sums = tl.dot(a, b, input_precision="ieee")
    others = sums
    if IS_GATED:
        others = tl.dot(a, c, input_precision="ieee")
    if REST > 0:
        a2 = tl.load(
            x + row[:, None] * K + rest[None, :], mask=is_row & (rest < K)[None, :], other=0.0
        )
        if IS_NORMED:
            squares += tl.sum(a2.to(tl.float32) * a2.to(tl.float32), 1)
        if HAS_SCALE:
            a2 = (a2 * factor2).to(b.dtype)
        sums += tl.dot(a2, b2, input_precision="ieee")
        if IS_GATED:
            others += tl.dot(a2, c2, input_precision="ieee")
    if IS_NORMED:
        root = tl.rsqrt(squares / K + EPS)[:, None]
        sums, others = sums * root, others * root
    place = row[:, None] * N + column[None, :]
    put(out, place, is_row & is_column, sums, others, IS_SQUARED, IS_GATED, IS_ADDED)


@triton.jit
def fewest_kernel(
    x, weight, scale, out, M, N, K: tl.constexpr, EPS: tl.constexpr, HAS_SCALE: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_SQUARED: tl.constexpr, IS_GATED: tl.constexpr,
    IS_ADDED: tl.constexpr, IS_EARLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Multiply all rows by a few rows of the weight, which are read before anything is waited for.

    With IS_EARLY a program begins while the launch before is still at work.
    """
    column, at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    is_column, inside = column < N, at < K
    right = weight + column[:, None].to(tl.int64) * K + at[None, :]
    may = is_column[:, None] & inside[None, :]
    b = tl.load(right, mask=may, other=0.0).to(tl.float32)
    c = b
    if IS_GATED:
        c = tl.load(right + N * K, mask=may, other=0.0).to(tl.float32)
    if HAS_SCALE:
        factor = tl.load(scale + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        b, c = b * factor, c * factor
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for number in tl.static_range(ROWS):
        row = tl.program_id(1) * ROWS + number
        a = tl.load(x + row * K + at, mask=inside & (row < M), other=0.0).to(tl.float32)
        sums = tl.sum(b * a[None, :], 1)
        root = 1.0
        if IS_NORMED:
            root = tl.rsqrt(tl.sum(a * a) / K + EPS)
            sums = sums * root
        if IS_GATED:
            sums = sums * tl.sigmoid(sums) * tl.sum(c * a[None, :], 1) * root
        may = is_column & (row < M)
        put(out, row * N + column, may, sums, sums, IS_SQUARED, False, IS_ADDED)


def plan_for(M: int, N: int, K: int, *, is_gated: bool = False) -> Plan:
    """Return how to share out a product of M rows of K numbers of two bytes to N."""
    few = 2 if is_gated else 4  # outputs, at most 128 numbers a thread
    if M == 1 and (N <= MANY or K > 1024):
        return Plan(2, -1, 2 if K <= 2048 else 4, 3)
    if M == 2:
        return Plan(few, -2, 2, 3) if K <= 1024 else Plan(few, -1, 4, 3)
    if K <= 1024 and M <= FEW:
        return Plan(32 if N >= 1024 and M <= FEW // 2 else 16, 0, 4, 3)
    if M <= 8 and K <= WIDEST:
        return Plan(few, -1 if M <= 4 else -2, 2 if K <= 2048 else 4, 3)
    if M <= FEW // 2 and K <= WHOLE:
        return Plan(16, 0, 4, 3)
    return Plan(16, 512, 8, 3) if M <= FEW else Plan(64, 128, 4, 4)


def takes_normed(x: Tensor, N: int, *, is_squared: bool) -> bool:
    """Tell whether `normed_product` is the quicker way for rows x (M, K) to N numbers each."""
    M, K = x.shape
    return is_quick(x, N) or (K <= 512 and M <= (SOME if is_squared else FEW))


def is_quick(x: Tensor, N: int) -> bool:
    """Tell whether products of rows x (M, K) with N rows of weights are quicker here.

    Programs have whole rows of weights at hand, which several rows of x read again and again.
    """
    M, K = len(x), width(x)
    if M == 1:
        return K <= WIDEST
    return M <= FEW and (K <= WHOLE // 2 or (K <= WIDEST and M * K * N <= MOST_WORK))


def width(x: Tensor) -> int:
    """Return how long rows are, in numbers of two bytes."""
    return x.shape[-1] * x.element_size() // 2


def multiply(
    x: Tensor, weight: Tensor, out: Tensor, scale: Tensor | None = None, *, eps: float = 1e-6,
    is_normed: bool = False, is_squared: bool = False, is_gated: bool = False,
    is_added: bool = False, plan: Plan | None = None,
) -> Tensor:  # fmt: skip
    """Write x (M, K) @ weight.T to `out` (M, N), normed before, squared, gated or added after.

    Gates are the first half of the weight.
    """
    (M, K), N, x = x.shape, out.shape[1], x.contiguous()  # one row of each text may be a view
    tables = x, weight, x if scale is None else scale, out
    settings = {
        "EPS": eps, "HAS_SCALE": scale is not None, "IS_NORMED": is_normed,
        "IS_SQUARED": is_squared, "IS_GATED": is_gated, "IS_ADDED": is_added,
    }  # fmt: skip
    plan = plan or plan_for(M, N, width(x), is_gated=is_gated)
    if plan.tile < 0:
        grid = (triton.cdiv(N, plan.columns), triton.cdiv(M, -plan.tile))
        launch(
            fewest_kernel, grid, *tables, M, N, K, ROWS=-plan.tile, COLUMNS=plan.columns,
            WIDTH=triton.next_power_of_2(K), num_warps=plan.warps, **settings, **early(),
        )  # fmt: skip
        return out
    if plan.tile == 0:
        whole = 1 << (K.bit_length() - 1)
        launch(
            whole_kernel, (triton.cdiv(N, plan.columns),), *tables, M, N, K,
            ROWS=max(16, triton.next_power_of_2(M)), COLUMNS=plan.columns, TILE=max(16, whole),
            REST=max(16, triton.next_power_of_2(K - whole)) if K > whole else 0,
            num_warps=plan.warps, num_stages=plan.stages, **settings, **early(),
        )  # fmt: skip
        return out
    rows = max(16, min(64, triton.next_power_of_2(M)))
    if plan is INVARIANT:
        rows = INVARIANT_ROWS
    grid = (triton.cdiv(N, plan.columns), triton.cdiv(M, rows))
    launch(
        product_kernel, grid, *tables, M, N, K, ROWS=rows, COLUMNS=plan.columns, TILE=plan.tile,
        num_warps=plan.warps, num_stages=plan.stages, **settings, **early(),
    )  # fmt: skip
    return out


def normed_product(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, *, eps: float = 1e-6,
    is_squared: bool = False, is_gated: bool = False, plan: Plan | None = None,
) -> Tensor:  # fmt: skip
    """Return norm(x) (M, K) @ weight.T; squared where positive, or its second half gated."""
    width = len(weight) // 2 if is_gated else len(weight)
    out = torch.empty(len(x), width, device=x.device, dtype=x.dtype)
    how = {"eps": eps, "is_squared": is_squared, "is_gated": is_gated, "plan": plan}
    return multiply(x, weight, out, scale, is_normed=True, **how)


def add_product_(x: Tensor, other: Tensor, weight: Tensor, *, plan: Plan | None = None) -> Tensor:
    """Return x + other @ weight.T, in x's own place."""
    return multiply(other, weight, x, is_added=True, plan=plan)


def product(x: Tensor, weight: Tensor, *, plan: Plan | None = None) -> Tensor:
    """Return x (..., K) @ weight.T."""
    out = torch.empty(*x.shape[:-1], len(weight), device=x.device, dtype=x.dtype)
    rows = x.reshape(-1, x.shape[-1])
    multiply(rows, weight, out.view(-1, len(weight)), plan=plan)
    return out

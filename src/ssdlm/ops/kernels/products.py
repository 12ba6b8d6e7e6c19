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

FEWEST, FEW, SOME = 4, 32, 256
"""Numbers of rows up to which a kernel is quicker than a library's two or three (docs/speed.md)."""
WIDEST = 4096
"""Inputs that a program has at hand at once, with the fewest rows."""


class Plan(NamedTuple):
    """How a product is shared out."""

    columns: int
    """Outputs that a program computes."""
    tile: int
    """Inputs that it reads at a time."""
    warps: int
    stages: int


INVARIANT = Plan(16, 512, 8, 3)
"""For products of which a row is to be the same to the bit, however many there are."""
INVARIANT_ROWS = 16


@triton.jit
def product_kernel(
    x, weight, scale, out, M, N, K: tl.constexpr, EPS: tl.constexpr, HAS_SCALE: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_SQUARED: tl.constexpr, IS_GATED: tl.constexpr,
    IS_ADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of rows by a few rows of the weight, from the beginning to the end.

    With IS_GATED a row of the weight has its gate N rows before it.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column, at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, TILE)
    is_row, is_column = (row < M)[:, None], (column < N)[None, :]
    sums, others = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    left = x + row[:, None] * K + at[None, :]
    right = weight + column[None, :].to(tl.int64) * K + at[:, None]
    for first in range(0, K, TILE):
        inside = first + at < K
        a = tl.load(left + first, mask=is_row & inside[None, :], other=0.0)
        b = tl.load(right + first, mask=is_column & inside[:, None], other=0.0)
        if IS_NORMED:  # a factor for each row, so it may come last
            squares += tl.sum(a.to(tl.float32) * a.to(tl.float32), 1)
        if HAS_SCALE:
            a = (a * tl.load(scale + first + at, mask=inside, other=0.0)[None, :]).to(b.dtype)
        sums += tl.dot(a, b, input_precision="ieee")
        if IS_GATED:
            b = tl.load(right + N * K + first, mask=is_column & inside[:, None], other=0.0)
            others += tl.dot(a, b, input_precision="ieee")
    if IS_NORMED:
        sums = sums * tl.rsqrt(squares / K + EPS)[:, None]
        others = others * tl.rsqrt(squares / K + EPS)[:, None]
    if IS_SQUARED:
        sums = tl.maximum(sums, 0.0)
        sums = sums * sums
    if IS_GATED:
        sums = sums * tl.sigmoid(sums) * others
    home = out + row[:, None] * N + column[None, :]
    if IS_ADDED:
        sums += tl.load(home, mask=is_row & is_column, other=0.0).to(tl.float32)
    tl.store(home, sums.to(out.dtype.element_ty), mask=is_row & is_column)


@triton.jit
def fewest_kernel(
    x, weight, scale, out, N, K: tl.constexpr, EPS: tl.constexpr, HAS_SCALE: tl.constexpr,
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
    for row in tl.static_range(ROWS):
        a = tl.load(x + row * K + at, mask=inside, other=0.0).to(tl.float32)
        sums = tl.sum(b * a[None, :], 1)
        root = 1.0
        if IS_NORMED:
            root = tl.rsqrt(tl.sum(a * a) / K + EPS)
            sums = sums * root
        if IS_SQUARED:
            sums = tl.maximum(sums, 0.0)
            sums = sums * sums
        if IS_GATED:
            sums = sums * tl.sigmoid(sums) * tl.sum(c * a[None, :], 1) * root
        home = out + row * N + column
        if IS_ADDED:
            sums += tl.load(home, mask=is_column, other=0.0).to(tl.float32)
        tl.store(home, sums.to(out.dtype.element_ty), mask=is_column)


def plan_for(M: int) -> Plan:
    """Return how to share out a product of M rows."""
    return Plan(16, 512, 8, 3) if M <= FEW else Plan(64, 128, 4, 4)


def fewest_plan(K: int) -> tuple[int, int]:
    """Return how many outputs a program computes, and its warps: at most 64 numbers a thread."""
    return 2, (2 if K <= 2048 else 4)


def takes_normed(M: int, K: int, *, is_squared: bool) -> bool:
    """Tell whether `normed_product` is the quicker way, for M rows of K numbers."""
    return is_fewest(M, K) or (K <= 512 and M <= (SOME if is_squared else FEW))


def takes_added(M: int, K: int) -> bool:
    """Tell whether `add_product_` is the quicker way."""
    return is_fewest(M, K) or (K <= 1024 and M <= FEW // 2)


def is_fewest(M: int, K: int) -> bool:
    """Tell whether a program reads its weights as a whole."""
    return M <= FEWEST and K <= WIDEST


def multiply(
    x: Tensor, weight: Tensor, out: Tensor, scale: Tensor | None = None, *, eps: float = 1e-6,
    is_normed: bool = False, is_squared: bool = False, is_gated: bool = False,
    is_added: bool = False, plan: Plan | None = None,
) -> Tensor:  # fmt: skip
    """Write x (M, K) @ weight.T to `out` (M, N), normed before, squared, gated or added after.

    Gates are the first half of the weight.
    """
    (M, K), N = x.shape, out.shape[1]
    tables = x, weight, x if scale is None else scale, out
    settings = {
        "EPS": eps, "HAS_SCALE": scale is not None, "IS_NORMED": is_normed,
        "IS_SQUARED": is_squared, "IS_GATED": is_gated, "IS_ADDED": is_added,
    }  # fmt: skip
    if is_fewest(M, K) and plan is None:
        columns, warps = fewest_plan(K)
        launch(
            fewest_kernel, (triton.cdiv(N, columns),), *tables, N, K, ROWS=M, COLUMNS=columns,
            WIDTH=triton.next_power_of_2(K), num_warps=warps, **settings, **early(),
        )  # fmt: skip
        return out
    plan = plan or plan_for(M)
    rows = max(16, min(64, triton.next_power_of_2(M)))
    if plan is INVARIANT:
        rows = INVARIANT_ROWS
    grid = (triton.cdiv(N, plan.columns), triton.cdiv(M, rows))
    launch(
        product_kernel, grid, *tables, M, N, K, ROWS=rows, COLUMNS=plan.columns, TILE=plan.tile,
        num_warps=plan.warps, num_stages=plan.stages, **settings,
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


def invariant_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x (..., K) @ weight.T; a row is the same to the bit, however many there are."""
    out = torch.empty(*x.shape[:-1], len(weight), device=x.device, dtype=x.dtype)
    rows = x.reshape(-1, x.shape[-1])
    multiply(rows, weight, out.view(-1, len(weight)), plan=INVARIANT)
    return out

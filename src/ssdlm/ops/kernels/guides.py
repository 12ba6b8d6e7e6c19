"""A classifier of one small layer, there and back, in one launch for a text; for GPUs.

Forwards and backwards it is some sixty products of vectors, each a launch of its own and none of
them any work. The plain reference is `guidance.growing.GrowingGuide`. Only a GPU has Triton, so
this module is imported where there is one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.rows import launch
from ssdlm.shapes import Tensor

WIDEST = 128
"""Numbers in a classifier's hidden vectors for which a program has room."""
WARPS = 4


class Packed(NamedTuple):
    """The weights of a classifier, each vector and each side of a matrix padded by zeros."""

    matrices: Tensor
    """(6, X, X): scores of each head's numbers, values, output, up, down, dense."""
    vectors: Tensor
    """(12, X): norm, bias of scores, of values, of output; norm, bias of up, of down; norm, ..."""
    head: Tensor
    """(labels, X), and a column of biases more."""
    places: Tensor
    """(3, L, X): what a place adds; the scores and values of the closing token there."""


@triton.jit
def row_of(vectors, number: tl.constexpr, X: tl.constexpr):
    return tl.load(vectors + number * X + tl.arange(0, X))


@triton.jit
def matrix_of(matrices, number: tl.constexpr, X: tl.constexpr):
    return tl.load(
        matrices + number * X * X + tl.arange(0, X)[:, None] * X + tl.arange(0, X)[None, :]
    )


@triton.jit
def times(matrix, x):
    """Return matrix @ x."""
    return tl.sum(matrix * x[None, :], 1)


@triton.jit
def back(matrix, x):
    """Return matrix.T @ x."""
    return tl.sum(matrix * x[:, None], 0)


@triton.jit
def scaled(x, is_in, D, eps):
    """Return x, centred and over its deviation, and one over that."""
    x = tl.where(is_in, x - tl.sum(x, 0) / D, 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(x * x, 0) / D + eps)
    return x * factor, factor


@triton.jit
def scaled_back(gradient, x, factor, is_in, D):
    """Return the gradient before `scaled`, whose results were x and factor."""
    rest = tl.sum(gradient, 0) / D + x * (tl.sum(gradient * x, 0) / D)
    return tl.where(is_in, factor * (gradient - rest), 0.0)


@triton.jit
def label_gradient(
    scores, number, is_label, label, IS_AVOIDED: tl.constexpr, IS_ALONE: tl.constexpr
):
    """Return the gradient of a label's log-probability in the scores of all labels."""
    is_it = number == label
    scores = tl.where(is_label, scores, -float("inf"))
    shares = tl.exp(scores - tl.max(scores, 0))
    probs = shares / tl.sum(shares, 0)
    if IS_ALONE:
        sign = -1.0 if IS_AVOIDED else 1.0
        gradient = tl.where(is_it, sign / (1.0 + tl.exp(sign * scores)), 0.0)
    elif IS_AVOIDED:
        scores = tl.where(is_it, -float("inf"), scores)
        shares = tl.exp(scores - tl.max(scores, 0))
        gradient = shares / tl.sum(shares, 0) - probs
    else:
        gradient = tl.where(is_it, 1.0, 0.0) - probs
    return gradient


@triton.jit
def climb_kernel(
    soft, tokens, active, lengths, table, matrices, vectors, head, places, scores, values, out,
    D, H, L, C, label, eps, HAS_END: tl.constexpr, IS_AVOIDED: tl.constexpr,
    IS_ALONE: tl.constexpr, X: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """Read one text's last token, and find the gradient in the soft word that is open behind it."""
    text, column = tl.program_id(0).to(tl.int64), tl.arange(0, X)
    is_in, d = column < D, D // H
    length, token = tl.load(lengths + text), tl.load(tokens + text)
    # All that is known of a head is known to each of its numbers.
    past = tl.load(scores + text * H + column // d, mask=is_in, other=0.0)
    mean = tl.load(values + text * D + column, mask=is_in, other=0.0)
    word = tl.load(table + token * D + column, mask=is_in, other=0.0)
    word += tl.load(places + length * X + column)
    open_ = tl.load(soft + text * D + column, mask=is_in, other=0.0)
    open_ += tl.load(places + (length + 1) * X + column)
    gain, bias = row_of(vectors, 0, X), row_of(vectors, 1, X)
    word, _ = scaled(word, is_in, D, eps)
    first_x, first_factor = scaled(open_, is_in, D, eps)
    word, open_ = word * gain + bias, first_x * gain + bias
    asked = matrix_of(matrices, 0, X)
    new, score = times(asked, word), times(asked, open_)
    new, score = new + row_of(vectors, 2, X), score + row_of(vectors, 2, X)
    valued = matrix_of(matrices, 1, X)
    new_value, value = times(valued, word), times(valued, open_)
    new_value, value = new_value + row_of(vectors, 3, X), value + row_of(vectors, 3, X)
    # The token before is a part of what is decided from now on.
    mean += (new_value - mean) / (1.0 + tl.exp(past - new))
    top = tl.maximum(past, new)
    past = top + tl.log(tl.exp(past - top) + tl.exp(new - top))
    is_active = tl.load(active + text) != 0
    tl.debug_barrier()
    tl.store(scores + text * H + column // d, past, mask=is_in & (column % d == 0) & is_active)
    tl.store(values + text * D + column, mean, mask=is_in & is_active)
    # The first position's attention.
    top = tl.maximum(past, score)
    closing = top
    if HAS_END:
        closing = tl.load(places + (L + length + 2) * X + column)
        top = tl.maximum(top, closing)
    share, before = tl.exp(score - top), tl.exp(past - top)
    total, read = share + before, share * value + before * mean
    if HAS_END:
        end = tl.exp(closing - top)
        total += end
        read += end * tl.load(places + (2 * L + length + 2) * X + column)
    share, read = share / total, read / total
    hidden = times(matrix_of(matrices, 2, X), read) + row_of(vectors, 4, X)
    second_x, second_factor = scaled(hidden, is_in, D, eps)
    hidden = second_x * row_of(vectors, 5, X) + row_of(vectors, 6, X)
    up = times(matrix_of(matrices, 3, X), hidden) + row_of(vectors, 7, X)
    hidden += times(matrix_of(matrices, 4, X), tl.maximum(up, 0.0)) + row_of(vectors, 8, X)
    third_x, third_factor = scaled(hidden, is_in, D, eps)
    hidden = third_x * row_of(vectors, 9, X) + row_of(vectors, 10, X)
    dense = times(matrix_of(matrices, 5, X), hidden) + row_of(vectors, 11, X)
    dense = 2.0 / (1.0 + tl.exp(-2.0 * dense)) - 1.0
    number = tl.arange(0, LABELS)
    last = tl.load(
        head + number[:, None] * (X + 1) + column[None, :], mask=(number < C)[:, None], other=0.0
    )
    found = times(last, dense) + tl.load(head + number * (X + 1) + X, mask=number < C, other=0.0)
    slope = label_gradient(found, number, number < C, label, IS_AVOIDED, IS_ALONE)
    # And back.
    slope = back(last, slope) * (1.0 - dense * dense)
    slope = back(matrix_of(matrices, 5, X), slope) * row_of(vectors, 9, X)
    slope = scaled_back(slope, third_x, third_factor, is_in, D)
    inner = tl.where(up > 0, back(matrix_of(matrices, 4, X), slope), 0.0)
    slope += back(matrix_of(matrices, 3, X), inner)
    slope = scaled_back(slope * row_of(vectors, 5, X), second_x, second_factor, is_in, D)
    slope = back(matrix_of(matrices, 2, X), slope) * share
    slope = back(matrix_of(matrices, 1, X), slope) + back(
        matrix_of(matrices, 0, X), slope * (value - read)
    )
    slope = scaled_back(slope * row_of(vectors, 0, X), first_x, first_factor, is_in, D)
    tl.store(out + text * D + column, slope, mask=is_in)


def fits(D: int, inner: int) -> bool:
    """Tell whether a layer of D numbers, and so many inside, has room in a program."""
    return max(D, inner) <= WIDEST


def climb(
    soft: Tensor, tokens: Tensor, active: Tensor, lengths: Tensor, table: Tensor, packed: Packed,
    scores: Tensor, values: Tensor, *, label: int, is_avoided: bool, is_alone: bool,
    has_end: bool, eps: float,
) -> Tensor:  # fmt: skip
    """Return the gradient of log p(label) in the soft words (N, 1, D) behind texts.

    Of each text the last token is read first; what is known of active ones, (N, H) scores and
    (N, H, d) values, has it from then on.
    """
    (N, _, D), (C, X), H = soft.shape, packed.head.shape, scores.shape[1]
    out, X = torch.empty_like(soft), X - 1
    launch(
        climb_kernel, (N,), soft, tokens, active, lengths, table, *packed, scores, values, out,
        D, H, packed.places.shape[1], C, label, eps, HAS_END=has_end, IS_AVOIDED=is_avoided,
        IS_ALONE=is_alone, X=X, LABELS=max(2, triton.next_power_of_2(C)), num_warps=WARPS,
    )  # fmt: skip
    return out

"""Rows behind cached keys and values, and draws from logits, by a few launches; for GPUs.

A pass over a handful of rows is bound by launches, not by arithmetic. Here a layer's attention is
two of them, its norms one each, and drawing a token from 8,192 logits is one. The plain references
are in `denoiser.slots`. Only a GPU has Triton, so this module is imported where there is one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ssdlm.denoiser.kernels.normals import box_muller, unit
from ssdlm.shapes import Tensor

ROW_TILE = 16
"""Rows that a program of attention takes: the least that matrix units do."""
KEY_TILE = 64
MANY = 1000
"""Programs from which on a GPU is full of them."""
WARPS = 16
"""For a program that has a whole row of logits to itself."""
WIDE = 8192
"""Logits that such a program has at hand at once."""


@triton.jit
def normed(x, D: tl.constexpr):
    """Return x over its root mean square along the last axis, in float32."""
    return x * tl.rsqrt(tl.sum(x * x, -1, keep_dims=True) / D + 1e-6)


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
def turned(base, column, other, cos, sin, mask, kind: tl.constexpr, D: tl.constexpr):
    """Return normed vectors of all heads, rotated."""
    x = normed(tl.load(base + column, mask=mask, other=0.0).to(tl.float32), D)
    y = normed(tl.load(base + other, mask=mask, other=0.0).to(tl.float32), D)
    return (x.to(kind).to(tl.float32) * cos + y.to(kind).to(tl.float32) * sin).to(kind)


@triton.jit
def place_kernel(
    qkv, query, keys, values, lengths, slots, offsets, rotary, R, S, H,
    HEADS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Norm and rotate one row's queries and keys; put keys and values behind its slot's."""
    text, row = tl.program_id(0) // R, tl.program_id(0) % R
    slot, length = tl.load(slots + text).to(tl.int64), tl.load(lengths + text)
    place = length + tl.load(offsets + row)
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, D)[None, :]
    other, mask = (column + D // 2) % D, (head < H) & (column < D)
    base = qkv + tl.program_id(0).to(tl.int64) * 3 * H * D + head * D
    cos = tl.load(rotary + place * 2 * D + column)
    sin = tl.load(rotary + place * 2 * D + D + column)
    kind: tl.constexpr = query.dtype.element_ty
    at = tl.program_id(0).to(tl.int64) * H * D + head * D + column
    tl.store(query + at, turned(base, column, other, cos, sin, mask, kind, D), mask=mask)
    base += H * D
    home = ((slot * H + head) * S + length + row) * D + column
    tl.store(keys + home, turned(base, column, other, cos, sin, mask, kind, D), mask=mask)
    value = tl.load(base + H * D + column, mask=mask, other=0.0)
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
    query, keys, values, out, lengths, slots, sees, R, S,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attend from a tile of a text's rows to its slot, all of it, and to the rows it may see."""
    text, head = tl.program_id(0) // H, tl.program_id(0) % H
    slot, length = tl.load(slots + text).to(tl.int64), tl.load(lengths + text)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)[None, :]
    is_row = row < R
    at = ((text.to(tl.int64) * R + row[:, None]) * H + head) * D + column
    q = tl.load(query + at, mask=is_row[:, None], other=0.0)
    keys += (slot * H + head) * S * D
    values += (slot * H + head) * S * D
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
    for first in range(0, R, TILE):
        other = first + tl.arange(0, TILE)
        may = is_row[:, None] & (other < R)[None, :]
        seen = tl.load(sees + row[:, None] * R + other[None, :], mask=may, other=0) != 0
        if tl.sum(seen.to(tl.int32)) > 0:  # of a tree's rows most see few
            peak, total, sums = look_at(q, keys, values, first, R, seen, peak, total, sums, D, TILE)
    result = sums / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def attend_few_kernel(
    qkv, keys, values, out, lengths, slots, offsets, rotary, sees, R, S,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Do what `place_kernel` and `attend_kernel` do for one head of one text of a few rows."""
    text, head = tl.program_id(0) // H, tl.program_id(0) % H
    slot, length = tl.load(slots + text).to(tl.int64), tl.load(lengths + text)
    row, column = tl.arange(0, ROWS), tl.arange(0, D)[None, :]
    is_row = (row < R)[:, None]
    other = (column + D // 2) % D
    turn = rotary + (length + tl.load(offsets + row, mask=row < R, other=0))[:, None] * 2 * D
    cos = tl.load(turn + column, mask=is_row, other=0.0)
    sin = tl.load(turn + D + column, mask=is_row, other=0.0)
    base = qkv + ((text.to(tl.int64) * R + row[:, None]) * 3 * H + head) * D
    kind: tl.constexpr = out.dtype.element_ty
    q = turned(base, column, other, cos, sin, is_row, kind, D)
    k = turned(base + H * D, column, other, cos, sin, is_row, kind, D)
    v = tl.load(base + 2 * H * D + column, mask=is_row, other=0.0)
    keys += (slot * H + head) * S * D
    values += (slot * H + head) * S * D
    home = (length + row[:, None]) * D + column
    tl.store(keys + home, k, mask=is_row)
    tl.store(values + home, v, mask=is_row)
    may = is_row & (row < R)[None, :]
    seen = tl.load(sees + row[:, None] * R + row[None, :], mask=may, other=0) != 0
    peak = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    peak, total, sums = look(q, k, v, seen, peak, total, tl.zeros((ROWS, D), tl.float32), D)
    all_seen = tl.full((ROWS, TILE), 1, tl.int1)
    for first in range(0, length, TILE):
        peak, total, sums = look_at(
            q, keys, values, first, length, all_seen, peak, total, sums, D, TILE
        )
    result = sums / tl.maximum(total, 1e-30)[:, None]
    at = ((text.to(tl.int64) * R + row[:, None]) * H + head) * D + column
    tl.store(out + at, result.to(kind), mask=is_row)


@triton.jit
def share_of(logits, prior, first, V, heat, suppressed, TILE: tl.constexpr):
    """Return a tile of what the network adds to the evidence, over the temperature."""
    at = first + tl.arange(0, TILE)
    values = tl.load(logits + at, mask=at < V, other=-float("inf")).to(tl.float32)
    values += tl.load(prior + at, mask=at < V, other=0.0)
    return tl.where(at == suppressed, -1e4, values) / heat


@triton.jit
def nucleus_of(logits, prior, V, heat, never, top_p, TILE: tl.constexpr):
    """Return the best token, peak and sum of a softmax, and the least bits within its nucleus."""
    peak, best = -float("inf"), 0
    for first in range(0, V, TILE):
        values = share_of(logits, prior, first, V, heat, never, TILE)
        top = tl.max(values, 0)
        best = tl.where(top > peak, first + tl.argmax(values, 0), best)
        peak = tl.maximum(peak, top)
    shares = tl.zeros((TILE,), tl.float32)
    for first in range(0, V, TILE):
        shares += tl.exp(share_of(logits, prior, first, V, heat, never, TILE) - peak)
    total = tl.sum(shares)
    # Probabilities are at most 1: their bits are below 2**30. Sought are the most bits from which
    # on there is at least p: three cuts a pass, a quarter is left.
    low, size = 0, 1 << 30
    if top_p < 1:
        probs = tl.exp(share_of(logits, prior, 0, V, heat, never, TILE) - peak) / total
        while size > 1:
            size = size // 4
            above = tl.zeros((TILE,), tl.float32)
            one, two, three = above, above, above
            for first in range(0, V, TILE):
                if V > TILE:  # else what is there is all
                    values = share_of(logits, prior, first, V, heat, never, TILE)
                    probs = tl.exp(values - peak) / total
                bits = probs.to(tl.int32, bitcast=True)
                one += tl.where(bits >= low + size, probs, 0.0)
                two += tl.where(bits >= low + 2 * size, probs, 0.0)
                three += tl.where(bits >= low + 3 * size, probs, 0.0)
            jumps = (tl.sum(one) >= top_p).to(tl.int32) + (tl.sum(two) >= top_p).to(tl.int32)
            low += size * (jumps + (tl.sum(three) >= top_p).to(tl.int32))
    return best, peak, total, low


@triton.jit
def is_inside(share, peak, total, low):
    """Tell which tokens of a tile are in the nucleus."""
    return (tl.exp(share - peak) / total).to(tl.int32, bitcast=True) >= low


@triton.jit
def draw_kernel(
    logits, prior, evidence, suppressed, heats, top_ps, seeds, steps, streams, out, V, W,
    HAS_EVIDENCE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Draw one token from the nucleus of one row of logits, by the row's own uniform number."""
    row = tl.program_id(0).to(tl.int64)
    text = row // W
    logits += row * V
    evidence += row * V
    heat, top_p = tl.load(heats + text), tl.load(top_ps + text)
    never = tl.load(suppressed + text)
    best, peak, total, low = nucleus_of(logits, prior, V, heat, never, top_p, TILE)
    crown, mass = peak, 0.0
    if HAS_EVIDENCE:
        crown = -float("inf")
        for first in range(0, V, TILE):
            values = share_of(logits, prior, first, V, heat, never, TILE)
            inside, at = is_inside(values, peak, total, low), first + tl.arange(0, TILE)
            values += tl.load(evidence + at, mask=at < V, other=0.0)
            crown = tl.maximum(crown, tl.max(tl.where(inside, values, -float("inf")), 0))
    for first in range(0, V, TILE):
        values = share_of(logits, prior, first, V, heat, never, TILE)
        inside, at = is_inside(values, peak, total, low), first + tl.arange(0, TILE)
        if HAS_EVIDENCE:
            values += tl.load(evidence + at, mask=at < V, other=0.0)
        mass += tl.sum(tl.where(inside, tl.exp(values - crown), 0.0))
    same = tl.zeros((1,), tl.int32)
    position, step = same + (row % W).to(tl.int32), same + tl.load(steps + text).to(tl.int32)
    stream = same + tl.load(streams + text).to(tl.int32)
    word, _, _, _ = tl.philox(tl.load(seeds + text), same, position, step, stream)
    target = tl.sum(unit(word)) * mass
    before, chosen = 0.0, 0
    for first in range(0, V, TILE):
        values = share_of(logits, prior, first, V, heat, never, TILE)
        inside, at = is_inside(values, peak, total, low), first + tl.arange(0, TILE)
        if HAS_EVIDENCE:
            values += tl.load(evidence + at, mask=at < V, other=0.0)
        sums = before + tl.cumsum(tl.where(inside, tl.exp(values - crown), 0.0))
        chosen += tl.sum(((sums <= target) & (at < V)).to(tl.int32))
        before = tl.max(sums, 0)
    # Rounding may carry the target to the very end of the sum, where no token is.
    chosen = tl.where((top_p <= 0) | (chosen >= V), best, chosen)
    tl.store(out + row, chosen.to(tl.int64))


@triton.jit
def mass_from(shares, low, V, TILE: tl.constexpr):
    """Return the sum of a row's shares whose bits are `low` or more."""
    sums = tl.zeros((TILE,), tl.float32)
    for first in range(0, V, TILE):
        at = first + tl.arange(0, TILE)
        share = tl.load(shares + at, mask=at < V, other=0.0)
        sums += tl.where(share.to(tl.int32, bitcast=True) >= low, share, 0.0)
    return tl.sum(sums)


@triton.jit
def draw_wide_kernel(
    logits, prior, suppressed, heats, top_ps, seeds, steps, streams, shares, few, out, V, W,
    TILE: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Do what `draw_kernel` does for a wide vocabulary without evidence.

    What is looked at again and again is written down once: exp(logits - peak), and of those the few
    among which the nucleus ends.
    """
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    text = row // W
    logits, shares, few = logits + row * V, shares + row * V, few + row * FEW
    heat, top_p, never = tl.load(heats + text), tl.load(top_ps + text), tl.load(suppressed + text)
    tops = tl.full((TILE,), -float("inf"), tl.float32)
    for first in range(0, V, TILE):
        tops = tl.maximum(tops, share_of(logits, prior, first, V, heat, never, TILE))
    peak = tl.max(tops, 0)
    sums, bests = tl.zeros((TILE,), tl.float32), tl.full((TILE,), 1 << 30, tl.int32)
    for first in range(0, V, TILE):
        values = share_of(logits, prior, first, V, heat, never, TILE)
        share, at = tl.exp(values - peak), first + column
        tl.store(shares + at, share, mask=at < V)
        sums += share
        bests = tl.minimum(bests, tl.where(values == peak, at, 1 << 30))
    mass, best = tl.sum(sums), tl.min(bests, 0)
    tl.debug_barrier()
    low, size = 0, 1 << 30
    if (top_p < 1) & (top_p > 0):
        wanted = top_p * mass
        for _ in range(4):  # as in `nucleus_of`
            size = size // 4
            above = tl.zeros((TILE,), tl.float32)
            one, two, three = above, above, above
            for first in range(0, V, TILE):
                at = first + column
                share = tl.load(shares + at, mask=at < V, other=0.0)
                bits = share.to(tl.int32, bitcast=True)
                one += tl.where(bits >= low + size, share, 0.0)
                two += tl.where(bits >= low + 2 * size, share, 0.0)
                three += tl.where(bits >= low + 3 * size, share, 0.0)
            jumps = (tl.sum(one) >= wanted).to(tl.int32) + (tl.sum(two) >= wanted).to(tl.int32)
            low += size * (jumps + (tl.sum(three) >= wanted).to(tl.int32))
        higher, count = mass_from(shares, low + size, V, TILE), 0
        for first in range(0, V, TILE):
            at = first + column
            share = tl.load(shares + at, mask=at < V, other=0.0)
            bits = share.to(tl.int32, bitcast=True)
            is_open = (bits >= low) & (bits < low + size) & (at < V)
            place = count + tl.cumsum(is_open.to(tl.int32)) - 1
            tl.store(few + place, share, mask=is_open & (place < FEW))
            count += tl.sum(is_open.to(tl.int32))
        tl.debug_barrier()
        at = tl.arange(0, FEW)
        share = tl.load(few + at, mask=at < count, other=0.0)
        bits = share.to(tl.int32, bitcast=True)
        while size > 1:
            size = size // 2
            if count <= FEW:
                found = higher + tl.sum(tl.where(bits >= low + size, share, 0.0))
            else:
                found = mass_from(shares, low + size, V, TILE)
            low += size * (found >= wanted).to(tl.int32)
        mass = mass_from(shares, low, V, TILE)
    same = tl.zeros((1,), tl.int32)
    position, step = same + (row % W).to(tl.int32), same + tl.load(steps + text).to(tl.int32)
    stream = same + tl.load(streams + text).to(tl.int32)
    word, _, _, _ = tl.philox(tl.load(seeds + text), same, position, step, stream)
    target = tl.sum(unit(word)) * mass
    before, chosen = 0.0, V
    for first in range(0, V, TILE):
        at = first + column
        share = tl.load(shares + at, mask=at < V, other=0.0)
        share = tl.where(share.to(tl.int32, bitcast=True) >= low, share, 0.0)
        here = tl.sum(share)
        if (chosen == V) & (before + here > target):
            chosen = first + tl.sum((before + tl.cumsum(share) <= target).to(tl.int32))
        before += here
    # Rounding may carry the target to the very end of the sum, where no token is.
    chosen = tl.where((top_p <= 0) | (chosen >= V), best, chosen)
    tl.store(out + row, chosen.to(tl.int64))


@triton.jit
def rest_to_gumbel(word):
    """Return -log(-log u) of a 32-bit word that stands for 1 - u."""
    rest = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355)
    # -log(1 - rest) without loss where rest is small: what rounding took off 1 - rest is put back.
    whole = 1.0 - rest
    exact = tl.where(whole == 1.0, 1.0, -tl.log(whole) / (1.0 - whole))
    return -tl.log(rest * exact)


@triton.jit
def gumbel_tile(seed, place, first, stream, COUNTERS: tl.constexpr):
    """Return the Gumbel noise of a tile of the vocabulary at a place of a text."""
    counter = first // 4 + tl.arange(0, COUNTERS)
    same = tl.zeros_like(counter)
    a, b, c, d = tl.philox(seed, counter, same + place.to(tl.int32), same, same + stream)
    # Counter by counter, a b c d: the order of `noise.gumbel`.
    return rest_to_gumbel(tl.interleave(tl.interleave(a, c), tl.interleave(b, d)))


@triton.jit
def perturbed_kernel(
    logits, prior, suppressed, heats, top_ps, seeds, places, stream, out, V, R,
    TILE: tl.constexpr, COUNTERS: tl.constexpr,
):  # fmt: skip
    """Take the greatest of log p, cut to its nucleus, and the Gumbel noise of the row's place."""
    row = tl.program_id(0).to(tl.int64)
    text = row // R
    logits += row * V
    heat, top_p = tl.load(heats + text), tl.load(top_ps + text)
    never, seed = tl.load(suppressed + text), tl.load(seeds + text)
    best, peak, total, low = nucleus_of(logits, prior, V, heat, never, top_p, TILE)
    crown, chosen = -float("inf"), best
    for first in range(0, V, TILE):
        values = share_of(logits, prior, first, V, heat, never, TILE)
        noise = gumbel_tile(seed, tl.load(places + row), first, stream, COUNTERS)
        inside = is_inside(values, peak, total, low)
        values = tl.where(inside, values + noise, -float("inf"))
        top = tl.max(values, 0)
        chosen = tl.where(top > crown, first + tl.argmax(values, 0), chosen)
        crown = tl.maximum(crown, top)
    tl.store(out + row, tl.where(top_p <= 0, best, chosen).to(tl.int64))


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


@triton.jit
def evidence_kernel(
    tokens, gain_z, gain_w, seeds, steps, stream, out, V, W, FIRST, TILE: tl.constexpr
):
    """Write the evidence of a drawn token at a new level: noise, and a bonus at the token."""
    place = tl.program_id(0).to(tl.int64)
    text, position = place // W, place % W
    counter = tl.program_id(1) * TILE + tl.arange(0, TILE)
    same = tl.zeros_like(counter)
    seed, step = tl.load(seeds + text), tl.load(steps + text).to(tl.int32)
    a, b, c, d = tl.philox(
        seed, counter, same + position.to(tl.int32) + FIRST, same + step, same + stream
    )
    z0, z1 = box_muller(a, b)
    z2, z3 = box_muller(c, d)
    z = tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3))
    column = tl.program_id(1) * 4 * TILE + tl.arange(0, 4 * TILE)
    bonus = tl.where(column == tl.load(tokens + place), tl.load(gain_w + position), 0.0)
    value = tl.load(gain_z + position) * z + bonus
    tl.store(out + place * V + column, value, mask=column < V)


def fits(d: int) -> bool:
    """Tell whether heads of d numbers can be attended with."""
    return d >= 16 and triton.next_power_of_2(d) == d


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Run a kernel, unless there is nothing to do."""
    if all(grid):
        kernel[grid](*arguments, **settings)


def norm(x: Tensor) -> Tensor:
    """Return x over its root mean square."""
    out, D = torch.empty_like(x), x.shape[-1]
    launch(norm_kernel, (x.numel() // D,), x, out, D=D, WIDTH=triton.next_power_of_2(D))
    return out


def relu_squared_(x: Tensor) -> Tensor:
    """Return the square of what is positive of x, in x's own place."""
    launch(square_kernel, (triton.cdiv(x.numel(), 1024),), x, x.numel(), TILE=1024)
    return x


def place(
    qkv: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, slots: Tensor, offsets: Tensor,
    rotary: Tensor,
) -> Tensor:  # fmt: skip
    """Put keys and values of rows (N, R, 3, H, d) behind their slots'; return the queries."""
    N, R, _, H, D = qkv.shape
    query = torch.empty(N, R, H, D, device=qkv.device, dtype=qkv.dtype)
    S = keys.shape[2]
    tables = keys, values, lengths, slots, offsets, rotary
    heads = triton.next_power_of_2(H)
    launch(place_kernel, (N * R,), qkv, query, *tables, R, S, H, HEADS=heads, D=D)
    return query


def attend(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, slots: Tensor, sees: Tensor
) -> Tensor:
    """Return what rows (N, R, H, d) read from their slots and from each other."""
    N, R, H, D = query.shape
    out, S = torch.empty_like(query), keys.shape[2]
    grid = (N * H, triton.cdiv(R, ROW_TILE))
    tables = keys, values, out, lengths, slots, sees
    settings = how(grid[0] * grid[1])
    launch(attend_kernel, grid, query, *tables, R, S, H=H, D=D, ROWS=ROW_TILE, **settings)
    return out


def place_and_attend(
    qkv: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, slots: Tensor, rows: Any,
    rotary: Tensor,
) -> Tensor:  # fmt: skip
    """Return what rows (N, R, 3, H, d) read; their keys and values are put behind their slots'."""
    N, R, _, H, D = qkv.shape
    if R > ROW_TILE:
        query = place(qkv, keys, values, lengths, slots, rows.offsets, rotary)
        return attend(query, keys, values, lengths, slots, rows.sees)
    out, S = torch.empty(N, R, H, D, device=qkv.device, dtype=qkv.dtype), keys.shape[2]
    tables = keys, values, out, lengths, slots, rows.offsets, rotary, rows.sees
    launch(attend_few_kernel, (N * H,), qkv, *tables, R, S, H=H, D=D, ROWS=ROW_TILE, **how(N * H))
    return out


def how(num_programs: int) -> dict[str, int]:
    """Return the settings of attention: few programs had better be quick, and many be small."""
    if num_programs > MANY:
        return {"TILE": KEY_TILE // 2, "num_warps": 2, "num_stages": 4}
    return {"TILE": KEY_TILE, "num_warps": 4}


def draw(
    logits: Tensor, prior: Tensor, evidence: Tensor | None, suppressed: Tensor, heats: Tensor,
    top_ps: Tensor, seeds: Tensor, steps: Tensor, streams: Tensor,
) -> Tensor:  # fmt: skip
    """Draw tokens (N, W) from logits (N, W, V) without the prior; settings are one per text."""
    N, W, V = logits.shape
    if evidence is None and V > WIDE:
        settings = suppressed, heats, top_ps, seeds, steps, streams
        return draw_wide(logits, prior, *settings, tile=WIDE, few=WIDE // 4)
    out = torch.empty(N, W, device=logits.device, dtype=torch.int64)
    tile = min(triton.next_power_of_2(V), WIDE)
    other = logits if evidence is None else evidence
    launch(
        draw_kernel, (N * W,), logits, prior, other, suppressed, heats, top_ps, seeds, steps,
        streams, out, V, W, HAS_EVIDENCE=evidence is not None, TILE=tile, num_warps=WARPS,
    )  # fmt: skip
    return out


def draw_wide(
    logits: Tensor, prior: Tensor, suppressed: Tensor, heats: Tensor, top_ps: Tensor,
    seeds: Tensor, steps: Tensor, streams: Tensor, *, tile: int, few: int,
) -> Tensor:  # fmt: skip
    """Do what `draw` does without evidence, by notes of so many numbers at a time."""
    N, W, V = logits.shape
    out = torch.empty(N, W, device=logits.device, dtype=torch.int64)
    shares = torch.empty(N * W, V, device=logits.device)
    short = torch.empty(N * W, few, device=logits.device)
    launch(
        draw_wide_kernel, (N * W,), logits, prior, suppressed, heats, top_ps, seeds, steps, streams,
        shares, short, out, V, W, TILE=tile, FEW=few, num_warps=WARPS,
    )  # fmt: skip
    return out


def draw_perturbed(
    logits: Tensor, prior: Tensor, suppressed: Tensor, heats: Tensor, top_ps: Tensor,
    seeds: Tensor, places: Tensor, stream: int,
) -> Tensor:  # fmt: skip
    """Choose tokens (N, R) by logits (N, R, V) and the noise of places (N, R) in each text."""
    N, R, V = logits.shape
    out = torch.empty(N, R, device=logits.device, dtype=torch.int64)
    tile = min(triton.next_power_of_2(V), WIDE)
    settings = suppressed, heats, top_ps, seeds, places
    launch(
        perturbed_kernel, (N * R,), logits, prior, *settings, stream, out, V, R,
        TILE=tile, COUNTERS=tile // 4, num_warps=WARPS,
    )  # fmt: skip
    return out


def new_evidence_(
    out: Tensor, tokens: Tensor, gain_z: Tensor, gain_w: Tensor, seeds: Tensor, steps: Tensor,
    stream: int,
) -> None:  # fmt: skip
    """Write the evidence (N, W, V) of tokens (N, W), each position at its level's gains (W,)."""
    N, W, V = out.shape
    grid = (N * W, triton.cdiv(V, 1024))
    launch(
        evidence_kernel, grid, tokens, gain_z, gain_w, seeds, steps, stream, out, V, W, 1, TILE=256
    )


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

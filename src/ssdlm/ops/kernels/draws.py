"""Tokens out of logits, each drawn by one launch without a sort, and their noise; for GPUs.

The plain references are `projection.sampling`, `autoregressive.Choice` and `steps.Renoise`. Only a
GPU has Triton, so this module is imported where there is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.normals import normal_tile, unit
from ssdlm.ops.kernels.rows import early, launch
from ssdlm.shapes import Tensor

WARPS = 16
"""For a program that has a whole row of logits to itself."""
WIDE = 8192
"""Logits that such a program has at hand at once."""
WIDE_TILE = 2048
"""Logits of a wider row that a program takes."""
NOTED = 2048
"""Logits of a row that a program scores with their noise."""
FEW_ROWS = 100
"""Rows up to which a launch costs more than what it does."""


@triton.jit
def share_of(logits, prior, first, V, heat, suppressed, TILE: tl.constexpr):
    """Return a tile of what the network adds to the evidence, over the temperature."""
    at = first + tl.arange(0, TILE)
    values = tl.load(logits + at, mask=at < V, other=-float("inf")).to(tl.float32)
    values += tl.load(prior + at, mask=at < V, other=0.0)
    return tl.where(at == suppressed, -1e4, values) / heat


@triton.jit
def add3(a, b, c, a2, b2, c2):
    return a + a2, b + b2, c + c2


@triton.jit
def add6(a, b, c, i, j, k, a2, b2, c2, i2, j2, k2):
    return a + a2, b + b2, c + c2, i + i2, j + j2, k + k2


@triton.jit
def least_bits(shares, wanted, low, size, higher):
    """Return bits of a share: those with as many or more are the fewest that have `wanted`.

    They are sought among the `size` bits from `low` on; shares with more sum to `higher`. Three
    cuts a pass leave a quarter, and a share that is alone in what is left is the last of them.
    """
    bits = shares.to(tl.int32, bitcast=True)
    lower, upper = 1 << 30, 0  # shares from the lower end on, and from the upper
    while (size > 1) & (lower - upper > 1):
        size = size // 4
        above1, above2, above3 = bits >= low + size, bits >= low + 2 * size, bits >= low + 3 * size
        inside = bits < low + 4 * size
        sum1, sum2, sum3, num1, num2, num3 = tl.reduce(
            (
                tl.where(above1 & inside, shares, 0.0), tl.where(above2 & inside, shares, 0.0),
                tl.where(above3 & inside, shares, 0.0),
                above1.to(tl.int32), above2.to(tl.int32), above3.to(tl.int32),
            ),
            0, add6,
        )  # fmt: skip
        sum1, sum2, sum3 = higher + sum1, higher + sum2, higher + sum3
        is1, is2, is3 = sum1 >= wanted, sum2 >= wanted, sum3 >= wanted
        higher = tl.where(is3, higher, tl.where(is2, sum3, tl.where(is1, sum2, sum1)))
        upper = tl.where(is3, upper, tl.where(is2, num3, tl.where(is1, num2, num1)))
        lower = tl.where(is3, num3, tl.where(is2, num2, tl.where(is1, num1, lower)))
        low += size * (is1.to(tl.int32) + is2.to(tl.int32) + is3.to(tl.int32))
    return low


@triton.jit
def sums_above(shares, low, size):
    """Return the sums of shares above each of three cuts."""
    bits = shares.to(tl.int32, bitcast=True)
    one = tl.where(bits >= low + size, shares, 0.0)
    two = tl.where(bits >= low + 2 * size, shares, 0.0)
    three = tl.where(bits >= low + 3 * size, shares, 0.0)
    return tl.reduce((one, two, three), 0, add3)


@triton.jit
def num_reached(one, two, three, wanted):
    """Return how many of three sums, the largest first, are as large as wanted."""
    return (
        (one >= wanted).to(tl.int32) + (two >= wanted).to(tl.int32) + (three >= wanted).to(tl.int32)
    )


@triton.jit
def nucleus_of(logits, prior, V, heat, never, top_p, TILE: tl.constexpr, IS_WHOLE: tl.constexpr):
    """Return the best token, peak and sum of a softmax, and the least bits within its nucleus.

    With IS_WHOLE a tile has all the logits.
    """
    if IS_WHOLE:
        values = share_of(logits, prior, 0, V, heat, never, TILE)
        peak, best = tl.max(values, 0, return_indices=True)
        shares = tl.exp(values - peak)
        total, low = tl.sum(shares), 0
        if top_p < 1:
            zero, all_bits = tl.full((), 0, tl.int32), tl.full((), 1 << 30, tl.int32)
            low = least_bits(shares / total, top_p, zero, all_bits, total * 0)
        return best, peak, total, low
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
    low, size = 0, 1 << 30
    if top_p < 1:
        while size > 1:  # as `least_bits`
            size = size // 4
            sum1, sum2, sum3 = 0.0, 0.0, 0.0
            for first in range(0, V, TILE):
                values = share_of(logits, prior, first, V, heat, never, TILE)
                one, two, three = sums_above(tl.exp(values - peak) / total, low, size)
                sum1, sum2, sum3 = sum1 + one, sum2 + two, sum3 + three
            low += size * num_reached(sum1, sum2, sum3, top_p)
    return best, peak, total, low


@triton.jit
def is_inside(share, peak, total, low):
    """Tell which tokens of a tile are in the nucleus."""
    return (tl.exp(share - peak) / total).to(tl.int32, bitcast=True) >= low


@triton.jit
def draw_kernel(
    logits, prior, evidence, suppressed, heats, top_ps, seeds, steps, streams, out, trust, V, W,
    HAS_EVIDENCE: tl.constexpr, HAS_TRUST: tl.constexpr, TILE: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Draw one token from the nucleus of one row of logits, by the row's own uniform number."""
    row = tl.program_id(0).to(tl.int64)
    text = row // W
    logits += row * V
    evidence += row * V
    heat, top_p = tl.load(heats + text), tl.load(top_ps + text)
    never = tl.load(suppressed + text)
    mass_wanted = tl.abs(top_p)
    best, peak, total, low = nucleus_of(logits, prior, V, heat, never, mass_wanted, TILE, IS_WHOLE)
    crown, mass = peak, 0.0
    if HAS_EVIDENCE:
        crown = -float("inf")
        for first in range(0, V, TILE):
            values = share_of(logits, prior, first, V, heat, never, TILE)
            inside, at = is_inside(values, peak, total, low), first + tl.arange(0, TILE)
            values += tl.load(evidence + at, mask=at < V, other=0.0)
            values = tl.where(inside, values, -float("inf"))
            top = tl.max(values, 0)
            best = tl.where(top > crown, first + tl.argmax(values, 0), best)
            crown = tl.maximum(crown, top)
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
    if HAS_TRUST:
        own = tl.load(logits + chosen).to(tl.float32) + tl.load(prior + chosen)
        own = tl.where(chosen == never, -1e4, own) / heat
        if HAS_EVIDENCE:
            own += tl.load(evidence + chosen)
        tl.store(trust + row, tl.where(mass > 0, tl.exp(own - crown) / mass, 1.0))


@triton.jit
def top_kernel(logits, prior, suppressed, heats, tops, bests, V, W, NUM, TILE: tl.constexpr):
    """Note the largest of a tile of a row's logits, and which it is."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    text = row // W
    heat, never = tl.load(heats + text), tl.load(suppressed + text)
    values = share_of(logits + row * V, prior, tile * TILE, V, heat, never, TILE)
    top, best = tl.max(values, 0, return_indices=True)
    tl.store(tops + row * NUM + tile, top)
    tl.store(bests + row * NUM + tile, tile * TILE + best)


@triton.jit
def masses_from(share, cuts):
    """Return a part's shares, each below every cut that its bits reach, and 0 below the others."""
    bits = share.to(tl.int32, bitcast=True)
    return tl.where(bits[None, :] >= cuts[:, None], share[None, :], 0.0)


@triton.jit
def share_kernel(
    logits, prior, suppressed, heats, tops, shares, masses, V, W, NUM,
    TILES: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr, CUTS: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Note exp(logits - peak) of a tile of a row, and how much of it is above each of some cuts."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    text, number = row // W, tl.arange(0, TILES)
    heat, never = tl.load(heats + text), tl.load(suppressed + text)
    peak = tl.max(tl.load(tops + row * NUM + number, mask=number < NUM, other=-float("inf")), 0)
    cut, sums = tl.arange(0, CUTS), tl.zeros((CUTS, PART), tl.float32)
    for part in range(0, TILE, PART):
        first = tile * TILE + part
        at = first + tl.arange(0, PART)
        share = tl.exp(share_of(logits + row * V, prior, first, V, heat, never, PART) - peak)
        tl.store(shares + row * V + at, share, mask=at < V)
        sums += masses_from(share, cut * SIZE)
    tl.store(masses + (row * NUM + tile) * CUTS + cut, tl.sum(sums, 1))


@triton.jit
def num_cuts(masses, known, row, top_p, NUM, TILES: tl.constexpr, CUTS: tl.constexpr):
    """Return how many of the last cuts have as much above them as a row's nucleus has.

    `masses` are those of the first cuts, the lowest of which has everything above it.
    """
    number, cut = tl.arange(0, TILES), tl.arange(0, CUTS)
    mine = (row * NUM + number) * CUTS
    total = tl.sum(tl.load(masses + mine, mask=number < NUM, other=0.0), 0)
    each = tl.load(known + mine[:, None] + cut[None, :], mask=(number < NUM)[:, None], other=0.0)
    wanted = tl.where(top_p < 1, top_p * total, float("inf"))
    return tl.sum(tl.where((tl.sum(each, 0) >= wanted) & (cut > 0), 1, 0), 0)


@triton.jit
def narrow_kernel(
    shares, top_ps, lows, masses, known, found, V, W, NUM,
    TILES: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr, CUTS: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Look for a nucleus's least share between two cuts: note how much is above finer ones."""
    row, tile, cut = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, CUTS)
    rows = tl.num_programs(0)
    top_p = tl.abs(tl.load(top_ps + row // W))
    count = num_cuts(masses, known, row, top_p, NUM, TILES, CUTS)
    low = tl.load(lows + row) + count * (SIZE * CUTS)
    if tile == 0:
        tl.store(lows + rows + row, low)
    sums = tl.zeros((CUTS, PART), tl.float32)
    for part in range(0, TILE, PART):
        at = tile * TILE + part + tl.arange(0, PART)
        share = tl.load(shares + row * V + at, mask=at < V, other=0.0)
        sums += masses_from(share, low + cut * SIZE)
    tl.store(found + (row * NUM + tile) * CUTS + cut, tl.sum(sums, 1))


@triton.jit
def pick_kernel(
    shares, tops, bests, top_ps, seeds, steps, streams, lows, masses, known, out, trust, V, W, NUM,
    TILES: tl.constexpr, TILE: tl.constexpr, CUTS: tl.constexpr, HAS_TRUST: tl.constexpr,
):  # fmt: skip
    """Draw a row's token: the tile in which its uniform number falls, and there the place."""
    row, number = tl.program_id(0).to(tl.int64), tl.arange(0, TILES)
    text, is_tile = row // W, number < NUM
    top_p = tl.load(top_ps + text)
    top = tl.load(tops + row * NUM + number, mask=is_tile, other=-float("inf"))
    best = tl.load(bests + row * NUM + number, mask=is_tile, other=V)
    best = tl.min(tl.where(top == tl.max(top, 0), best, V), 0)
    count = num_cuts(masses, known, row, tl.abs(top_p), NUM, TILES, CUTS)
    low = tl.load(lows + row) + count
    mass = tl.load(known + (row * NUM + number) * CUTS + count, mask=is_tile, other=0.0)
    same = tl.zeros((1,), tl.int32)
    position, step = same + (row % W).to(tl.int32), same + tl.load(steps + text).to(tl.int32)
    stream = same + tl.load(streams + text).to(tl.int32)
    word, _, _, _ = tl.philox(tl.load(seeds + text), same, position, step, stream)
    target = tl.sum(unit(word)) * tl.sum(mass)
    tile = tl.minimum(tl.sum((is_tile & (tl.cumsum(mass) <= target)).to(tl.int32)), NUM - 1)
    at = tile * TILE + tl.arange(0, TILE)
    share = tl.load(shares + row * V + at, mask=at < V, other=0.0)
    share = tl.where(share.to(tl.int32, bitcast=True) >= low, share, 0.0)
    sums = tl.sum(tl.where(number < tile, mass, 0.0)) + tl.cumsum(share)
    chosen = tile * TILE + tl.sum((sums <= target).to(tl.int32))
    # Rounding may carry the target past a tile's end: then its last token of the nucleus is meant.
    last = tl.max(tl.where(share > 0, at, -1), 0)
    chosen = tl.where((top_p <= 0) | (last < 0), best, tl.minimum(chosen, last))
    tl.store(out + row, chosen.to(tl.int64))
    if HAS_TRUST:
        own = tl.load(shares + row * V + chosen)
        tl.store(trust + row, tl.where(tl.sum(mass) > 0, own / tl.sum(mass), 1.0))


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
    return gumbel_of(seed, place, first // 4 + tl.arange(0, COUNTERS), stream)


@triton.jit
def gumbel_of(seed, place, counter, stream):
    """Return the Gumbel noise of four tokens for each counter, at a place of a text."""
    same = tl.zeros_like(counter)
    a, b, c, d = tl.philox(seed, counter, same + place.to(tl.int32), same, same + stream)
    # Counter by counter, a b c d: the order of `counters.gumbel`.
    return rest_to_gumbel(tl.interleave(tl.interleave(a, c), tl.interleave(b, d)))


@triton.jit
def value_at(values, at, TILE: tl.constexpr):
    """Return one of a tile's values."""
    return tl.max(tl.where(tl.arange(0, TILE) == at, values, -float("inf")), 0)


@triton.jit
def score_kernel(
    logits, prior, suppressed, heats, seeds, places, stream, notes, ids, V, R, NUM,
    TILE: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """Note of a tile of a row its likeliest token, its mass, and the best token with its noise."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    text, first = row // R, tile * TILE
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    heat, never, seed = tl.load(heats + text), tl.load(suppressed + text), tl.load(seeds + text)
    values = share_of(logits + row * V, prior, first, V, heat, never, TILE)
    top, best = tl.max(values, 0, return_indices=True)
    scores = values + gumbel_tile(seed, tl.load(places + row), first, stream, TILE // 4)
    crown, chosen = tl.max(scores, 0, return_indices=True)
    notes, ids = notes + (row * NUM + tile) * 4, ids + (row * NUM + tile) * 2
    tl.store(notes, top)
    tl.store(notes + 1, tl.sum(tl.exp(values - tl.maximum(top, -1e30))))
    tl.store(notes + 2, crown)
    tl.store(notes + 3, value_at(values, chosen, TILE))
    tl.store(ids, first + best)
    tl.store(ids + 1, first + chosen)


@triton.jit
def perturbed_kernel(
    logits, prior, suppressed, heats, top_ps, seeds, places, stream, notes, ids, out, V, R, NUM,
    TILES: tl.constexpr, TILE: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """Take the greatest of log p, cut to its nucleus, and the Gumbel noise of the row's place.

    A token is outside its nucleus where those that are likelier have its mass. Then so are all that
    are not likelier: no cut is sought, the greatest of the others is the next to be looked at. A
    tile is looked at only where its likeliest token is likelier.
    """
    row, tile = tl.program_id(0).to(tl.int64), tl.arange(0, TILES)
    text, is_tile = row // R, tile < NUM
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    logits += row * V
    heat, top_p = tl.load(heats + text), tl.load(top_ps + text)
    never, seed, place = tl.load(suppressed + text), tl.load(seeds + text), tl.load(places + row)
    notes, ids = notes + row * NUM * 4, ids + (row * NUM + tile) * 2
    tops = tl.load(notes + tile * 4, mask=is_tile, other=-float("inf"))
    peak, at = tl.max(tops, 0, return_indices=True)
    best = tl.max(tl.where(tile == at, tl.load(ids, mask=is_tile, other=0), 0), 0)
    masses = tl.load(notes + tile * 4 + 1, mask=is_tile, other=0.0)
    wanted = top_p * tl.sum(masses * tl.exp(tops - peak))
    crowns = tl.load(notes + tile * 4 + 2, mask=is_tile, other=-float("inf"))
    at = tl.argmax(crowns, 0)
    own = tl.load(notes + at * 4 + 3)
    chosen = tl.max(tl.where(tile == at, tl.load(ids + 1, mask=is_tile, other=0), 0), 0)
    goes_on = (top_p > 0) & (top_p < 1)
    while goes_on:
        above = 0.0
        for number in range(0, NUM):
            if tl.load(notes + number * 4) > own:
                values = share_of(logits, prior, number * TILE, V, heat, never, TILE)
                above += tl.sum(tl.where(values > own, tl.exp(values - peak), 0.0))
        goes_on = above >= wanted
        if goes_on:
            crown, bound = -float("inf"), own
            for number in range(0, NUM):
                if tl.load(notes + number * 4) > bound:
                    first = number * TILE
                    values = share_of(logits, prior, first, V, heat, never, TILE)
                    scores = values + gumbel_tile(seed, place, first, stream, TILE // 4)
                    scores = tl.where(values > bound, scores, -float("inf"))
                    top, at = tl.max(scores, 0, return_indices=True)
                    own = tl.where(top > crown, value_at(values, at, TILE), own)
                    chosen = tl.where(top > crown, first + at, chosen)
                    crown = tl.maximum(crown, top)
    tl.store(out + row, tl.where(top_p <= 0, best, chosen).to(tl.int64))


@triton.jit
def evidence_kernel(
    tokens, gain_z, gain_w, seeds, steps, streams, firsts, out, V, W, STRIDE, TILE: tl.constexpr
):
    """Write the evidence of a drawn token at a new level: noise, and a bonus at the token."""
    place = tl.program_id(0).to(tl.int64)
    text, position = place // W, place % W
    counter = tl.program_id(1) * TILE + tl.arange(0, TILE)
    seed, step = tl.load(seeds + text), tl.load(steps + text).to(tl.int32)
    stream = tl.load(streams + text).to(tl.int32)
    position_then = (position + tl.load(firsts + text)).to(tl.int32)
    z = normal_tile(seed, counter, position_then, step, stream)
    column = tl.program_id(1) * 4 * TILE + tl.arange(0, 4 * TILE)
    level = text * STRIDE + position
    bonus = tl.where(column == tl.load(tokens + place), tl.load(gain_w + level), 0.0)
    value = tl.load(gain_z + level) * z + bonus
    tl.store(out + place * V + column, value, mask=column < V)


def draw(
    logits: Tensor, prior: Tensor, evidence: Tensor | None, suppressed: Tensor, heats: Tensor,
    top_ps: Tensor, seeds: Tensor, steps: Tensor, streams: Tensor, trust: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Draw tokens (N, W) from logits (N, W, V) without the prior; settings are one per text."""
    N, W, V = logits.shape
    if evidence is None and V > WIDE:
        settings = suppressed, heats, top_ps, seeds, steps, streams
        return draw_wide(logits, prior, *settings, trust)
    out = torch.empty(N, W, device=logits.device, dtype=torch.int64)
    tile = min(triton.next_power_of_2(V), WIDE)
    other = logits if evidence is None else evidence
    launch(
        draw_kernel, (N * W,), logits, prior, other, suppressed, heats, top_ps, seeds, steps,
        streams, out, out if trust is None else trust, V, W, HAS_EVIDENCE=evidence is not None,
        HAS_TRUST=trust is not None, TILE=tile, IS_WHOLE=tile >= V, num_warps=WARPS,
    )  # fmt: skip
    return out


def draw_wide(
    logits: Tensor, prior: Tensor, suppressed: Tensor, heats: Tensor, top_ps: Tensor,
    seeds: Tensor, steps: Tensor, streams: Tensor, trust: Tensor | None = None, *,
    tile: int = WIDE_TILE,
) -> Tensor:  # fmt: skip
    """Do what `draw` does without evidence, a row's tiles side by side.

    Radix selection, a few bits of a share at a launch: each tile notes how much lies above some
    cuts, and the next launch adds that up and looks between two of them.
    """
    (N, W, V), whole = logits.shape, {"device": logits.device, "dtype": torch.int64}
    rows, num = N * W, triton.cdiv(V, tile)
    cuts, rounds = fineness(rows)
    tops, bests = torch.empty(rows, num, device=logits.device), torch.empty(rows, num, **whole)
    shares = torch.empty(rows, V, device=logits.device)
    masses = torch.empty(rounds, rows, num, cuts, device=logits.device)
    lows = torch.zeros(rounds, rows, device=logits.device, dtype=torch.int32)
    out, grid = torch.empty(N, W, **whole), (rows, num)
    sizes = V, W, num
    settings = {"TILES": triton.next_power_of_2(num), "TILE": tile, "CUTS": cuts}
    parts = settings | {"PART": min(tile, 4096 // cuts)}  # so many sums have room in registers
    row = logits, prior, suppressed, heats
    launch(top_kernel, grid, *row, tops, bests, *sizes, TILE=tile)
    size = cuts ** (rounds - 1)
    launch(share_kernel, grid, *row, tops, shares, masses, *sizes, SIZE=size, **parts)
    for known in range(rounds - 1):
        size //= cuts
        notes = lows[known], masses, masses[known], masses[known + 1]
        launch(narrow_kernel, grid, shares, top_ps, *notes, *sizes, SIZE=size, **parts)
    notes = lows[-1], masses, masses[-1], out, out if trust is None else trust
    random, settings["HAS_TRUST"] = (top_ps, seeds, steps, streams), trust is not None
    launch(pick_kernel, (rows,), shares, tops, bests, *random, *notes, *sizes, **settings)
    return out


def fineness(rows: int) -> tuple[int, int]:
    """Return how many cuts a launch makes, and how many launches there are, to tell 2 ** 30 bits.

    That is above the bits of any share up to 1.
    """
    return (32, 6) if rows <= FEW_ROWS else (8, 10)


def draw_perturbed(
    logits: Tensor, prior: Tensor, suppressed: Tensor, heats: Tensor, top_ps: Tensor,
    seeds: Tensor, places: Tensor, stream: int,
) -> Tensor:  # fmt: skip
    """Choose tokens (N, R) by logits (N, R, V) and the noise of places (N, R) in each text."""
    N, R, V = logits.shape
    out = torch.empty(N, R, device=logits.device, dtype=torch.int64)
    num = triton.cdiv(V, NOTED)
    notes = torch.empty(N * R, num, 4, device=logits.device)
    ids = torch.empty(N * R, num, 2, device=logits.device, dtype=torch.int32)
    random = seeds, places, stream
    launch(
        score_kernel, (N * R, num), logits, prior, suppressed, heats, *random, notes, ids, V, R,
        num, TILE=NOTED, num_warps=8, **early(),
    )  # fmt: skip
    launch(
        perturbed_kernel, (N * R,), logits, prior, suppressed, heats, top_ps, *random, notes, ids,
        out, V, R, num, TILES=triton.next_power_of_2(num), TILE=NOTED, num_warps=8, **early(),
    )  # fmt: skip
    return out


def new_evidence_(
    out: Tensor, tokens: Tensor, gain_z: Tensor, gain_w: Tensor, seeds: Tensor, steps: Tensor,
    streams: Tensor, firsts: Tensor,
) -> None:  # fmt: skip
    """Write the evidence (N, W, V) of tokens (N, W), each position at its level's gains.

    Gains are (W,), or each text's own (N, W); a text's positions are counted from its first on.
    """
    N, W, V = out.shape
    grid, stride = (N * W, triton.cdiv(V, 1024)), 0 if gain_z.dim() == 1 else W
    settings = seeds, steps, streams, firsts, out, V, W, stride
    launch(evidence_kernel, grid, tokens, gain_z, gain_w, *settings, TILE=256)

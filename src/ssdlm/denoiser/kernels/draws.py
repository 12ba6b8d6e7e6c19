"""Tokens out of logits, each drawn by one launch without a sort, and their noise; for GPUs.

The plain references are `projection.sampling`, `autoregressive.Choice` and `steps.Renoise`. Only a
GPU has Triton, so this module is imported where there is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.denoiser.kernels.normals import box_muller, unit
from ssdlm.denoiser.kernels.rows import launch
from ssdlm.shapes import Tensor

WARPS = 16
"""For a program that has a whole row of logits to itself."""
WIDE = 8192
"""Logits that such a program has at hand at once."""


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
    logits, prior, evidence, suppressed, heats, top_ps, seeds, steps, streams, out, V, W,
    HAS_EVIDENCE: tl.constexpr, TILE: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Draw one token from the nucleus of one row of logits, by the row's own uniform number."""
    row = tl.program_id(0).to(tl.int64)
    text = row // W
    logits += row * V
    evidence += row * V
    heat, top_p = tl.load(heats + text), tl.load(top_ps + text)
    never = tl.load(suppressed + text)
    best, peak, total, low = nucleus_of(logits, prior, V, heat, never, top_p, TILE, IS_WHOLE)
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
def note(logits, prior, shares, V, heat, never, TILE: tl.constexpr):
    """Write exp(logits - peak) of a row down; return the sum of it, and the best token."""
    column = tl.arange(0, TILE)
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
    tl.debug_barrier()
    return tl.sum(sums), tl.min(bests, 0)


@triton.jit
def least_of(shares, few, wanted, V, TILE: tl.constexpr, FEW: tl.constexpr):
    """Return the most bits from which on a row's shares sum to what is wanted, as `least_bits`.

    After four passes few shares are left among which that is; they are written down once more.
    """
    column, low, size = tl.arange(0, TILE), 0, 1 << 30
    for _ in range(4):
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
        low += size * num_reached(tl.sum(one), tl.sum(two), tl.sum(three), wanted)
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
    return low


@triton.jit
def token_at(shares, low, target, V, TILE: tl.constexpr):
    """Return the token at which the shares of `low` bits or more sum to more than the target."""
    before, chosen = 0.0, V
    for first in range(0, V, TILE):
        at = first + tl.arange(0, TILE)
        share = tl.load(shares + at, mask=at < V, other=0.0)
        share = tl.where(share.to(tl.int32, bitcast=True) >= low, share, 0.0)
        here = tl.sum(share)
        if (chosen == V) & (before + here > target):
            chosen = first + tl.sum((before + tl.cumsum(share) <= target).to(tl.int32))
        before += here
    return chosen


@triton.jit
def draw_wide_kernel(
    logits, prior, suppressed, heats, top_ps, seeds, steps, streams, shares, few, out, V, W,
    TILE: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Do what `draw_kernel` does for a wide vocabulary without evidence, by notes."""
    row = tl.program_id(0).to(tl.int64)
    text = row // W
    logits, shares, few = logits + row * V, shares + row * V, few + row * FEW
    heat, top_p, never = tl.load(heats + text), tl.load(top_ps + text), tl.load(suppressed + text)
    mass, best = note(logits, prior, shares, V, heat, never, TILE)
    low = 0
    if (top_p < 1) & (top_p > 0):
        low = least_of(shares, few, top_p * mass, V, TILE, FEW)
        mass = mass_from(shares, low, V, TILE)
    same = tl.zeros((1,), tl.int32)
    position, step = same + (row % W).to(tl.int32), same + tl.load(steps + text).to(tl.int32)
    stream = same + tl.load(streams + text).to(tl.int32)
    word, _, _, _ = tl.philox(tl.load(seeds + text), same, position, step, stream)
    chosen = token_at(shares, low, tl.sum(unit(word)) * mass, V, TILE)
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
    TILE: tl.constexpr, COUNTERS: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Take the greatest of log p, cut to its nucleus, and the Gumbel noise of the row's place."""
    row = tl.program_id(0).to(tl.int64)
    text = row // R
    logits += row * V
    heat, top_p = tl.load(heats + text), tl.load(top_ps + text)
    never, seed = tl.load(suppressed + text), tl.load(seeds + text)
    best, peak, total, low = nucleus_of(logits, prior, V, heat, never, top_p, TILE, IS_WHOLE)
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
def evidence_kernel(
    tokens, gain_z, gain_w, seeds, steps, streams, out, V, W, FIRST, STRIDE, TILE: tl.constexpr
):
    """Write the evidence of a drawn token at a new level: noise, and a bonus at the token."""
    place = tl.program_id(0).to(tl.int64)
    text, position = place // W, place % W
    counter = tl.program_id(1) * TILE + tl.arange(0, TILE)
    same = tl.zeros_like(counter)
    seed, step = tl.load(seeds + text), tl.load(steps + text).to(tl.int32)
    stream = tl.load(streams + text).to(tl.int32)
    a, b, c, d = tl.philox(
        seed, counter, same + position.to(tl.int32) + FIRST, same + step, same + stream
    )
    z0, z1 = box_muller(a, b)
    z2, z3 = box_muller(c, d)
    z = tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3))
    column = tl.program_id(1) * 4 * TILE + tl.arange(0, 4 * TILE)
    level = text * STRIDE + position
    bonus = tl.where(column == tl.load(tokens + place), tl.load(gain_w + level), 0.0)
    value = tl.load(gain_z + level) * z + bonus
    tl.store(out + place * V + column, value, mask=column < V)


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
        streams, out, V, W, HAS_EVIDENCE=evidence is not None, TILE=tile, IS_WHOLE=tile >= V,
        num_warps=WARPS,
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
        TILE=tile, COUNTERS=tile // 4, IS_WHOLE=tile >= V, num_warps=WARPS,
    )  # fmt: skip
    return out


def new_evidence_(
    out: Tensor, tokens: Tensor, gain_z: Tensor, gain_w: Tensor, seeds: Tensor, steps: Tensor,
    streams: Tensor, *, first: int,
) -> None:  # fmt: skip
    """Write the evidence (N, W, V) of tokens (N, W), each position at its level's gains.

    Gains are (W,), or each text's own (N, W); positions are counted from `first` on.
    """
    N, W, V = out.shape
    grid, stride = (N * W, triton.cdiv(V, 1024)), 0 if gain_z.dim() == 1 else W
    settings = seeds, steps, streams, out, V, W, first, stride
    launch(evidence_kernel, grid, tokens, gain_z, gain_w, *settings, TILE=256)

"""Normals by counter in one pass over memory, for GPUs; `counters.normal` is the plain reference.

As plain operations Philox is two hundred passes over (N, B, V) / 4 integers of 64 bits, more work
than the network's. Only a GPU has Triton, so this module is imported where there is one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ssdlm.shapes import Seeds, Simplex

TILE = 256
"""Counters a program takes, each worth four numbers."""


@triton.jit
def unit(word):
    """Return a 32-bit word as a float in (0, 1), from its top 24 bits."""
    return ((word >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08


@triton.jit
def box_muller(a, b):
    """Return two independent standard normals from two words."""
    radius = tl.sqrt(tl.maximum(-2 * tl.log(unit(a)), 0.0))
    angle = unit(b) * 6.283185307179586
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def normal_tile(seed, counter, position, step, stream):
    """Return four normals of each counter, z0 z1 z2 z3: the order of `counters.normal`."""
    same = tl.zeros_like(counter)
    a, b, c, d = tl.philox(seed, counter, same + position, same + step, same + stream)
    z0, z1 = box_muller(a, b)
    z2, z3 = box_muller(c, d)
    return tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3))


@triton.jit(do_not_specialize=["step", "stream", "first", "B"])
def write(out, seeds, step, stream, first, B, V, TILE: tl.constexpr):
    """Write the normals of one position of one row, as many as a tile has."""
    place = tl.program_id(0).to(tl.int64)
    counter = tl.program_id(1) * TILE + tl.arange(0, TILE)
    position = (first + place % B).to(tl.int32)
    z = normal_tile(tl.load(seeds + place // B), counter, position, step, stream)
    column = tl.program_id(1) * 4 * TILE + tl.arange(0, 4 * TILE)
    tl.store(out + place * V + column, z, mask=column < V)


def normals(seeds: Seeds, *, stream: int, step: int, B: int, V: int, first: int) -> Simplex:
    """Return standard normals (N, B, V) of one step from position `first` on."""
    out = torch.empty(len(seeds), B, V, device=seeds.device)
    if out.numel():
        grid = (len(seeds) * B, triton.cdiv(V, 4 * TILE))
        launch: Any = write
        with torch.cuda.device_of(seeds):
            launch[grid](out, seeds.contiguous(), step, stream, first, B, V, TILE=TILE)
    return out

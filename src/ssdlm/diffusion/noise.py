"""Random numbers that depend on where they are used, not on when they are drawn.

    ops.counters -> [noise] -> sampler

They are made out of counters (`ops.counters`), so a row's noise is the same alone or in a batch, on
any device, and in whatever order an optimised loop asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from ssdlm.ops.counters import gumbel, normal, uniforms
from ssdlm.shapes import Levels, Seeds, Simplex, Tensor

LONG_WORD = 2**64 - 1
MIX_START = 0x9E3779B97F4A7C15
MIX_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

STEPS_TOGETHER = 64
"""Uniforms are few: those of so many steps cost as much as those of one."""


def mix(*parts: int) -> int:
    """Hash integers into one 63-bit seed; the order matters."""
    state = MIX_START
    for part in parts:  # as SplitMix64 mixes: close inputs end far apart
        state = (state ^ (part & LONG_WORD)) * MIX_FACTORS[0] & LONG_WORD
        state = (state ^ (state >> 27)) * MIX_FACTORS[1] & LONG_WORD
        state ^= state >> 31
    return state >> 1


def mix_rows(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return `mix` of each row, all at once."""
    lengths = np.array([len(row) for row in rows])
    columns = np.array(list(zip_longest(*rows, fillvalue=0)), dtype=np.int64).astype(np.uint64)
    first, second = map(np.uint64, MIX_FACTORS)
    state = np.full(len(rows), MIX_START, dtype=np.uint64)
    for number, column in enumerate(columns):
        new = (state ^ column) * first  # unsigned products wrap
        new = (new ^ (new >> np.uint64(27))) * second
        state = np.where(number < lengths, new ^ (new >> np.uint64(31)), state)
    return (state >> np.uint64(1)).tolist()


@runtime_checkable
class Noise(Protocol):
    """Unit normals and uniforms for any step of any block, as the sampler asks for them."""

    def normal(self, *, block: int, step: int, B: int, V: int, first: int = 0) -> Simplex: ...

    def uniform(self, *, block: int, step: int, B: int) -> Levels: ...


@runtime_checkable
class GumbelNoise(Protocol):
    """Gumbel numbers for any position of a text, as a chain of tokens asks for them."""

    def gumbel(self, *, position: int, V: int, count: int = 1) -> Simplex: ...


@dataclass(frozen=True)
class RowNoise:
    """All the randomness of a decoding run: one seed per row."""

    seeds: Seeds
    drawn: dict[tuple[int, int, int], Tensor] = field(default_factory=dict, repr=False)
    """The latest uniforms (N, B, steps), by block, B and number of the run of steps."""

    def normal(self, *, block: int, step: int, B: int, V: int, first: int = 0) -> Simplex:
        return normal(self.seeds, block=block, step=step, B=B, V=V, first=first)

    def uniform(self, *, block: int, step: int, B: int) -> Levels:
        run, number = divmod(step, STEPS_TOGETHER)
        if (block, B, run) not in self.drawn:
            steps = run * STEPS_TOGETHER + torch.arange(STEPS_TOGETHER, device=self.seeds.device)
            self.drawn.clear()  # steps come in order, so the earlier ones are not asked for again
            self.drawn[block, B, run] = uniforms(self.seeds, block=block, steps=steps, B=B)
        return self.drawn[block, B, run][..., number]

    def gumbel(self, *, position: int, V: int, count: int = 1) -> Simplex:
        return gumbel(self.seeds, position=position, V=V, count=count)

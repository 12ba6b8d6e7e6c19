"""Random numbers by counter: those of a place depend on the place and a seed alone.

Philox4x32-10 turns a counter and a key into four 32-bit words. The key is the row's seed; the
counter is (vocabulary index / 4, position, step, block and stream).
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch

from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Levels, Seeds, Simplex, Tensor

Number = TypeVar("Number", Tensor, "np.ndarray[Any, np.dtype[np.int64]]", int)
WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

NORMAL, UNIFORM, GUMBEL = 0, 1, 2
"""Streams: normals, uniforms and Gumbel numbers of one place share nothing."""
NUM_STREAMS = 4


def philox(counter: tuple[Number, ...], key: tuple[Number, ...]) -> tuple[Number, ...]:
    """Return four 32-bit words for counters and keys: int64s that go together, or numbers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap, yet every bit of the unsigned 64-bit product is there.
        high, low = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((low >> 32) & WORD) ^ c1 ^ k0,
            low & WORD,
            ((high >> 32) & WORD) ^ c3 ^ k1,
            high & WORD,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def words_of(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return `philox` of tensors, on a CPU by numpy: it takes a third of the time."""
    if not key[0].is_cpu:
        return philox(counter, key)
    # One number alone would be told that it overflows.
    parts = tuple(np.atleast_1d(part.numpy()) for part in (*counter, *key))
    return tuple(map(torch.from_numpy, philox(parts[:4], parts[4:])))


def normal(seeds: Seeds, *, block: int, step: int, B: int, V: int, first: int = 0) -> Simplex:
    """Return standard normals (N, B, V) for one step of one block, from position `first` on."""
    stream = block * NUM_STREAMS + NORMAL
    return normals(seeds, stream=stream, step=step, B=B, V=V, first=first)


def normals(seeds: Seeds, *, stream: int, step: int, B: int, V: int, first: int) -> Simplex:
    """Return standard normals (N, B, V) of one step of a stream."""
    if on_gpu(seeds):
        from ssdlm.ops.kernels.normals import normals as kernel

        return kernel(seeds, stream=stream, step=step, B=B, V=V, first=first)
    count = -(-V // 4)  # a counter gives four words, so four normals
    words = words_at(seeds, step=step, B=B, count=count, stream=stream, first=first)
    one, other = box_muller(words[0], words[1]), box_muller(words[2], words[3])
    return torch.stack((*one, *other), -1).flatten(-2)[..., :V]


def uniform(seeds: Seeds, *, block: int, step: int, B: int) -> Levels:
    """Return numbers in (0, 1), one per position (N, B), for one step of one block."""
    steps = torch.tensor([step], device=seeds.device)
    return uniforms(seeds, block=block, steps=steps, B=B).squeeze(-1)


def uniforms(seeds: Seeds, *, block: int, steps: Tensor, B: int) -> Tensor:
    """Return `uniform` for several steps, (N, B, steps)."""
    word, *_ = words_at(seeds, step=steps, B=B, count=1, stream=block * NUM_STREAMS + UNIFORM)
    return to_unit(word)


def gumbel(seeds: Seeds, *, position: int, V: int, count: int = 1) -> Simplex:
    """Return -log(-log u) (N, count, V) for positions of a text, counted from its first token.

    With these added to log p, the greatest is a draw from p (the Gumbel-max trick).
    """
    words = words_at(seeds, step=0, B=count, count=-(-V // 4), stream=GUMBEL, first=position)
    return to_gumbel(torch.stack(words, -1).flatten(-2)[..., :V])


def gumbel_at(seed: Tensor, *, first: int, ids: Tensor) -> Tensor:
    """Return `gumbel` of some tokens (G, n) at the positions of one text from the first on."""
    position = torch.arange(first, first + len(ids), device=ids.device).unsqueeze(1)
    at = (torch.tensor(one, device=ids.device) for one in (0, GUMBEL))
    words = words_of((ids // 4, position, *at), (seed & WORD, (seed >> 32) & WORD))
    return to_gumbel(torch.stack(words, -1).gather(-1, (ids % 4).unsqueeze(-1))[..., 0])


def to_gumbel(word: Tensor) -> Tensor:
    """Return -log(-log u) of 32-bit words."""
    # 1 - u, for it is u close to 1 that decides: there all 32 bits count, and no two are equal.
    rest = ((word.to(torch.float32) + 0.5) * 2**-32).clamp(max=1 - 2**-24)
    return -(-torch.log1p(-rest)).log()


def words_at(
    seeds: Seeds, *, step: int | Tensor, B: int, count: int, stream: int, first: int = 0
) -> tuple[Tensor, ...]:
    """Return the four words of counters 0..count-1 at B positions, each (N, B, count).

    With a count of 1 there may be several steps: then each is (N, B, steps).
    """
    at = {"device": seeds.device, "dtype": torch.int64}
    key = (seeds & WORD).view(-1, 1, 1), ((seeds >> 32) & WORD).view(-1, 1, 1)
    column = torch.arange(count, **at).view(1, 1, -1)
    position = torch.arange(first, first + B, **at).view(1, -1, 1)
    where = torch.as_tensor(step, **at), torch.tensor(stream, **at)
    return words_of((column, position, *where), key)


def to_unit(word: Tensor) -> Tensor:
    """Return a 32-bit word as a float in (0, 1); the top 24 bits are all a float can hold."""
    return ((word >> 8).to(torch.float32) + 0.5) * 2**-24


def box_muller(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two independent standard normals from two 32-bit words."""
    # to_unit is never 0, so the logarithm is finite.
    radius = (-2 * to_unit(a).log()).sqrt()
    angle = to_unit(b) * (2 * math.pi)
    return radius * angle.cos(), radius * angle.sin()

"""Positions of several texts through the layers as one: a CPU reads every matrix once for all.

meeting -> [packed] -> network

Texts have contexts of any lengths, so each attends for itself; all products are shared. A row of a
product may depend on how many rows there are, by the order in which a library sums. Here it does
not, to the bit, or texts go one by one: that is tried out when there are first two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F

from ssdlm.denoiser.attention import attend
from ssdlm.denoiser.layer import Layer, norm, update
from ssdlm.shapes import Tensor

T = TypeVar("T")
FEWEST = 2
"""Rows of a product at least: a single one is multiplied in another way, in another order."""
MOST = 64
"""Positions that go together at most; beyond them nothing is gained."""
TRIED = (2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 31, 32, 33, 48, 63, 64)
"""Numbers of rows for which products are compared."""


class Passage(NamedTuple):
    """Positions of one text, or of several alike: what a pass takes through the layers."""

    x: Tensor
    """(N, S, D)"""
    rotary: Tensor
    mask: Tensor | None
    """Who sees whom, (S, C + S)."""
    past: Tensor
    """Keys and values of the context."""
    window: slice
    """The positions whose output is wanted."""


def widened(window: slice, length: int) -> slice:
    """Return a window of at least two positions around one of any number, if there are two."""
    first, last, _ = window.indices(length)
    first = max(0, min(first, last - FEWEST))
    return slice(first, min(length, max(last, first + FEWEST)))


def in_packs(many: Sequence[T], lengths: Sequence[int]) -> Iterator[list[T]]:
    """Yield things of so many positions in groups of at most MOST, or alone, in their order."""
    pack: list[T] = []
    total = 0
    for one, length in zip(many, lengths, strict=True):
        if pack and total + length > MOST:
            yield pack
            pack, total = [], 0
        pack.append(one)
        total += length
    if pack:
        yield pack


def run_packed(layers: Sequence[Layer], passages: Sequence[Passage]) -> list[tuple[Tensor, Tensor]]:
    """Return the output and the keys and values of each passage, of one text each."""
    x = torch.cat([one.x for one in passages], 1)
    rotary = torch.cat([one.rotary for one in passages], 1)
    sizes = [one.x.shape[1] for one in passages]
    new: list[list[Tensor]] = [[] for _ in passages]
    for number, layer in enumerate(layers):
        is_last = number == len(layers) - 1  # outside the windows nobody reads the output
        query, key, value = (part.split(sizes, 2) for part in layer.project(x, rotary))
        attended: list[Tensor] = []
        for index, (_, _, mask, past, window) in enumerate(passages):
            own = window if is_last else slice(None)
            new[index].append(torch.stack((key[index], value[index]), 1))
            k, v = torch.cat((past[:, number], new[index][-1]), 3).unbind(1)
            seen = mask if mask is None else mask[own]
            attended.append(attend(query[index][:, :, own], k, v, seen))
        if is_last:
            pieces = zip(x.split(sizes, 1), passages, strict=True)
            x = torch.cat([piece[:, one.window] for piece, one in pieces], 1)
            sizes = [one.shape[2] for one in attended]
        x = update(x, torch.cat(attended, 2), layer.out, layer.up, layer.down)
    hidden = norm(x).split(sizes, 1)
    return [(one, torch.stack(own, 1)) for one, own in zip(hidden, new, strict=True)]


def has_steady_rows(weight: Tensor, product: Callable[[Tensor, Tensor], Tensor] = F.linear) -> bool:
    """Tell whether each row of a product with a matrix is the same to the bit among any others."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(MOST, weight.shape[-1], generator=generator).to(weight)
    pairs = torch.cat([product(pair, weight) for pair in x.split(FEWEST)])
    return all(torch.equal(product(x[:count], weight), pairs[:count]) for count in TRIED)

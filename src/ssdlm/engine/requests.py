"""Texts to write, on their way, and written.  config, plan, sampler -> [rows] -> api, batch, live

A row is one text: a prompt's ids, and a seed of its own from which all of its noise comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ssdlm.config import DecodeConfig
from ssdlm.constraints.placement import Placement
from ssdlm.diffusion.noise import mix
from ssdlm.diffusion.sampler import Step


@dataclass(frozen=True)
class Row:
    """One text to write."""

    prompt: str
    context: tuple[int, ...]
    seed: int
    sample: int
    placement: Placement | None = None
    """Where required words stand and which texts are allowed, if anything was asked for."""

    def blocks(self, decoding: DecodeConfig) -> list[int]:
        """Return the lengths of its blocks; a gap and what stands after it are one block."""
        total = self.placement.constraint.length if self.placement else 0
        return [total] if total > decoding.length else decoding.blocks()

    @property
    def noise_seed(self) -> int:
        """The row's own seed: what was asked for, which sample, and the prompt itself."""
        return mix(self.seed, self.sample, *self.context)


@dataclass(frozen=True)
class Generation:
    """One text that was written."""

    prompt: str
    text: str
    """The continuation alone."""
    tokens: list[int]
    """The ids of `text`."""
    seed: int
    """The seed that was asked for."""
    sample: int
    """Which of the prompt's samples, from 0."""
    calls: int
    """Passes of the network for a block, reading its context included; the most of any block.
    With best_of, those of all candidates and of rating them."""


@dataclass(frozen=True)
class Draft:
    """A text on its way: one step of the block that is being denoised."""

    text: str
    """The continuation so far, the current block as it would end now."""
    settled: str
    """The part of it in blocks that are decided."""
    block: int
    t: int
    """The noise level reached, 0 at the end of a block."""
    step: Step


def batches(rows: Sequence[Row], size: int, decoding: DecodeConfig) -> Iterator[list[int]]:
    """Yield the numbers of rows that can go together: equal lengths, at most `size`."""
    by_length: dict[tuple[int, int], list[int]] = {}
    for index, row in enumerate(rows):
        lengths = len(row.context), sum(row.blocks(decoding))
        by_length.setdefault(lengths, []).append(index)
    for indices in by_length.values():
        for start in range(0, len(indices), size):
            yield indices[start : start + size]

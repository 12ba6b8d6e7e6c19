"""Where the steps of a decoding run lie between noise and text.  schedule -> [grid] -> sampler"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ssdlm import schedule
from ssdlm.shapes import Tensor


@dataclass(frozen=True)
class Grid:
    """Noise levels t = 0..T, clean to noise: for all positions (T+1,) or one each (T+1, B)."""

    progress: Tensor
    alpha_bar: Tensor
    snr: Tensor

    @property
    def T(self) -> int:
        return len(self.progress) - 1


def at(progress: Tensor) -> Grid:
    """Return the grid through these points, which rise from 0."""
    progress = progress.double()
    return Grid(progress, schedule.cosine(progress), schedule.snr(progress))


@dataclass(frozen=True)
class Uniform:
    """T even steps, t/T, for every block: as the paper decodes."""

    T: int

    def __call__(self, B: int) -> Grid:
        del B
        return at(torch.arange(self.T + 1, dtype=torch.float64) / self.T)

"""The noise levels of an open window, pass by pass.  diffusion.grid -> [path] -> programs.window"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
import torch.nn.functional as F

from ssdlm.diffusion.grid import Grid, Move, Sliding
from ssdlm.shapes import Tensor

SLOWEST = 32
"""Passes for a position of a window that slides, at the most: each has levels of its own."""


@dataclass(frozen=True)
class Path:
    """The levels of W positions: of a block on any grid, or of a window that slides."""

    levels: Tensor
    """(P, W) before each pass; where a window slides, those after the first go round."""
    windows: tuple[slice, ...] = (slice(None),)
    """The positions that each pass is about; the last goes for those after it."""
    pace: int = 0
    """Passes in which a window that slides moves on by a position; 0 for a block."""

    @classmethod
    def of_block(cls, grid: Grid, B: int) -> Path:
        """Return the path of a block through a grid."""
        levels = grid.progress.flip(0)[: grid.T].reshape(grid.T, -1).expand(grid.T, B)
        return cls(levels, tuple(grid.windows(B)[grid.T : 0 : -1]))

    @classmethod
    def sliding(cls, width: float, pace: int) -> Path:
        """Return the path of a window that moves on by a position in so many passes."""
        levels = torch.stack([move.levels.progress[1] for move in steady_moves(width, pace)])
        levels = F.pad(levels, (0, 0, 1, 0), value=1.0)  # at first there is noise
        return cls(levels, pace=pace)

    def row(self, passes: Tensor) -> Tensor:
        """Return which of the levels are those before a pass of each text, counted from 0."""
        if self.pace <= 1:
            return passes.clamp(max=len(self.levels) - 1)
        return torch.minimum(passes, 1 + (passes - 1) % self.pace)


def steady_moves(width: float, pace: int) -> list[Move]:
    """Return the passes of a window that slides, after the first: from then on they go round."""
    return list(islice(Sliding(2 * pace, width).moves([2], [2]), 1, 1 + pace))


@cache
def num_open(width: float, pace: int) -> int:
    """Return how many positions are open in a window that slides; 0 where no program has it so."""
    if pace > SLOWEST:
        return 0
    sizes = {len(move.levels.progress[1]) for move in steady_moves(width, pace)}
    return sizes.pop() if len(sizes) == 1 else 0

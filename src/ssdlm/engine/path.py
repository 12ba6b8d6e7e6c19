"""The noise levels of an open window, pass by pass.  diffusion.grid -> [path] -> programs.window"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from ssdlm.diffusion import schedule
from ssdlm.diffusion.grid import Grid, Sliding
from ssdlm.shapes import Tensor


@dataclass(frozen=True)
class Path:
    """The levels of W positions: of a block on any grid, or of a window that slides."""

    levels: Tensor
    """(P, W) before each pass; where a window slides, those before the last one stay."""
    alpha_bar: Tensor
    """The same as alpha_bar."""
    windows: tuple[slice, ...] = (slice(None),)
    """The positions that each pass is about; the last goes for those after it."""
    after: Tensor | None = None
    """The levels (W,) after a pass of a window that slides, before it moves on; else None."""

    @classmethod
    def of_block(cls, grid: Grid, B: int) -> Path:
        """Return the path of a block through a grid."""
        levels, alpha_bar = (
            part.flip(0)[: grid.T].reshape(grid.T, -1).expand(grid.T, B)
            for part in (grid.progress, grid.alpha_bar)
        )
        return cls(levels, alpha_bar, tuple(grid.windows(B)[grid.T : 0 : -1]))

    @classmethod
    def sliding(cls, width: float) -> Path:
        """Return the path of a window that moves on a position a pass: noise comes in."""
        after = steady_levels(width)
        levels = torch.stack((torch.ones_like(after), F.pad(after[1:], (0, 1), value=1.0)))
        return cls(levels, schedule.cosine(levels), after=after)


@cache
def steady_levels(width: float) -> Tensor:
    """Return the levels of a window that moves a position a pass, after a pass."""
    count = 4 * (int(width) + 3)
    # Far from both ends of a text all passes are alike.
    return list(Sliding(count, width).moves([count], [count]))[count // 2].levels.progress[0]

"""Where the steps of a decoding run lie between noise and text.  schedule -> [grid] -> sampler"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ssdlm.diffusion import schedule
from ssdlm.shapes import Tensor

RAMP_KNOTS = ((0.0, 0.10), (0.8, 0.62), (1.0, 1.0))
"""A ramp's progress at the clean end, where the band ends, and at the noisy end."""


@dataclass(frozen=True)
class Grid:
    """Noise levels t = 0..T, clean to noise: for all positions (T+1,) or one each (T+1, B)."""

    progress: Tensor
    alpha_bar: Tensor
    snr: Tensor

    @classmethod
    def through(cls, progress: Tensor) -> Grid:
        """Return the grid through these values of t/T, which rise from 0."""
        progress = progress.double()
        return cls(progress, schedule.cosine(progress), schedule.snr(progress))

    @property
    def T(self) -> int:
        return len(self.progress) - 1

    def to(self, device: torch.device) -> Grid:
        """Return the grid on a device."""
        return Grid(self.progress.to(device), self.alpha_bar.to(device), self.snr.to(device))

    def part(self, window: slice) -> Grid:
        """Return the grid of some positions; levels that all share stay as they are."""
        if self.progress.dim() == 1:
            return self
        return Grid(self.progress[:, window], self.alpha_bar[:, window], self.snr[:, window])

    def windows(self, B: int) -> list[slice]:
        """Return for t = 0..T what a step from t to t - 1 is about, the least run of positions.

        Outside it every position is clean, or noise alone, and stays so.
        """
        if self.progress.dim() == 1:
            return [slice(0, B)] * (self.T + 1)
        # A position is idle in a step that leaves it clean, or leaves it pure noise.
        still = torch.cat((self.progress[:1], self.progress[:-1])) == self.progress
        is_idle = still & ((self.progress == 0) | (self.progress == 1))
        moving = [(~idle).nonzero().flatten().tolist() for idle in is_idle]
        # Where nothing moves there is still a step to show: it is about the first position.
        return [slice(run[0], run[-1] + 1) if run else slice(0, 1) for run in moving]


def ramp_progress(x: Tensor) -> Tensor:
    """Return a ramp's progress at x: 0 where x <= 0, rising through the knots, 1 where x >= 1."""
    (_, low), (bend, high), (_, top) = RAMP_KNOTS
    within = low + (high - low) * x / bend
    above = high + (top - high) * (x - bend) / (1 - bend)
    rising = torch.where(x < bend, within, above).clamp(max=1.0)
    return torch.where(x <= 0, 0.0, rising)


@dataclass(frozen=True)
class Uniform:
    """T even steps, t/T, for every block: as the paper decodes."""

    T: int

    def __call__(self, B: int) -> Grid:
        del B
        return Grid.through(torch.arange(self.T + 1, dtype=torch.float64) / self.T)


@dataclass(frozen=True)
class Warped:
    """T steps for every block, four in five of them where most is decided, as in a ramp."""

    T: int

    def __call__(self, B: int) -> Grid:
        del B
        return Grid.through(ramp_progress(torch.arange(self.T + 1, dtype=torch.float64) / self.T))


@dataclass(frozen=True)
class Staggered:
    """A window `width` positions wide that moves through the block from left to right in T calls.

    Left of it all is decided, right of it all is noise. The wider, the more is decided at once; a
    narrow window with a call for each position is nearly autoregressive.
    """

    T: int
    width: float

    def __call__(self, B: int) -> Grid:
        # x is a position's place on the ramp: 0 at the window's clean end, 1 at its noisy end.
        call = torch.arange(self.T, -1, -1, dtype=torch.float64)  # t = 0 is the last
        front = (B - 1 + self.width) * call / self.T - self.width
        place = torch.arange(B, dtype=torch.float64)
        return Grid.through(
            ramp_progress(((place - front.unsqueeze(1)) / self.width).clamp(max=1.0))
        )


@dataclass(frozen=True)
class Tilted:
    """The same window, but what it has left is not certain yet: all positions end together.

    A position is never noisier than its right neighbour, and a word that is nearly decided may
    still give way to what comes after it. A window much wider than the block is `Warped`.
    """

    T: int
    width: float

    def __call__(self, B: int) -> Grid:
        progress = Staggered(self.T, self.width)(B).progress
        # Behind the window levels go on falling: a state is drawn anew where its level moves.
        left = RAMP_KNOTS[0][1] * torch.arange(self.T + 1, dtype=torch.float64) / self.T
        return Grid.through(torch.maximum(progress, left.unsqueeze(1)))


@dataclass(frozen=True)
class BeforeGiven:
    """A path through the open positions of a block whose last ones are given.

    These go with the last open one, so that no step is spent on them.
    """

    path: Callable[[int], Grid]
    num_given: int

    def __call__(self, B: int) -> Grid:
        progress = self.path(B - self.num_given).progress
        if progress.dim() == 1:
            return Grid.through(progress)
        return Grid.through(F.pad(progress.unsqueeze(0), (0, self.num_given), "replicate")[0])


@dataclass(frozen=True)
class Move:
    """One pass of a sliding window: where it stands, and the levels of its positions."""

    block: int
    left: int
    """Passes left in this block after it."""
    window: slice
    """The open positions, counted from the text's start."""
    num_decided: int
    """How many of them, from the left, are clean after it."""
    levels: Grid
    """Two levels (2, W): before the pass (t = 1), and after it (t = 0)."""


@dataclass(frozen=True)
class Sliding:
    """A window `width` positions wide that slides through the text, past the ends of blocks.

    It moves on by B / T positions a pass. What it leaves behind is decided, and is context for what
    comes; what it has not reached is not there yet. It slides out over the end of the text.
    """

    T: int
    width: float

    def moves(self, blocks: Sequence[int], B: Sequence[int]) -> Iterator[Move]:
        """Yield the passes through blocks of these lengths; each block's whole length is B."""
        start = 0
        held = torch.zeros(0, dtype=torch.float64)  # levels of the positions that are open already
        for block, (size, whole) in enumerate(zip(blocks, B, strict=True)):
            num = max(1, math.ceil(self.T * size / whole))
            for call in range(num):
                first, done = (start + size * c // num for c in (call, call + 1))
                front = start + size * (call + 1) / num
                last = max(done, math.ceil(front + self.width - 1), first + 1)
                window = slice(first, last)
                # What comes in is noise, wherever on the ramp it stands.
                before = F.pad(held, (0, window.stop - first - len(held)), value=1.0)
                place = torch.arange(first + 1, window.stop + 1, dtype=torch.float64)
                after = ramp_progress(((place - front) / self.width).clamp(max=1.0))
                levels = Grid.through(torch.stack((after, before)))
                yield Move(block, num - call - 1, window, done - first, levels)
                held = after[done - first :]
            start += size

"""How much of the signal is left: the cosine schedule.  [schedule] -> noising, grid, sampler"""

from __future__ import annotations

import math

import torch

from ssdlm.shapes import Tensor

OFFSET = 1e-4
"""The paper's s: keeps the first steps from being noiseless."""

ANGLE_0 = OFFSET / (1 + OFFSET) * math.pi / 2


def angle(progress: Tensor) -> Tensor:
    """Return the cosine's angle at progress t/T, in double precision."""
    return (progress.double() + OFFSET) / (1 + OFFSET) * (math.pi / 2)


def cosine(progress: Tensor) -> Tensor:
    """Return alpha_bar at progress t/T in [0, 1]: r(t) / r(0), r(t) = cos^2 (section 3.4)."""
    ratio = (angle(progress).cos() / math.cos(ANGLE_0)).square()
    return ratio.masked_fill(progress == 0, 1.0)  # vectorised cosines round differently


def alpha_bar(T: int) -> Tensor:
    """Return alpha_bar[t] for t = 0..T; alpha_bar[0] is exactly 1."""
    return cosine(torch.arange(T + 1, dtype=torch.float64) / T)


def snr(progress: Tensor) -> Tensor:
    """Return alpha_bar / (1 - alpha_bar); infinite at 0.

    1 - alpha_bar is a difference of squared cosines; as a product of sines nothing cancels.
    """
    # sin(x - y) sin(x + y) = cos^2 y - cos^2 x, exact even where both are close to 1.
    theta = angle(progress)
    rest = torch.sin(theta - ANGLE_0) * torch.sin(theta + ANGLE_0)
    return theta.cos().square() / rest


def progress_of_snr(level: Tensor) -> Tensor:
    """Return the progress at which the signal-to-noise ratio is `level`; inverse of `snr`."""
    a = 1 / (1 + 1 / level.double())  # at an infinite level this is 1, not nan
    theta = torch.acos(a.sqrt() * math.cos(ANGLE_0))
    return (theta * (2 / math.pi) * (1 + OFFSET) - OFFSET).clamp(0.0, 1.0)

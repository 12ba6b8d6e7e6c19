"""Which noise level each position is trained at: from uniform numbers to progress t/T.

Three shapes within a block: one level for all, one of its own for each position, and a ramp that
rises from a clean left end to a noisy right end. Decoding may then take any path between them.
[levels] -> loss, train
"""

from __future__ import annotations

import torch

from ssdlm.diffusion.grid import ramp_progress
from ssdlm.shapes import Tensor

BAND = (0.15, 0.60)
"""Below, every token is known; above, little is (design: where the information is)."""
BAND_SHARE = 0.9
ABOVE_SHARE = 0.075

STEEPEST = 0.5
"""A ramp's least width, in positions: next to a step from clean to noise."""

GOLDEN = 0.6180339887498949


def spread(u: Tensor, index: Tensor) -> Tensor:
    """Return frac(u + index * golden ratio): one uniform draw, stratified over all indices."""
    return (u.double() + index.double() * GOLDEN).frac().float()


def block_index(length: int, *, B: int, offset: int = 0) -> Tensor:
    """Number each position's block (L,); the first block is `offset` long, where that is not 0."""
    place = torch.arange(length)
    return (place + (B - offset % B) % B) // B


def place_in_block(blocks: Tensor) -> Tensor:
    """Return each position's place within its block, (L,), counted from 0."""
    place = torch.arange(len(blocks), device=blocks.device)
    is_first = torch.ones_like(blocks, dtype=torch.bool)
    is_first[1:] = blocks[1:] != blocks[:-1]
    return place - torch.where(is_first, place, 0).cummax(0).values


def banded(u: Tensor) -> Tensor:
    """Return progress from uniforms, mostly in the informative band, with neither end starved."""
    low, high = BAND
    below = low * (u - BAND_SHARE - ABOVE_SHARE) / (1 - BAND_SHARE - ABOVE_SHARE)
    above = high + (1 - high) * (u - BAND_SHARE) / ABOVE_SHARE
    within = low + (high - low) * u / BAND_SHARE
    outside = torch.where(u < BAND_SHARE + ABOVE_SHARE, above, below)
    return torch.where(u < BAND_SHARE, within, outside)


def shared(u: Tensor, blocks: Tensor) -> Tensor:
    """Return one level a block (N, L) from a uniform a block (N, blocks)."""
    return banded(u)[:, blocks]


def ramps(u_front: Tensor, u_width: Tensor, blocks: Tensor, *, widest: float = 2.0) -> Tensor:
    """Return a ramp a block (N, L) from two uniforms a block: where it begins and how wide it is.

    Widths run from nearly a step to `widest` times the block, evenly in their logarithm.
    """
    place = place_in_block(blocks)
    length = (blocks.unsqueeze(1) == blocks).sum(1).float()  # a bincount would wait for the GPU
    most = (widest * length).clamp(min=STEEPEST)
    width = STEEPEST * (most / STEEPEST) ** u_width[:, blocks]
    front = u_front[:, blocks] * (length + width) - width
    return ramp_progress((place - front) / width)


def mixed(
    u: Tensor,
    u_own: Tensor,
    blocks: Tensor,
    *,
    own_share: float,
    ramp_share: float,
    widest: float = 2.0,
) -> Tensor:
    """Return levels (N, L) whose shape is drawn anew for each block.

    `u` (3, N, blocks) draws the shape, the shared level or the ramp's front, and the ramp's width;
    `u_own` (N, L) draws the levels of blocks in which every position has its own.
    """
    shape = u[0][:, blocks]
    levels = torch.where(shape < own_share, banded(u_own), shared(u[1], blocks))
    return torch.where(shape > 1 - ramp_share, ramps(u[1], u[2], blocks, widest=widest), levels)


def earlier_noise(z: Tensor, fresh: Tensor, share: Tensor) -> Tensor:
    """Return the noise that the same path had when its signal-to-noise ratio was `share` of now's.

    As a Brownian path seen earlier: sqrt(share) z + sqrt(1 - share) fresh, for a share a position.
    """
    share = share.to(z.dtype).unsqueeze(-1)
    return share.sqrt() * z + (1 - share).sqrt() * fresh

"""Noise levels for training: the progress t/T of each position, from uniform numbers.

Five shapes within a block: one level for all, one of its own for each position, a ramp that rises
from a clean left end to a noisy right end, noise alone, and a gap between clean sides. Decoding may
then take any path between them.
examples -> [levels] -> objective
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ssdlm.config import TrainConfig
from ssdlm.diffusion.grid import ramp_progress
from ssdlm.diffusion.loss import draw_steps
from ssdlm.shapes import Tensor
from ssdlm.train.examples import GAP, LEVEL, OWN, SHAPE, WIDTH, Examples, send, uniforms

BAND = (0.15, 0.60)
"""Below, every token is known; above, little is (design: where the information is)."""
BAND_SHARE = 0.9
ABOVE_SHARE = 0.075

STEEPEST = 0.5
"""A ramp's least width, in positions: next to a step from clean to noise."""

GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class LevelSampler:
    """Draws noise levels, as the settings of `TrainConfig` by these names say."""

    levels: str
    stratify: bool
    own_share: float
    ramp_share: float
    T: int
    widest_ramp: float = 2.0
    noise_share: float = 0.0
    gap_share: float = 0.0

    @classmethod
    def of(cls, train: TrainConfig, T: int) -> LevelSampler:
        """Return the sampler that a run's settings describe."""
        shares = (train.own_share, train.ramp_share)
        more = (train.widest_ramp, train.noise_share, train.gap_share)
        return cls(train.levels, train.stratify, *shares, T, *more)

    def draw(self, examples: Examples, blocks: Tensor) -> Tensor:
        """Return the progress t/T of every position (N, L); `blocks` is on the CPU."""
        count, length = int(blocks[-1]) + 1, len(blocks)
        blocks = send(blocks, examples.seeds.device)
        u = self.draw_uniforms(examples, count)
        if self.levels == "uniform":
            return (draw_steps(u, T=self.T) / self.T)[:, blocks]
        if self.own_share == self.ramp_share == self.noise_share == self.gap_share == 0:
            return shared(u, blocks)
        # One number per position, however many blocks: a single shape, compiled once.
        shape, width, own = (uniforms(examples.seeds, use, length) for use in (SHAPE, WIDTH, OWN))
        shape, width = shape[:, :count], width[:, :count]
        levels = mixed(
            torch.stack((shape, u, width)),
            own,
            blocks,
            own_share=self.own_share,
            ramp_share=self.ramp_share,
            widest=self.widest_ramp,
        )
        if self.noise_share == self.gap_share == 0:
            return levels
        # Of what is neither own nor a ramp, the first part is noise alone and the next has gaps.
        shape, noise = shape[:, blocks] - self.own_share, self.noise_share
        levels = torch.where((shape >= 0) & (shape < noise), 1.0, levels)
        drawn = uniforms(examples.seeds, GAP, 3 * length).unflatten(1, (3, length))[:, :, :count]
        cut = gaps(torch.stack((u, width, *drawn.unbind(1))), blocks, widest=self.widest_ramp)
        return torch.where((shape >= noise) & (shape < noise + self.gap_share), cut, levels)

    def draw_uniforms(self, examples: Examples, count: int) -> Tensor:
        """Return a uniform number per block (N, count), stratified over the batch where asked."""
        if not self.stratify:
            return uniforms(examples.seeds, LEVEL, count)
        indices = examples.indices.view(-1, 1)
        first = uniforms(torch.full_like(indices[:1, 0], examples.step_seed), LEVEL, 1)
        column = torch.arange(count, device=indices.device)
        return spread(first, indices * count + column)


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


def block_length(blocks: Tensor) -> Tensor:
    """Return how long each position's block is, (L,)."""
    return (blocks.unsqueeze(1) == blocks).sum(1).float()  # a bincount would wait for the GPU


def banded(u: Tensor) -> Tensor:
    """Return progress from uniform numbers, mostly in the informative band, some at both ends."""
    low, high = BAND
    below = low * (u - BAND_SHARE - ABOVE_SHARE) / (1 - BAND_SHARE - ABOVE_SHARE)
    above = high + (1 - high) * (u - BAND_SHARE) / ABOVE_SHARE
    within = low + (high - low) * u / BAND_SHARE
    outside = torch.where(u < BAND_SHARE + ABOVE_SHARE, above, below)
    return torch.where(u < BAND_SHARE, within, outside)


def shared(u: Tensor, blocks: Tensor) -> Tensor:
    """Return one level per block (N, L) from a uniform number per block (N, blocks)."""
    return banded(u)[:, blocks]


def ramps(u_front: Tensor, u_width: Tensor, blocks: Tensor, *, widest: float = 2.0) -> Tensor:
    """Return a ramp per block (N, L) from two uniform numbers: where it begins, how wide it is.

    Widths run from nearly a step to `widest` times the block, evenly in their logarithm.
    """
    place, length = place_in_block(blocks), block_length(blocks)
    return ramp(u_front[:, blocks], u_width[:, blocks], place, length, widest=widest)


def ramp(
    u_front: Tensor, u_width: Tensor, place: Tensor, length: Tensor, *, widest: float
) -> Tensor:
    """Return a ramp's level at each place of a stretch of some length."""
    most = (widest * length).clamp(min=STEEPEST)
    width = STEEPEST * (most / STEEPEST) ** u_width
    front = u_front * (length + width) - width
    return ramp_progress((place - front) / width)


def gaps(u: Tensor, blocks: Tensor, *, widest: float = 2.0) -> Tensor:
    """Return a gap per block (N, L): at one level or on a ramp, and clean on both sides.

    `u` (5, N, blocks) draws the level or the ramp's front, the ramp's width, the gap's length and
    its place, and which of the two it is. A clean token at least comes after it in its block.
    """
    level, width, size, start, kind = u[:, :, blocks].unbind()
    place, length = place_in_block(blocks), block_length(blocks)
    size = 1 + (size * (length - 1)).floor()
    place = place - (start * (length - size)).floor()
    sloped = ramp(level, width, place, size, widest=widest)
    inside = torch.where(kind < 0.5, banded(level), sloped)
    return torch.where((place >= 0) & (place < size), inside, 0.0)


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

    As a Brownian path seen earlier: sqrt(share) z + sqrt(1 - share) fresh, one share per
    position.
    """
    share = share.to(z.dtype).unsqueeze(-1)
    return share.sqrt() * z + (1 - share).sqrt() * fresh

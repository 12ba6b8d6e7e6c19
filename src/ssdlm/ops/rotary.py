"""Rotary position embedding.  [rotary] -> ops.rows, denoiser"""

from __future__ import annotations

import torch

from ssdlm.shapes import Tensor

ROPE_BASE = 10000.0


def rotation(positions: Tensor, width: int) -> Tensor:
    """Return cosines and signed sines (2, S, 1, width) of rotary position embedding, float32."""
    exponent = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    return rotation_by(positions, ROPE_BASE**-exponent)


def rotation_by(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Return the same for frequencies (width / 2,) of one's own."""
    # In float32 whatever x is: bf16 cannot tell late positions apart.
    angle = positions.float().unsqueeze(-1) * frequencies
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))).unsqueeze(2)


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotate (N, S, heads, d) by each position's angles, so that products see distances alone."""
    cos, sin = rotary[0], rotary[1]  # iterating over a tensor takes longer than the rest
    half = x.shape[-1] // 2
    return (x * cos + x.roll(half, -1) * sin).to(x.dtype)

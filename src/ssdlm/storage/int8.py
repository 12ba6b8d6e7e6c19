"""Weights in a quarter of the space: int8 with a scale for each row.  [quantise] -> checkpoint"""

from __future__ import annotations

import torch

from ssdlm.shapes import Tensor

SCALE = ".scale"
"""What a tensor's scales are called, after the tensor's own name."""
STEPS = 127


def quantise(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return matrices as int8 and fp16 scales, one a row, and vectors as fp16 if they have room."""
    small: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2:
            half = tensor.to(torch.float16)
            small[name] = half if bool(half.isfinite().all()) else tensor
            continue
        # The scale is rounded up to fp16 first, so that no value falls outside.
        scale = (tensor.float().abs().amax(-1) / STEPS).clamp(min=1e-7) * (1 + 2.0**-10)
        scale = scale.to(torch.float16)
        steps = (tensor.float() / scale.float().unsqueeze(-1)).round()
        small[name] = steps.clamp(-STEPS, STEPS).to(torch.int8)
        small[name + SCALE] = scale
    return small


def dequantise(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what `quantise` was given, up to half a step; other tensors copied as they are."""
    if not is_quantised(tensors):
        return tensors
    return {
        name: tensor.float().mul_(tensors[name + SCALE].float().unsqueeze(-1))
        if name + SCALE in tensors
        else tensor.clone()
        for name, tensor in tensors.items()
        if not is_scale(name, tensors)
    }


def is_quantised(tensors: dict[str, Tensor]) -> bool:
    """Tell whether some are int8; then `dequantise` gives all of them memory of their own."""
    return any(is_scale(name, tensors) for name in tensors)


def is_scale(name: str, tensors: dict[str, Tensor]) -> bool:
    """Tell whether a tensor holds the scales of another."""
    return name.endswith(SCALE) and name.removesuffix(SCALE) in tensors

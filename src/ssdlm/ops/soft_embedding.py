"""softmax(prior + noisy logits) @ weight, with nothing V-wide kept for the backward pass."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ssdlm.ops.fusing import fused
from ssdlm.ops.noisy_logits import Noisy, noisy_logits
from ssdlm.shapes import Tensor

CHUNK = 16384
"""Tokens at a time: large enough to fill a GPU, small enough that V-wide work stays bounded."""


@fused
def simplex_of(
    z: Tensor, tokens: Tensor, gain_z: Tensor, gain_w: Tensor, prior: Tensor, like: Tensor
) -> Tensor:
    """Return the simplex of each token in the precision of `like`; summed in float32."""
    logits = noisy_logits(z, tokens, gain_z, gain_w) + prior
    return logits.softmax(-1).to(like.dtype)


class SoftEmbedding(torch.autograd.Function):
    """The embedding of simplexes that are computed again in the backward pass, not kept."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, prior: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(weight, prior, *parts)
        noisy = Noisy(*parts)
        pieces = [
            simplex_of(*noisy.rows(part).parts(), prior, weight) @ weight
            for part in chunks(len(noisy.z))
        ]
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, prior, *parts = ctx.saved_tensors
        noisy, grad = Noisy(*parts), grads[0]
        # Summed in float32: in bf16 late chunks would vanish beside the sum so far.
        total = torch.zeros_like(weight, dtype=torch.float32)
        for part in chunks(len(noisy.z)):
            simplex = simplex_of(*noisy.rows(part).parts(), prior, weight)
            total += simplex.T @ grad[part].to(simplex.dtype)
        return total.to(weight.dtype), None, None, None, None, None


def chunks(count: int, size: int = CHUNK) -> list[slice]:
    """Return slices that cover `count` rows, at most `size` at a time and nearly equal."""
    num = max(1, -(-count // size))
    edges = [count * i // num for i in range(num + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def soft_embedding(noisy: Noisy, prior: Tensor, weight: Tensor) -> Tensor:
    """Return softmax(prior + noisy logits) @ weight, (M, D)."""
    return SoftEmbedding.apply(weight, prior, *noisy.parts())

"""What stands around the products of an encoder's layers, and its noisy input.

[encoder] -> denoiser.padded;  the Triton bodies are in `ops.kernels.encoder`
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ssdlm.ops.draws import new_evidence_
from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Tensor

FARTHEST = 5.9
"""No normal number of 24-bit words is further out."""


def noised_weights(
    tokens: Tensor,
    gain_z: Tensor,
    gain_w: Tensor,
    seeds: Tensor,
    steps: Tensor,
    streams: Tensor,
    *,
    V: int,
    width: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return exp(w_t) of noised tokens (N, B) up to a factor, (N * B, width), and its sums."""
    if on_gpu(tokens):
        from ssdlm.ops.kernels import encoder as kernels

        settings = gain_z, gain_w, seeds, steps, streams
        return kernels.noised_weights(tokens, *settings, V=V, width=width, dtype=dtype)
    (N, B), gains = tokens.shape, (gain_z.unsqueeze(1), gain_w.unsqueeze(1))
    w_t = torch.empty(N, B, V)
    own_z, own_w = gains[0].expand(N, B), gains[1].expand(N, B)
    new_evidence_(w_t, tokens, own_z, own_w, seeds, steps, streams, torch.zeros_like(seeds))
    bound = FARTHEST * gains[0] + gains[1]
    weights = F.pad((w_t - bound.unsqueeze(2)).exp(), (0, width - V)).to(dtype).flatten(0, 1)
    return weights, weights.float().sum(1, keepdim=True)


def attend_all(qkv: Tensor, lengths: Tensor, sizes: Tensor, B: int, *, count: int) -> Tensor:
    """Return what the first `count` rows of (N, R, 3, H, d) read.

    That is the first `sizes` of B rows, and `lengths` behind those.
    """
    if on_gpu(qkv):
        from ssdlm.ops.kernels import encoder as kernels

        return kernels.attend_all(qkv, lengths, sizes, B, count=count)
    place = torch.arange(qkv.shape[1])
    in_context = (place >= B) & (place < B + lengths.unsqueeze(1))
    seen = ((place < sizes.unsqueeze(1)) | in_context)[:, None, None]
    query, key, value = qkv.transpose(1, 3).unbind(2)
    found = F.scaled_dot_product_attention(query[:, :, :count], key, value, attn_mask=seen)
    return found.transpose(1, 2).contiguous()


def add_norm_(x: Tensor, y: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    """Return the layer norm of x + y, in x's own place."""
    if on_gpu(x):
        from ssdlm.ops.kernels import encoder as kernels

        return kernels.add_norm_(x, y, norm)
    return x.copy_(norm(x + y))


def gelu_product(x: Tensor, dense: torch.nn.Linear) -> Tensor:
    """Return GELU of a layer of x.

    Below float32 a GPU's library has it in the product, by tanh: that is within the rounding.
    """
    if on_gpu(x) and x.dtype != torch.float32:
        return torch.ops.aten._addmm_activation(dense.bias, x, dense.weight.t(), use_gelu=True)
    return F.gelu(dense(x))

"""Who sees whom when all blocks of a sequence are denoised at once, and where everyone stands.

The sequence goes in twice, [clean | noisy]: clean positions see clean ones up to themselves, a
noisy block sees the clean blocks before it and, both ways, itself.  [attention] -> denoiser.block
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ssdlm.shapes import Tensor


def noisy_mask(blocks: Tensor) -> Tensor:
    """Return what noisy positions see, (L, 2L); `blocks` (L,) numbers each position's block."""
    mine, theirs = blocks.unsqueeze(1), blocks
    return torch.cat((theirs < mine, theirs == mine), 1)


def noisy_bias(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `noisy_mask` as what is added to scores: 0 or -inf; the fast kernels want it so."""
    seen = noisy_mask(blocks)
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(q k / sqrt(d)) v where the mask allows; all are (N, heads, S, d)."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attend_both(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, num_noisy: int
) -> Tensor:
    """Return attention over [clean | noisy]: a causal part, which is cheap, and one with a bias.

    Without a bias, noisy positions see everything: a single block after its context.
    """
    # One call over both with a table of who sees whom was a fifth slower (docs/log.md).
    length = query.shape[2] - num_noisy
    q, k, v = (x[:, :, :length] for x in (query, key, value))
    clean = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if num_noisy == 0:
        return clean
    noisy = attend(query[:, :, length:], key, value, bias)
    return torch.cat((clean, noisy), 2)

"""Who sees whom when all blocks of a sequence are denoised at once, and where everyone stands.

The sequence goes in twice, [clean | noisy]: clean positions see clean ones up to themselves, a
noisy block sees the clean blocks before it and, both ways, itself.  [attention] -> denoiser.block
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ssdlm.shapes import Tensor

ROPE_BASE = 10000.0

AttentionMask = Tensor | BlockMask | None
"""Who sees whom: a table, FlexAttention's blocks, or everyone."""


def sees(blocks: Tensor) -> Callable[..., Tensor]:
    """Return the rule (row, head, query, key) -> bool; `blocks` (L,) numbers every block."""
    length = len(blocks)

    def rule(row: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        from_clean, to_clean = query < length, key < length
        mine, theirs = blocks[query % length], blocks[key % length]
        earlier = to_clean & (theirs < mine)
        within = ~to_clean & (theirs == mine)
        return (from_clean & to_clean & (key <= query)) | (~from_clean & (earlier | within))

    return rule


def all_blocks_mask(blocks: Tensor) -> Tensor:
    """Return the rule as a table (2L, 2L) on the device of `blocks`."""
    place = torch.arange(2 * len(blocks), device=blocks.device)
    return sees(blocks)(0, 0, place.unsqueeze(1), place)


@lru_cache(maxsize=256)
def sparse_all_blocks_mask(blocks: tuple[int, ...], device: torch.device) -> BlockMask:
    """Return the rule for FlexAttention; the same few layouts come back, so they are kept."""
    size = 2 * len(blocks)
    rule = sees(torch.tensor(blocks, device=device))
    return create_block_mask(rule, None, None, size, size, device=device)


def causal_mask(num_new: int, num_past: int, device: torch.device) -> Tensor:
    """Return who sees whom (num_new, num_past + num_new) when new tokens follow past ones."""
    query = torch.arange(num_new, device=device).unsqueeze(1)
    key = torch.arange(-num_past, num_new, device=device)
    return key <= query


def attend(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
    """Return softmax(q k / sqrt(d)) v under a mask of either kind; all are (N, heads, S, d)."""
    if isinstance(mask, BlockMask):
        out = flex_attention(query, key, value, block_mask=mask)
        assert isinstance(out, Tensor)
        return out
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def rotation(positions: Tensor, width: int) -> Tensor:
    """Return cosines and signed sines (2, S, 1, width) of rotary position embedding, float32."""
    exponent = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angle = positions.float().unsqueeze(-1) * ROPE_BASE**-exponent
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))).unsqueeze(2)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate (N, S, heads, d) by each position's angles, so that products see distances alone."""
    cos, sin = turn
    half = x.shape[-1] // 2
    return (x * cos + x.roll(half, -1) * sin).to(x.dtype)

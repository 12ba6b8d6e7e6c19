"""Tokens as almost-one-hot logits: the only home of +K and -K.  [simplex] -> noising, projection"""

from __future__ import annotations

import torch

from ssdlm.shapes import Block, Mask, Simplex


def to_logits(block: Block, *, V: int, K: float) -> Simplex:
    """Return w_0: +K at each token's own entry, -K elsewhere (Eq. 5-6)."""
    w_0 = torch.full((*block.shape, V), -K, device=block.device)
    return w_0.scatter_(-1, block.unsqueeze(-1), K)


def from_mask(chosen: Mask, *, K: float) -> Simplex:
    """Return +K where a token is chosen and -K elsewhere: a multi-hot w_0."""
    return torch.where(chosen, K, -K)


def from_probs(probs: Simplex, *, K: float) -> Simplex:
    """Return the mean of `to_logits` under `probs`: K (2 p - 1), between -K and +K."""
    return K * (2 * probs - 1)


def to_ids(w: Simplex) -> Block:
    """Return the token with the largest entry at each position."""
    return w.argmax(-1)

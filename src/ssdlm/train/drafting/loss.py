"""The loss of guesses: 0.1 cross-entropy + 0.9 L1 to the model's own distributions, cut to top-p.

drafter -> [loss] -> loop

Half the L1 distance of two distributions is how often draws from them can be made to differ.
"""

from __future__ import annotations

import torch

from ssdlm.denoiser.drafter import Drafter, ReadTexts
from ssdlm.shapes import Block, Tensor

SHARE = 0.1
"""Of the cross-entropy."""
FADING = 4.0
"""Guesses over which the weight of a loss falls to 1 / e."""
KEPT = 256
"""The likeliest tokens, to which a distribution is cut before it is to top-p."""
GROUP = 16
"""Tokens that are looked at as one, first."""


def draft_loss(
    drafter: Drafter, tokens: Block, texts: ReadTexts, anchors: Tensor, top_p: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of the guesses after some places, and their overlaps by position (G,)."""
    count = drafter.config.num_guesses
    places = anchors.unsqueeze(1) + torch.arange(count, device=anchors.device)
    ids, probs = targets(drafter, texts.hidden[:, places].flatten(0, -2), top_p)
    logits = drafter.logits(drafter(tokens, texts, anchors).flatten(0, -2))
    log_q = logits.log_softmax(-1).gather(1, ids)
    q = log_q.exp() * (probs > 0)
    distance = (q - probs).abs().sum(-1) + 1 - q.sum(-1)
    cross_entropy = -(probs * log_q).sum(-1)
    loss = (SHARE * cross_entropy + (1 - SHARE) * distance).unflatten(0, (-1, count)).mean(0)
    weights = (-torch.arange(count, device=loss.device) / FADING).exp()
    overlap = 1 - distance.detach().unflatten(0, (-1, count)).mean(0) / 2
    return (weights * loss).sum() / weights.sum(), overlap


@torch.no_grad()
def targets(drafter: Drafter, hidden: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the likeliest next tokens of the model (n, KEPT), and their shares of its nucleus."""
    logits = drafter.logits(hidden)
    total = logits.logsumexp(-1, keepdim=True)
    values, ids = largest(logits, min(KEPT, logits.shape[-1]))
    probs = (values - total).exp()
    inside = torch.ones_like(probs)
    inside[:, 1:] = (probs.cumsum(-1)[:, :-1] < top_p).float()
    probs = probs * inside
    return ids, probs / probs.sum(-1, keepdim=True)


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return `topk` of rows (n, V): those are in the groups of which the best are the best."""
    n, V = logits.shape
    if V % GROUP or count * GROUP >= V:
        return logits.topk(count)
    groups = logits.view(n, -1, GROUP)
    chosen = groups.amax(-1).topk(count, sorted=False).indices  # (n, count)
    ids = (chosen.unsqueeze(-1) * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    values, at = logits.gather(1, ids).topk(count)
    return values, ids.gather(1, at)

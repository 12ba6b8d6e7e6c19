"""What a classifier's gradient adds to logits, where words that stand out alone are moved.

[nudges] -> guidance.gradient;  the Triton body is in `ops.kernels.nudges`
"""

from __future__ import annotations

import math

import torch

from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Simplex, Tensor

SMALLEST = 1e-30
"""A token of less probability than this is never drawn, and its gradient is lost in rounding."""
MOST = 1 << 14
"""Logits that a program on a GPU can have at hand, all at once."""


def add_nudge(
    base: Tensor,
    logits: Tensor,
    gradient: Tensor,
    present: Tensor,
    tokens: Tensor,
    active: Tensor,
    most: Tensor,
    *,
    scale: float,
    threshold: float,
    plausible: float = 0.0,
) -> Tensor:
    """Return base + scale * nudge at logits (N, W, V) for a gradient in their simplex.

    `present` (N, V) is 1 for the tokens of a text; the latest of active ones is put there. `most`
    keeps the largest shift so far.
    """
    if on_gpu(logits):
        from ssdlm.ops.kernels import nudges as kernels

        known = present, tokens, active, most
        settings = {"scale": scale, "threshold": threshold, "smallest": SMALLEST}
        settings["margin"] = -math.log(plausible) if plausible else math.inf
        return kernels.add_nudge(base, logits, gradient, *known, **settings)
    gain = through_softmax(gradient, logits) / logits.softmax(-1).clamp(min=SMALLEST)
    nudge = soft_threshold(gain, threshold)
    is_present = present.bool().scatter(1, tokens.view(-1, 1), True)
    present.copy_(torch.where(active.bool().view(-1, 1), is_present, present.bool()))
    nudge = scale * nudge.where(~is_present.unsqueeze(1) | (nudge < 0), 0.0)
    nudge = without_implausible(nudge, logits, plausible)
    most.copy_(torch.maximum(most, shift(logits, nudge)))
    return base + nudge


def can_nudge(device: torch.device, V: int) -> bool:
    """Tell whether a row of V logits can be nudged by `add_nudge` where it is."""
    return device.type != "cuda" or V <= MOST


def shift(logits: Simplex, nudge: Simplex) -> Tensor:
    """Return the most that a nudge moves the probabilities of any position (total variation)."""
    return ((logits + nudge).softmax(-1) - logits.softmax(-1)).abs().sum(-1).amax() / 2


def through_softmax(gradient: Simplex, logits: Simplex) -> Simplex:
    """Return the gradient in the logits of what has this one in their softmax."""
    probs = logits.softmax(-1)
    return probs * (gradient - (probs * gradient).sum(-1, keepdim=True))


def without_implausible(nudge: Simplex, logits: Simplex, plausible: float) -> Simplex:
    """Return nudges that help no token of less than a share of the likeliest one's probability.

    A word that the model would hardly write here is one that a reader stumbles over.
    """
    if not plausible:
        return nudge
    floor = logits.amax(-1, keepdim=True) + math.log(plausible)
    return nudge.where((logits >= floor) | (nudge < 0), 0.0)


def soft_threshold(gain: Simplex, threshold: float) -> Simplex:
    """Return for each token 0 or, as it stands out by more than the threshold, up to 1 or -1.

    A classifier has a small opinion of every word, most of it chance. Followed everywhere, it costs
    fluency and adds little. The few words that it is sure of are enough, and none of them counts
    much more than the others.
    """
    gain = gain - gain.mean(-1, keepdim=True)
    spread = gain.square().mean(-1, keepdim=True).sqrt().clamp(min=SMALLEST)
    return gain.sign() * (gain.abs() / spread - threshold).clamp(0, 1)

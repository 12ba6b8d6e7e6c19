"""What a guide adds to V-wide logits, in one launch, for GPUs.

The plain reference is `guidance.gradient.guided` with gradient="words". Only a GPU has Triton, so
this module is imported where there is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.rows import launch
from ssdlm.shapes import Tensor


@triton.jit
def softmax_of(logits):
    """Return the probabilities of a whole row."""
    shares = tl.exp(logits - tl.max(logits, 0))
    return shares / tl.sum(shares, 0)


@triton.jit
def nudge_kernel(
    base, logits, gradient, present, tokens, active, most, out, scale, threshold, margin, smallest,
    V, W, TILE: tl.constexpr,
):  # fmt: skip
    """Move one row's tokens that stand out in a guide's gradient, but none that is there."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    text = row // W
    inside, at = column < V, row * V + column
    values = tl.load(logits + at, mask=inside, other=-float("inf"))
    gain = tl.load(gradient + at, mask=inside, other=0.0)
    probs = softmax_of(values)
    gain = probs * (gain - tl.sum(probs * gain, 0)) / tl.maximum(probs, smallest)
    gain = tl.where(inside, gain - tl.sum(gain, 0) / V, 0.0)
    spread = tl.maximum(tl.sqrt(tl.sum(gain * gain, 0) / V), smallest)
    size = tl.minimum(tl.maximum(tl.abs(gain) / spread - threshold, 0.0), 1.0)
    present += text * V
    latest = tl.load(tokens + text)
    is_present = tl.load(present + column, mask=inside, other=0) != 0
    is_present = is_present | (column == latest)
    is_idle = is_present | (values < tl.max(values, 0) - margin)
    tl.store(present + latest, 1, mask=tl.load(active + text) != 0)
    nudge = scale * tl.where(gain < 0, -size, tl.where(is_idle, 0.0, size))
    shift = tl.sum(tl.abs(softmax_of(values + nudge) - probs), 0) / 2
    tl.atomic_max(most, shift)
    tl.store(out + at, tl.load(base + at, mask=inside, other=0.0) + nudge, mask=inside)


def add_nudge(
    base: Tensor, logits: Tensor, gradient: Tensor, present: Tensor, tokens: Tensor,
    active: Tensor, most: Tensor, *, scale: float, threshold: float, margin: float, smallest: float,
) -> Tensor:  # fmt: skip
    """Return base + scale * nudge at logits (N, W, V) for a gradient in their simplex.

    `present` (N, V) is 1 for the tokens of a text; the latest of active ones is put there. `most`
    keeps the largest shift so far. No token is helped whose logit is more than `margin` below the
    highest.
    """
    N, W, V = logits.shape
    out, tile = torch.empty_like(base), triton.next_power_of_2(V)
    launch(
        nudge_kernel, (N * W,), base, logits, gradient.contiguous(), present, tokens, active,
        most, out, float(scale), threshold, margin, smallest, V, W, TILE=tile,
        num_warps=max(4, tile // 512),
    )  # fmt: skip
    return out

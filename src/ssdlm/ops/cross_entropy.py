"""A loss through an output head, with gradients taken on the way forward, chunk by chunk.

Logits are V-wide, and their gradient follows from them alone. So each chunk's logits, loss and
gradients are computed while they are at hand, and only D-wide gradients are kept. The loss is the
cross-entropy (Eq. 8-9) or, as "l2", the squared distance between the simplex and the token's corner
of it, which the ablation of docs/log.md compares it with.
"""

from __future__ import annotations

from typing import Any

import torch

from ssdlm.ops.fusing import fused
from ssdlm.ops.noisy_logits import Noisy, noisy_logits
from ssdlm.ops.soft_embedding import chunks
from ssdlm.shapes import Tensor


@fused
def head_step(
    scores: Tensor, prior: Tensor, loss: str, tokens: Tensor, *noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each token's loss, and its gradient in the scores' precision.

    `noise` are the other factors of noised tokens, if they are seen.
    """
    logits = scores.float() + prior
    if noise:
        z, *gains = noise
        logits = logits + noisy_logits(z, tokens, *gains)
    value, grad = loss_and_grad(logits, tokens, loss)
    return value, grad.to(scores.dtype)


def loss_and_grad(logits: Tensor, tokens: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Return each token's loss and its gradient by the logits, in float32."""
    total = logits.logsumexp(-1, keepdim=True)
    probs = (logits - total).exp()
    # A comparison, not a scatter: inside a fused kernel the one-hot vector is never stored.
    column = torch.arange(logits.shape[-1], device=logits.device, dtype=torch.int32)
    miss = probs - (column == tokens.int().unsqueeze(-1)).float()
    if loss == "l2":
        inner = (probs * miss).sum(-1, keepdim=True)
        return miss.square().sum(-1), 2 * probs * (miss - inner)
    chosen = logits.gather(-1, tokens.long().unsqueeze(-1))
    return (total - chosen).squeeze(-1), miss


class HeadLoss(torch.autograd.Function):
    """The mean of the tokens' losses."""

    @staticmethod
    def forward(
        ctx: Any, loss: str, hidden: Tensor, weight: Tensor, prior: Tensor, *parts: Tensor
    ) -> Tensor:
        ctx.has_prior_grad = ctx.needs_input_grad[3]
        grad_hidden = torch.empty_like(hidden)
        has_weight_grad = ctx.needs_input_grad[2]
        grad_weight = torch.zeros_like(weight if has_weight_grad else prior, dtype=torch.float32)
        grad_prior = torch.zeros_like(prior, dtype=torch.float32)
        values = torch.empty(len(hidden), device=hidden.device)
        for part in chunks(len(hidden)):
            scores = hidden[part] @ weight.T
            # Of a sum, so that gradients suit fp16 before loss scaling.
            values[part], grad = head_step(scores, prior, loss, *(one[part] for one in parts))
            if any(ctx.needs_input_grad):  # not in validation
                grad_hidden[part] = grad @ weight
            if has_weight_grad:  # not of a frozen head
                grad_weight += grad.T @ hidden[part]
            if ctx.has_prior_grad:
                grad_prior += grad.sum(0, dtype=torch.float32)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_prior)
        ctx.weight_dtype = weight.dtype
        return (values * (1 / len(hidden))).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_prior = ctx.saved_tensors
        # All gradients are ready; what arrives from above is a number that scales them.
        scale = grads[0] * (1 / len(grad_hidden))
        hidden = (scale * grad_hidden.float()).to(grad_hidden.dtype)
        prior = scale * grad_prior if ctx.has_prior_grad else None
        weight = (scale * grad_weight).to(ctx.weight_dtype) if ctx.needs_input_grad[2] else None
        return None, hidden, weight, prior, *[None] * 4


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    prior: Tensor,
    tokens: Tensor,
    noisy: Noisy | None = None,
    *,
    loss: str = "cross_entropy",
) -> Tensor:
    """Return the mean loss of tokens, where logits = hidden @ weight.T + prior + noisy logits."""
    noise = () if noisy is None else (noisy.z, noisy.gain_z, noisy.gain_w)
    return HeadLoss.apply(loss, hidden, weight, prior, tokens, *noise)

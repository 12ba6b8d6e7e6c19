"""A loss through an output head, with gradients taken on the way forward, chunk by chunk.

Logits are V-wide, and their gradient follows from them alone. So each chunk's logits, loss and
gradients are computed while they are at hand, and only D-wide gradients are kept. The loss is the
cross-entropy or, as "l2", the squared distance between the simplex and the token's corner of it.
"""

from __future__ import annotations

from typing import Any

import torch

from ssdlm.denoiser.kernels.fusing import fused
from ssdlm.denoiser.kernels.noisy_logits import Noisy, noisy_logits, plain_noisy_logits
from ssdlm.denoiser.kernels.soft_embedding import chunks
from ssdlm.shapes import Tensor


@fused
def noisy_step(
    scores: Tensor, prior: Tensor, weights: Tensor, loss: str, z: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each token's loss, its nats, and the weighted gradient in the scores' precision."""
    logits = scores.float() + prior + noisy_logits(z, *rest)
    value, nll, grad = loss_and_grad(logits, rest[0], loss)
    return value, nll, (weights.unsqueeze(-1) * grad).to(scores.dtype)


@fused
def clean_step(
    scores: Tensor, prior: Tensor, weights: Tensor, loss: str, tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same where there is no noisy token to see."""
    value, nll, grad = loss_and_grad(scores.float() + prior, tokens, loss)
    return value, nll, (weights.unsqueeze(-1) * grad).to(scores.dtype)


def loss_and_grad(logits: Tensor, tokens: Tensor, loss: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return each token's loss, its nats, and the loss's gradient by the logits."""
    nll, probs = nll_and_probs(logits, tokens)
    miss = probs - hit(tokens, logits)
    if loss == "cross_entropy":
        return nll, nll, miss
    inner = (probs * miss).sum(-1, keepdim=True)
    return miss.square().sum(-1), nll, 2 * probs * (miss - inner)


def nll_and_probs(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log p(token) and p, in float32."""
    total = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(-1, tokens.long().unsqueeze(-1))
    return (total - chosen).squeeze(-1), (logits - total).exp()


def hit(tokens: Tensor, logits: Tensor) -> Tensor:
    """Return where each row's token is; inside a fused kernel this is never stored."""
    column = torch.arange(logits.shape[-1], device=logits.device, dtype=torch.int32)
    return (column == tokens.int().unsqueeze(-1)).float()


class HeadLoss(torch.autograd.Function):
    """The weighted sum of the tokens' losses; each token's nats come out beside it."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: str,
        hidden: Tensor,
        weight: Tensor,
        prior: Tensor,
        weights: Tensor,
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.has_prior_grad = ctx.needs_input_grad[3]
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_prior = torch.zeros_like(prior, dtype=torch.float32)
        unit = weights.max().clamp(min=1e-30)  # so that gradients suit fp16 before loss scaling
        step = noisy_step if len(parts) == 4 else clean_step
        values, nll = (weights.new_empty(len(hidden)) for _ in range(2))
        for part in chunks(len(hidden)):
            scores = hidden[part] @ weight.T
            pieces = [tensor[part] for tensor in parts]
            values[part], nll[part], grad = step(scores, prior, weights[part] / unit, loss, *pieces)
            if any(ctx.needs_input_grad):
                grad_hidden[part] = grad @ weight
                grad_weight += grad.T @ hidden[part]
            if ctx.has_prior_grad:
                grad_prior += grad.sum(0, dtype=torch.float32)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_prior, unit)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(nll)
        return (weights * values).sum(), nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_prior, unit = ctx.saved_tensors
        scale = grads[0] * unit
        hidden = (scale * grad_hidden.float()).to(grad_hidden.dtype)
        prior = scale * grad_prior if ctx.has_prior_grad else None
        return None, hidden, (scale * grad_weight).to(ctx.weight_dtype), prior, *[None] * 5


def block_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    prior: Tensor,
    weights: Tensor,
    noisy: Noisy,
    *,
    loss: str = "cross_entropy",
) -> tuple[Tensor, Tensor]:
    """Return sum(weights * loss) and the nats (M,) of noised tokens.

    Their logits are hidden @ weight.T + prior + noisy logits.
    """
    return HeadLoss.apply(loss, hidden, weight, prior, weights, *noisy.parts())


def clean_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    prior: Tensor,
    weights: Tensor,
    tokens: Tensor,
    *,
    loss: str = "cross_entropy",
) -> tuple[Tensor, Tensor]:
    """Return sum(weights * loss) and the nats (M,), logits = hidden @ weight.T + prior."""
    return HeadLoss.apply(loss, hidden, weight, prior, weights, tokens)


def plain_block_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    prior: Tensor,
    weights: Tensor,
    noisy: Noisy,
    *,
    loss: str = "cross_entropy",
) -> tuple[Tensor, Tensor]:
    """Return the same from one V-wide tensor that autograd keeps: the plain twin."""
    logits = (hidden @ weight.T).float() + prior + plain_noisy_logits(*noisy.parts())
    return plain_loss(logits, weights, noisy.tokens, loss)


def plain_clean_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    prior: Tensor,
    weights: Tensor,
    tokens: Tensor,
    *,
    loss: str = "cross_entropy",
) -> tuple[Tensor, Tensor]:
    """Return the same for clean tokens: the plain twin."""
    return plain_loss((hidden @ weight.T).float() + prior, weights, tokens, loss)


def plain_loss(logits: Tensor, weights: Tensor, tokens: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of a loss as it is defined, and the nats."""
    nll = torch.nn.functional.cross_entropy(logits, tokens.long(), reduction="none")
    if loss == "cross_entropy":
        return (weights * nll).sum(), nll.detach()
    corner = torch.nn.functional.one_hot(tokens.long(), logits.shape[-1])
    return (weights * (logits.softmax(-1) - corner).square().sum(-1)).sum(), nll.detach()

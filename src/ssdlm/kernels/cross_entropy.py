"""Cross-entropy through an output head, with gradients taken on the way forward, chunk by chunk.

Logits are V-wide, and their gradient follows from them alone. So each chunk's logits, loss and
gradients are computed while they are at hand, and only D-wide gradients are kept.
"""

from __future__ import annotations

from typing import Any

import torch

from ssdlm.kernels.fusing import fused
from ssdlm.kernels.noisy_logits import Noisy, noisy_logits, plain_noisy_logits
from ssdlm.kernels.soft_embedding import chunks
from ssdlm.shapes import Tensor


@fused
def nll_and_grad(
    scores: Tensor, prior: Tensor, weights: Tensor, z: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each token's loss and the gradient of the weighted sum, in the scores' precision."""
    tokens = rest[0]
    logits = scores.float() + prior + noisy_logits(z, *rest)
    nll, probs = nll_and_probs(logits, tokens)
    return nll, (weights.unsqueeze(-1) * (probs - hit(tokens, logits))).to(scores.dtype)


@fused
def clean_nll_and_grad(
    scores: Tensor, prior: Tensor, weights: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the same where there is no noisy token to see."""
    logits = scores.float() + prior
    nll, probs = nll_and_probs(logits, tokens)
    return nll, (weights.unsqueeze(-1) * (probs - hit(tokens, logits))).to(scores.dtype)


def nll_and_probs(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log p(token) and p, in float32."""
    total = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(-1, tokens.long().unsqueeze(-1))
    return (total - chosen).squeeze(-1), (logits - total).exp()


def hit(tokens: Tensor, logits: Tensor) -> Tensor:
    """Return where each row's token is; inside a fused kernel this is never stored."""
    column = torch.arange(logits.shape[-1], device=logits.device, dtype=torch.int32)
    return (column == tokens.int().unsqueeze(-1)).float()


class HeadCrossEntropy(torch.autograd.Function):
    """The weighted sum of the tokens' losses; each token's own loss comes out beside it."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, prior: Tensor, weights: Tensor, *parts: Tensor
    ) -> tuple[Tensor, Tensor]:
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        step = nll_and_grad if len(parts) == 4 else clean_nll_and_grad
        nll = weights.new_empty(len(hidden))
        for part in chunks(len(hidden)):
            scores = hidden[part] @ weight.T
            pieces = [tensor[part] for tensor in parts]
            nll[part], grad = step(scores, prior, weights[part], *pieces)
            if any(ctx.needs_input_grad[:2]):
                grad_hidden[part] = grad @ weight
                grad_weight += grad.T @ hidden[part]
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return (weights * nll).sum(), nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grads[0]
        return scale.to(grad_hidden) * grad_hidden, scale * grad_weight, *[None] * 6


def block_cross_entropy(
    hidden: Tensor, weight: Tensor, prior: Tensor, weights: Tensor, noisy: Noisy
) -> tuple[Tensor, Tensor]:
    """Return sum(weights * nll) and nll (M,), logits = hidden @ weight.T + prior + noisy logits."""
    return HeadCrossEntropy.apply(hidden, weight, prior, weights, *noisy.parts())


def clean_cross_entropy(
    hidden: Tensor, weight: Tensor, prior: Tensor, weights: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Return sum(weights * nll) and nll (M,), logits = hidden @ weight.T + prior."""
    return HeadCrossEntropy.apply(hidden, weight, prior, weights, tokens)


def plain_block_cross_entropy(
    hidden: Tensor, weight: Tensor, prior: Tensor, weights: Tensor, noisy: Noisy
) -> tuple[Tensor, Tensor]:
    """Return the same from one V-wide tensor that autograd keeps: the plain twin."""
    logits = (hidden @ weight.T).float() + prior + plain_noisy_logits(*noisy.parts())
    nll = torch.nn.functional.cross_entropy(logits, noisy.tokens.long(), reduction="none")
    return (weights * nll).sum(), nll.detach()


def plain_clean_cross_entropy(
    hidden: Tensor, weight: Tensor, prior: Tensor, weights: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the same for clean tokens: the plain twin."""
    logits = (hidden @ weight.T).float() + prior
    nll = torch.nn.functional.cross_entropy(logits, tokens.long(), reduction="none")
    return (weights * nll).sum(), nll.detach()

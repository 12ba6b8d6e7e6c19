"""What training minimises: cross-entropy of a noised block.  denoiser -> [loss] -> train"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch.nn import functional as F

from ssdlm.shapes import Block, Simplex, Tensor, Tokens


class Losses(NamedTuple):
    """Mean losses of a batch, in nats per token; only the total carries a gradient."""

    total: Tensor
    """What is minimised: the weighted sum of the others."""
    block: Tensor
    """That of the noised blocks."""
    next_token: Tensor
    """That of the context stream; 0 where there is none."""


def block_loss(
    logits: Simplex,
    block: Block,
    *,
    reduction: Literal["sum", "mean"] = "mean",
    loss: Literal["cross_entropy", "l2"] = "cross_entropy",
) -> Tensor:
    """Return -log p(block | w_t, context) (Eq. 8-9), or with "l2" ||softmax(logits) - onehot||^2.

    "sum" adds over the block and averages over rows, as the paper writes it; "mean" averages over
    both, as the authors' code does.
    """
    nll = F.cross_entropy(logits.float().transpose(1, 2), block, reduction="none")
    if loss == "l2":
        corner = F.one_hot(block, logits.shape[-1])
        nll = (logits.float().softmax(-1) - corner).square().sum(-1)
    return nll.sum(1).mean() if reduction == "sum" else nll.mean()


def split_rows(tokens: Tokens, c: Tensor, *, B: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Cut each row into context and block at its own c (N,): (row numbers, context, block) by c.

    Rows of one c go through the network together; a batch with one shared c, as in the authors'
    code, is a single group.
    """
    groups = []
    for start in c.unique().tolist():
        rows = (c == start).nonzero().squeeze(-1)
        chosen = tokens[rows]
        groups.append((rows, chosen[:, :start], chosen[:, start : start + B]))
    return groups


def draw_splits(u: Tensor, *, max_len: int, B: int) -> Tensor:
    """Return c ~ U{1..L-B} from uniforms (N,): one per row."""
    # A u of exactly 1, as rounding may make it, would be one too many.
    return 1 + (u * (max_len - B)).long().clamp(max=max_len - B - 1)


def draw_steps(u: Tensor, *, T: int) -> Tensor:
    """Return t ~ U{1..T} from uniforms (N,)."""
    return 1 + (u * T).long().clamp(max=T - 1)

"""The nucleus of logits, and draws from it.  [nucleus] -> ops.draws, diffusion.projection

A nucleus is cut three times: to the `top_k` likeliest tokens (0 for all), of these to those that
sum to `top_p`, and of these to those at least `min_p` times as likely as the likeliest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ssdlm.shapes import Block, Levels, Mask, Simplex, Tensor

SMALL = 2048
"""Up to this many tokens sorting them costs no more than anything else."""
SORTED_ON_GPU = 1 << 18
"""Up to this many numbers a GPU sorts in less time than the launches of anything else take."""
FEW = 512
"""A nucleus of this many tokens or fewer is found by looking at no others."""

DIGITS = ((18, 2**13), (9, 2**9), (0, 2**9))
"""How radix selection cuts up a probability's bits: shift and number of values."""

LEAST = -1e4
"""A logit below all that a network says, yet above what a constraint rules out."""


def suppress(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the logits with some tokens left for when there is no other."""
    if not tokens:
        return logits
    return logits.index_fill(-1, torch.tensor(tokens, device=logits.device), LEAST)


def draw_from(
    logits: Simplex, u: Levels, top_p: float, top_k: int = 0, min_p: float = 0.0
) -> Block:
    """Draw one token per position: where the nucleus's running sum, in id order, passes u."""
    if top_p == 0:
        return logits.argmax(-1)
    mass = nucleus_probs(logits, top_p, top_k, min_p).cumsum(-1)
    total = mass[..., -1:]
    # Rounding may carry the target to the very end of the sum, where no token is.
    target = (u.unsqueeze(-1) * total).minimum(torch.nextafter(total, 0 * total))
    return torch.searchsorted(mass, target, right=True).squeeze(-1)


def truncated(
    logits: Tensor,
    evidence: Tensor,
    *,
    top_p: float,
    temperature: float,
    top_k: int = 0,
    min_p: float = 0.0,
) -> Tensor:
    """Return logits whose share beside the evidence is sharpened and cut to its nucleus."""
    # logits = share + evidence: by Bayes' rule softmax(share) is the network's prior.
    share = logits - evidence
    if temperature != 1:
        share = share / temperature
        logits = share + evidence
    if is_whole(top_p, top_k, min_p):
        return logits
    return logits.masked_fill(~nucleus(share, top_p, top_k, min_p), -torch.inf)


def perturbed(
    logits: Tensor,
    g: Tensor | None,
    legal: Tensor | None = None,
    *,
    top_p: float,
    temperature: float,
    suppressed: Sequence[int],
    top_k: int = 0,
    min_p: float = 0.0,
) -> Tensor:
    """Return log p + g (n, V) up to a constant, -inf outside the nucleus of what is legal.

    The greatest is a draw from the nucleus (the Gumbel-max trick); without g, the likeliest token.
    """
    logits = suppress(logits.float() / temperature, suppressed)
    if legal is not None:
        # Finite, lest the best legal token be as impossible as the rest.
        least = torch.finfo(logits.dtype).min
        logits = logits.clamp(min=least).masked_fill(~legal, -torch.inf)
    if g is None:
        return logits
    if not is_whole(top_p, top_k, min_p):
        # A row at a time, so that what is in a nucleus depends on its own row alone.
        inside = nucleus(logits.unsqueeze(1), top_p, top_k, min_p).squeeze(1)
        logits = logits.masked_fill(~inside, -torch.inf)
    return logits + g


def is_whole(top_p: float, top_k: int, min_p: float) -> bool:
    """Tell whether nothing is cut away."""
    return top_p >= 1 and top_k == 0 and min_p == 0


def nucleus(logits: Simplex, top_p: float, top_k: int = 0, min_p: float = 0.0) -> Mask:
    """Return the nucleus of the top_k most probable tokens, without those below min_p.

    Tokens of equal probability share their fate, but for the sum.
    """
    logits = logits.float()
    if top_k > 0:
        least = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    inside = nucleus_by_sum(logits, top_p)
    if top_k > 0:  # rounding may leave a sum below p that has all of them
        inside &= logits > -torch.inf
    if min_p > 0:
        inside &= logits >= logits.amax(-1, keepdim=True) + math.log(min_p)
    return inside


def nucleus_by_sum(logits: Simplex, top_p: float) -> Mask:
    """Return the top-p nucleus: the most probable tokens up to the one that makes their sum p.

    The crossing token is inside, so is always the first: top_p = 0 leaves the argmax alone.
    """
    if top_p == 0:
        return torch.zeros_like(logits, dtype=torch.bool).scatter_(
            -1, logits.argmax(-1, keepdim=True), True
        )
    is_cpu = logits.device.type == "cpu"
    if top_p >= 1 or logits.shape[-1] <= SMALL or (not is_cpu and logits.numel() <= SORTED_ON_GPU):
        return nucleus_by_sort(logits, top_p)
    if is_cpu:  # elsewhere, looking at the result would be a wait
        # Row by row, so that the way it goes depends on a row alone.
        return torch.cat([nucleus_among_few(row, top_p) for row in logits.split(1)])
    return nucleus_without_sort(logits, top_p)


def nucleus_among_few(logits: Simplex, top_p: float) -> Mask:
    """Return the nucleus out of the FEW most probable tokens, if they are enough."""
    values, ids = logits.topk(FEW, -1)
    mass = (values - logits.logsumexp(-1, keepdim=True)).exp().cumsum(-1)
    # Their probabilities are of the whole vocabulary, so the sum can tell that it is enough.
    if bool((mass[..., -1] >= top_p).all()):
        return mark(ids, mass, top_p, V=logits.shape[-1])
    return nucleus_without_sort(logits, top_p)


def nucleus_without_sort(logits: Simplex, top_p: float) -> Mask:
    """Return the nucleus by radix selection: a token is in it if those above sum to less than p.

    Positive floats are in the order of their bits. Each pass adds up the mass of every value of a
    few bits, and goes on with the tokens of the one value in which the sum crosses p. Tokens of
    equal probability share their fate.
    """
    probs = logits.float().softmax(-1)
    bits = probs.view(torch.int32)  # below 2**30, as probabilities are at most 1
    inside, open_ = torch.zeros_like(probs, dtype=torch.bool), torch.ones_like(probs).bool()
    above = torch.zeros_like(probs[..., :1])
    for shift, size in DIGITS:
        digit = ((bits >> shift) & (size - 1)).long()
        mass = torch.zeros((*probs.shape[:-1], size), device=probs.device)
        mass.scatter_add_(-1, digit, torch.where(open_, probs, 0))
        higher = above + mass.flip(-1).cumsum(-1).flip(-1) - mass
        crossing = (higher < top_p).int().argmax(-1, keepdim=True)
        above = higher.gather(-1, crossing)
        inside = inside | (open_ & (digit > crossing))
        open_ = open_ & (digit == crossing)
    return inside | open_


def nucleus_probs(logits: Simplex, top_p: float, top_k: int = 0, min_p: float = 0.0) -> Simplex:
    """Return the probabilities of the nucleus's tokens, renormalised; zero outside."""
    if not is_whole(top_p, top_k, min_p):
        logits = logits.masked_fill(~nucleus(logits, top_p, top_k, min_p), -torch.inf)
    return logits.float().softmax(-1)


def nucleus_by_sort(logits: Simplex, top_p: float) -> Mask:
    """Return the nucleus by sorting: the plain reference of `nucleus_without_sort`."""
    values, ids = logits.sort(-1, descending=True)
    return mark(ids, values.float().softmax(-1).cumsum(-1), top_p, V=logits.shape[-1])


def mark(ids: Tensor, mass: Tensor, top_p: float, *, V: int) -> Mask:
    """Return the set of ids, most probable first, before which less than p has been summed."""
    # The first is always inside; any other, if those before it have not yet summed to p.
    inside = torch.ones_like(ids, dtype=torch.bool)
    inside[..., 1:] = mass[..., :-1] < top_p
    nothing = torch.zeros((*ids.shape[:-1], V), dtype=torch.bool, device=ids.device)
    return nothing.scatter_(-1, ids, inside)

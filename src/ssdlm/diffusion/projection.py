"""From logits back to the data's own form: which tokens does the network mean?

    denoiser -> [projection] -> sampler

A projection takes logits and one uniform number per position and returns w_hat, between -K and +K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ssdlm.diffusion import simplex
from ssdlm.shapes import Block, Levels, Mask, Simplex, Tensor

SMALL = 2048
"""Up to this many tokens sorting them costs no more than anything else."""
FEW = 512
"""A nucleus of this many tokens or fewer is found by looking at no others."""

DIGITS = ((18, 2**13), (9, 2**9), (0, 2**9))
"""How radix selection cuts up a probability's bits: shift and number of values."""

LEAST = -1e4
"""A logit below all that a network says, yet above what a constraint rules out."""

Projection = Callable[[Simplex, Levels], Simplex]

Truncate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the logits of some positions, their state w_t and their level t/T to other logits."""


@dataclass(frozen=True)
class greedy:
    """Almost-one-hot at the most probable token (Eq. 14)."""

    K: float

    def __call__(self, logits: Simplex, u: Levels) -> Simplex:
        del u
        return simplex.to_logits(logits.argmax(-1), V=logits.shape[-1], K=self.K)


@dataclass(frozen=True)
class sampling:
    """Almost-one-hot at a token drawn from the nucleus (Eq. 15)."""

    K: float
    top_p: float

    def __call__(self, logits: Simplex, u: Levels) -> Simplex:
        return simplex.to_logits(self.draw(logits, u), V=logits.shape[-1], K=self.K)

    def draw(self, logits: Simplex, u: Levels) -> Block:
        """Draw one token per position: where the nucleus's running sum, in id order, passes u."""
        if self.top_p == 0:
            return logits.argmax(-1)
        mass = nucleus_probs(logits, self.top_p).cumsum(-1)
        total = mass[..., -1:]
        # Rounding may carry the target to the very end of the sum, where no token is.
        target = (u.unsqueeze(-1) * total).minimum(torch.nextafter(total, 0 * total))
        return torch.searchsorted(mass, target, right=True).squeeze(-1)


@dataclass(frozen=True)
class multi_hot:
    """+K at every token of the nucleus (Eq. 16)."""

    K: float
    top_p: float

    def __call__(self, logits: Simplex, u: Levels) -> Simplex:
        del u
        return simplex.from_mask(nucleus(logits, self.top_p), K=self.K)


@dataclass(frozen=True)
class mean:
    """The expected almost-one-hot under the nucleus: no token is chosen.

    For step rules that keep all of their state (`steps.Renoise` with rho = 1 or "adaptive"): the
    noise in it is what makes the choice. With less, the text drifts to what is most common, at any
    number of steps.
    """

    K: float
    top_p: float

    def __call__(self, logits: Simplex, u: Levels) -> Simplex:
        del u
        return simplex.from_probs(nucleus_probs(logits, self.top_p), K=self.K)


@dataclass(frozen=True)
class Truncation:
    """Cut what the network adds to the evidence to a nucleus, and sharpen it, before any draw.

    Evidence is noisy, and its noise lifts a few of thousands of tokens into any nucleus of the
    logits. With the network's share p cut to a nucleus, every draw is from the posterior of that
    prior; so with one position open at a time the last one is from the prior itself, however many
    steps there were. With several open, each is cut while the others are noise: the text is then
    from neither the nucleus of the whole nor that of an autoregressive model.
    """

    evidence: Callable[[Tensor, Tensor], Tensor]
    """What w_t and the levels say by themselves, in logits."""
    top_p: float
    temperature: float = 1.0
    """What the network's share is divided by, before its nucleus is cut."""

    def __call__(self, logits: Tensor, w_t: Tensor, progress: Tensor) -> Tensor:
        # logits = share + evidence: by Bayes' rule softmax(share) is the network's prior.
        evidence = self.evidence(w_t, progress)
        share = logits - evidence
        if self.temperature != 1:
            share = share / self.temperature
            logits = share + evidence
        if self.top_p >= 1:
            return logits
        return logits.masked_fill(~nucleus(share, self.top_p), -torch.inf)


def untruncated(logits: Tensor, w_t: Tensor, progress: Tensor) -> Tensor:
    """Return the logits as they are."""
    del w_t, progress
    return logits


def suppress(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the logits with some tokens left for when there is no other."""
    if not tokens:
        return logits
    return logits.index_fill(-1, torch.tensor(tokens, device=logits.device), LEAST)


def nucleus(logits: Simplex, top_p: float) -> Mask:
    """Return the top-p nucleus: the most probable tokens up to the one that makes their sum p.

    The crossing token is inside, so is always the first: top_p = 0 leaves the argmax alone.
    """
    logits = logits.float()
    if top_p == 0:
        return torch.zeros_like(logits, dtype=torch.bool).scatter_(
            -1, logits.argmax(-1, keepdim=True), True
        )
    if top_p >= 1 or logits.shape[-1] <= SMALL:
        return nucleus_by_sort(logits, top_p)
    if logits.device.type == "cpu":  # elsewhere, looking at the result would be a wait
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


def nucleus_probs(logits: Simplex, top_p: float) -> Simplex:
    """Return the probabilities of the nucleus's tokens, renormalised; zero outside."""
    if top_p < 1:
        logits = logits.masked_fill(~nucleus(logits, top_p), -torch.inf)
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

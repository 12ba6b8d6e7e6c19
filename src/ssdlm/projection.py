"""From logits back to the data's own form: which tokens does the network mean?

    denoiser -> [projection] -> sampler

A projection takes logits and one uniform number a position and returns w_hat, between -K and +K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ssdlm import simplex
from ssdlm.config import CHOICES, choose
from ssdlm.shapes import Block, Levels, Mask, Simplex

Projection = Callable[[Simplex, Levels], Simplex]


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
        """Draw one token a position: where the nucleus's running sum, in id order, passes u."""
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

    For step rules that keep their state (`sampler.Renoise`, rho > 0); with rho = 0 it diverges.
    """

    K: float
    top_p: float

    def __call__(self, logits: Simplex, u: Levels) -> Simplex:
        del u
        return simplex.from_probs(nucleus_probs(logits, self.top_p), K=self.K)


def named(name: str, *, K: float, top_p: float) -> Projection:
    """Return the projection called `name`."""
    choose("projection", name, CHOICES["projection"])
    if not 0 <= top_p <= 1:
        raise ValueError(f"top_p={top_p} is not a probability; use 0 (greedy) to 1 (everything)")
    if name == "greedy":
        return greedy(K)
    return {"sampling": sampling, "multi_hot": multi_hot, "mean": mean}[name](K, top_p)


def nucleus(logits: Simplex, top_p: float) -> Mask:
    """Return the top-p nucleus: the most probable tokens up to the one that makes their sum p.

    The crossing token is inside, so is always the first: top_p = 0 leaves the argmax alone. Looks
    at the most probable tokens only, doubling their number until all nuclei are covered.
    """
    V = logits.shape[-1]
    if top_p == 0:
        return torch.zeros_like(logits, dtype=torch.bool).scatter_(
            -1, logits.argmax(-1, keepdim=True), True
        )
    if top_p >= 1:
        return nucleus_by_sort(logits, top_p)
    total = logits.float().logsumexp(-1, keepdim=True)
    count = min(64, V)
    while True:
        values, ids = logits.topk(count, -1)
        mass = (values.float() - total).exp().cumsum(-1)
        if count == V or bool((mass[..., -1] >= top_p).all()):
            return mark(ids, mass, top_p, V=V)
        count = min(8 * count, V)


def nucleus_probs(logits: Simplex, top_p: float) -> Simplex:
    """Return the probabilities of the nucleus's tokens, renormalised; zero outside."""
    if top_p < 1:
        logits = logits.masked_fill(~nucleus(logits, top_p), -torch.inf)
    return logits.float().softmax(-1)


def nucleus_by_sort(logits: Simplex, top_p: float) -> Mask:
    """Return the nucleus by sorting the vocabulary: the plain twin of `nucleus`."""
    values, ids = logits.sort(-1, descending=True)
    return mark(ids, values.float().softmax(-1).cumsum(-1), top_p, V=logits.shape[-1])


def mark(ids: torch.Tensor, mass: torch.Tensor, top_p: float, *, V: int) -> Mask:
    """Return the set of ids, in falling order, before which less than p has been summed."""
    inside = torch.ones_like(ids, dtype=torch.bool)
    inside[..., 1:] = mass[..., :-1] < top_p
    return torch.zeros((*ids.shape[:-1], V), dtype=torch.bool, device=ids.device).scatter_(
        -1, ids, inside
    )

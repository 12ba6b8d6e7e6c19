"""From logits back to the data's own form: which tokens does the network mean?

    denoiser -> [projection] -> sampler

A projection takes logits and one uniform number per position and returns w_hat, between -K and +K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ssdlm.diffusion import simplex
from ssdlm.ops.nucleus import draw_from, nucleus, nucleus_probs, truncated
from ssdlm.shapes import Block, Levels, Simplex, Tensor

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
    top_k: int = 0
    min_p: float = 0.0

    def __call__(self, logits: Simplex, u: Levels) -> Simplex:
        return simplex.to_logits(self.draw(logits, u), V=logits.shape[-1], K=self.K)

    def draw(self, logits: Simplex, u: Levels) -> Block:
        """Draw one token per position."""
        return draw_from(logits, u, self.top_p, self.top_k, self.min_p)


@dataclass(frozen=True)
class multi_hot:
    """+K at every token of the nucleus (Eq. 16)."""

    K: float
    top_p: float
    top_k: int = 0
    min_p: float = 0.0

    def __call__(self, logits: Simplex, u: Levels) -> Simplex:
        del u
        return simplex.from_mask(nucleus(logits, self.top_p, self.top_k, self.min_p), K=self.K)


@dataclass(frozen=True)
class mean:
    """The expected almost-one-hot under the nucleus: no token is chosen.

    For step rules that keep all of their state (`steps.Renoise` with rho = 1 or "adaptive"): the
    noise in it is what makes the choice. With less, the text drifts to what is most common, at any
    number of steps.
    """

    K: float
    top_p: float
    top_k: int = 0
    min_p: float = 0.0

    def __call__(self, logits: Simplex, u: Levels) -> Simplex:
        del u
        probs = nucleus_probs(logits, self.top_p, self.top_k, self.min_p)
        return simplex.from_probs(probs, K=self.K)


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
    top_k: int = 0
    min_p: float = 0.0

    def __call__(self, logits: Tensor, w_t: Tensor, progress: Tensor) -> Tensor:
        settings = {"top_p": self.top_p, "temperature": self.temperature}
        cut = {"top_k": self.top_k, "min_p": self.min_p}
        return truncated(logits, self.evidence(w_t, progress), **settings, **cut)


def untruncated(logits: Tensor, w_t: Tensor, progress: Tensor) -> Tensor:
    """Return the logits as they are."""
    del w_t, progress
    return logits

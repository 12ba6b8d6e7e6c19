"""A denoiser that listens to a classifier: the only home of gradients in decoding.

    denoiser -> [control] -> projection

Control wraps a denoiser and is one itself, so the sampler cannot know that it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ssdlm.denoiser import Denoiser, DenoiserWrapper, row_by_row
from ssdlm.shapes import Block, Context, Simplex, Tensor

LogProb = Callable[[Context, Simplex], Tensor]
"""f_phi(y | w_logits, context): one log-probability a row, differentiable in the logits."""

SMALLEST = 1e-30
"""A token of less probability than this is never drawn, and its gradient is lost in rounding."""


@dataclass
class guided(DenoiserWrapper):
    """A denoiser nudged uphill: logits + lam * gradient of log_prob at the logits (Eq. 23).

    "sum" adds log_prob over the rows, so that a row's nudge does not depend on its batch; "mean"
    averages, as the authors' code does, and so divides lam by the number of rows.
    """

    denoiser: Denoiser
    log_prob: LogProb
    lam: float
    reduction: Literal["sum", "mean"] = "sum"
    gradient: str = "logits"
    """Where it is taken. In the "logits" it has the softmax's factor p: most of the push goes to
    what is likely anyway. In the "simplex" it is what each token would add to log_prob: with
    lam = 1 the nudge is Bayes' rule, log p(token) + log p(label | token), to first order. "words"
    takes of that the few tokens that stand out, by standard deviations over the vocabulary, and
    moves them by at most lam: however sure the classifier is, however long the text."""
    threshold: float = 2.0
    """For "words": deviations up to which a token's nudge is 0; from one more on it is lam."""
    band: tuple[float, ...] = (0.0, 1.0)
    """The noise levels t/T at which the classifier is heard, both ends included."""
    has_windows: bool = False
    """Whether a few positions may be asked for, if the denoiser can be. The classifier then reads
    the context, what is decided of the block, and those positions; what is still noise says
    nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_windows = self.has_windows and self.denoiser.has_windows

    def prefill(self, context: Context) -> Any:
        return self.denoiser.prefill(context)

    def extend(self, cache: Any, block: Block) -> Any:
        return self.denoiser.extend(cache, block)

    def denoise(
        self, cache: Any, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        del previous
        return self.nudged(cache.context, self.denoiser.denoise(cache, w_t, progress), progress)

    def denoise_window(
        self, cache: Any, w_t: Simplex, progress: Tensor, tokens: Block, at: slice
    ) -> Tensor:
        logits = self.denoiser.denoise_window(cache, w_t, progress, tokens, at)
        read = torch.cat((cache.context, tokens[:, : at.start]), 1)
        return self.nudged(read, logits, progress[:, at])

    def nudged(self, context: Context, logits: Simplex, progress: Tensor) -> Simplex:
        """Return logits moved uphill, where the noise level is in the band."""
        logits = logits.detach()
        lam = self.lam / len(logits) if self.reduction == "mean" else self.lam
        if self.band == (0.0, 1.0):
            return logits + lam * row_by_row(self.slope, context, logits)
        low, high = self.band
        is_heard = (progress >= low) & (progress <= high)
        if not bool(is_heard.any()):
            return logits
        is_heard = is_heard.reshape(*is_heard.shape, *[1] * (3 - is_heard.dim()))
        return logits + lam * is_heard * row_by_row(self.slope, context, logits)

    def slope(self, context: Context, logits: Simplex) -> Simplex:
        """Return the gradient at each row's own logits, or at their softmax; of all terms."""
        terms = self.log_prob.terms if isinstance(self.log_prob, Sum) else ((self.log_prob, 1.0),)
        probs = logits.softmax(-1).clamp(min=SMALLEST)
        parts = []
        for term, weight in terms:
            slope = slope_of(term, context, logits)
            if self.gradient != "logits":
                # By the chain rule it is p (s - mean s), where s is the gradient in the simplex.
                slope = slope / probs
            if self.gradient == "words":
                slope = unsaid(outstanding(slope, self.threshold), context)
            parts.append(weight * slope)
        return sum_of(parts)


def slope_of(log_prob: LogProb, context: Context, logits: Simplex) -> Simplex:
    """Return the gradient of a log-probability in each row's own logits."""
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(log_prob(context, logits).sum(), logits)
    return slope


def outstanding(gain: Simplex, threshold: float) -> Simplex:
    """Return for each token 0 or, as it stands out by more than the threshold, up to 1 or -1.

    A classifier has a small opinion of every word, most of it chance. Followed everywhere, it costs
    fluency and says little; the few words that it is sure of are enough, and none of them much more
    than the others.
    """
    gain = gain - gain.mean(-1, keepdim=True)
    spread = gain.square().mean(-1, keepdim=True).sqrt().clamp(min=SMALLEST)
    return gain.sign() * (gain.abs() / spread - threshold).clamp(0, 1)


def unsaid(nudge: Simplex, context: Context) -> Simplex:
    """Return nudges without help for what stands in the text already; else it is said for ever."""
    is_said = torch.zeros_like(nudge[:, 0], dtype=torch.bool).scatter(1, context, True)
    return nudge.where(~is_said.unsqueeze(1) | (nudge < 0), 0.0)


@dataclass(frozen=True)
class Sum:
    """One log-probability made of several, each times its weight."""

    terms: tuple[tuple[LogProb, float], ...]

    def __call__(self, context: Context, logits: Simplex) -> Tensor:
        return sum_of(weight * term(context, logits) for term, weight in self.terms)


def weighted(*terms: tuple[LogProb, float]) -> Sum:
    """Return one log-probability made of several, each times its weight."""
    return Sum(terms)


def sum_of(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of one tensor or more."""
    return torch.stack(list(parts)).sum(0)

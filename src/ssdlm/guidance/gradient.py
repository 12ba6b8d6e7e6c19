"""A denoiser that listens to a classifier (Eq. 23): the only home of gradients in decoding.

    denoiser -> [gradient] -> constraints -> projection

`guided` wraps a denoiser and is one itself, so that the sampler cannot know about guidance. What it
climbs is a `LogProb`: any function from context and logits to one log-probability per row, such as
a classifier that was fitted to the vocabulary (`fitting.FittedGuide`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from ssdlm.denoiser import Denoiser, DenoiserWrapper, row_by_row
from ssdlm.ops.nudges import (
    SMALLEST,
    shift,
    soft_threshold,
    through_softmax,
    without_implausible,
)
from ssdlm.shapes import Block, Context, Simplex, Tensor
from ssdlm.values import shorten

CANDIDATES = 200
"""Tokens of which "fudge" asks what they would make of a text (Yang and Klein, 2021)."""
SURE = 100.0
"""A logit, far above all others, of what is decided."""

LogProb = Callable[[Context, Simplex], Tensor]
"""f_phi(y | w_logits, context): one log-probability per row, differentiable in the logits."""


@runtime_checkable
class InSimplex(Protocol):
    """A `LogProb` that has its gradient in the simplex at hand, before the softmax's factor."""

    def simplex_gradient(self, context: Context, logits: Simplex) -> Simplex:
        """Return the gradient of log_prob in the probabilities that the logits stand for."""
        ...

    def candidates(self, context: Context, tokens: Tensor) -> Tensor:
        """Return log_prob (N, k) of each text with each of some tokens (N, k) behind it."""
        ...


@dataclass
class guided(DenoiserWrapper):
    """A denoiser moved uphill: logits + lam * gradient of log_prob at the logits (Eq. 23)."""

    denoiser: Denoiser
    log_prob: LogProb
    lam: float
    reduction: Literal["sum", "mean"] = "sum"
    """Over the rows of a batch. With "sum" a row's nudge does not depend on its batch; "mean" is
    the authors' code, and divides lam by the number of rows."""
    gradient: str = "logits"
    """Where it is taken. In the "logits" it has the softmax's factor p: most of the push goes to
    what is likely anyway. In the "simplex" it is what each token would add to log_prob: with
    lam = 1 the nudge is Bayes' rule, log p(token) + log p(label | token), to first order. "words"
    takes of that the few tokens that stand out, by standard deviations over the vocabulary, and
    moves them by at most lam: however sure the classifier is, however long the text. "fudge" takes
    no gradient: it asks what each likely token would make of log_prob as the next one."""
    threshold: float = 2.0
    """For "words": deviations up to which a token's nudge is 0; from one more on it is lam."""
    plausible: float = 0.0
    """For "words": the share of the likeliest token's probability below which none is helped."""
    band: tuple[float, ...] = (0.0, 1.0)
    """The noise levels t/T at which the classifier is asked, both ends included."""
    has_windows: bool = False
    """Whether a few positions may be asked for, if the denoiser can be. The classifier then reads
    the context, what is decided of the block, and those positions, but nothing that is still
    noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_windows = self.has_windows and self.denoiser.has_windows
        whole = self.log_prob
        self.parts = whole.terms if isinstance(whole, WeightedSum) else ((whole, 1.0),)
        self.shifts = [torch.full((), -1.0, device=self.device) for _ in self.parts]
        """For each term, the most that it moved the probabilities of a position so far: a total
        variation, from 0 to 1; -1 before it is asked."""

    def prefill(self, context: Context) -> Any:
        return self.denoiser.prefill(context)

    def extend(self, cache: Any, block: Block) -> Any:
        return self.denoiser.extend(cache, block)

    def denoise(
        self, cache: Any, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        del previous
        return self.steer(cache.context, self.denoiser.denoise(cache, w_t, progress), progress)

    def denoise_window(
        self, cache: Any, w_t: Simplex, progress: Tensor, tokens: Block, window: slice
    ) -> Tensor:
        logits = self.denoiser.denoise_window(cache, w_t, progress, tokens, window)
        context = torch.cat((cache.context, tokens[:, : window.start]), 1)
        return self.steer(context, logits, progress[:, window])

    def read_and_denoise(
        self, cache: Any, new: Context, w_t: Simplex, progress: Tensor
    ) -> tuple[Any, Simplex]:
        cache, logits = self.denoiser.read_and_denoise(cache, new, w_t, progress)
        return cache, self.steer(cache.context, logits, progress)

    def steer(self, context: Context, logits: Simplex, progress: Tensor) -> Simplex:
        """Return logits + lam * gradient, where the noise level is in the band."""
        logits = logits.detach()
        lam = self.lam / len(logits) if self.reduction == "mean" else self.lam
        if self.band == (0.0, 1.0):
            return logits + lam * row_by_row(self.nudge, context, logits)
        low, high = self.band
        in_band = (progress >= low) & (progress <= high)
        if not bool(in_band.any()):  # the classifier need not be asked
            return logits
        in_band = in_band.reshape(*in_band.shape, *[1] * (3 - in_band.dim()))
        return logits + lam * in_band * row_by_row(self.nudge, context, logits)

    def nudge(self, context: Context, logits: Simplex) -> Simplex:
        """Return the gradient of log_prob; of a sum, each term's for itself, times its weight.

        Terms are told apart since "words" is not linear: each has tokens that stand out.
        """
        works = [
            partial(self.nudge_by, log_prob, weight, most, context, logits)
            for log_prob, weight, most in self.terms()
        ]
        return torch.stack(side_by_side(works, logits.device)).sum(0)

    def terms(self) -> list[tuple[LogProb, float, Tensor]]:
        """Return each term of log_prob, its weight, and its entry of `shifts`."""
        return [(*term, most) for term, most in zip(self.parts, self.shifts, strict=True)]

    def nudge_by(
        self, log_prob: LogProb, weight: float, most: Tensor, context: Context, logits: Simplex
    ) -> Simplex:
        """Return the nudge of one term, and keep the most that it ever was in `most`."""
        gradient = self.rise(log_prob, context, logits)
        if self.gradient in ("simplex", "words"):
            # By the chain rule it is p (s - mean s), where s is the gradient in the simplex.
            gradient = gradient / logits.softmax(-1).clamp(min=SMALLEST)
        if self.gradient == "words":
            gradient = without_repeats(soft_threshold(gradient, self.threshold), context)
            gradient = without_implausible(gradient, logits, self.plausible)
        part = weight * gradient
        most.copy_(torch.maximum(most, shift(logits, self.lam * part)))
        return part

    def rise(self, log_prob: LogProb, context: Context, logits: Simplex) -> Simplex:
        """Return where a term rises in the logits."""
        if isinstance(log_prob, Asked):
            return log_prob.gradient
        find = next_gain if self.gradient == "fudge" else logit_gradient
        return find(log_prob, context, logits)


def side_by_side(works: Sequence[Callable[[], Tensor]], device: torch.device) -> list[Tensor]:
    """Return what each piece of work gives; a GPU, mostly idle in each, does all at once."""
    if device.type != "cuda" or len(works) == 1:
        return [work() for work in works]
    home = torch.cuda.current_stream(device)
    streams = [torch.cuda.Stream(device) for _ in works]
    results = []
    for work, stream in zip(works, streams, strict=True):
        stream.wait_stream(home)
        with torch.cuda.stream(stream):
            results.append(work())
    for stream, result in zip(streams, results, strict=True):
        home.wait_stream(stream)
        result.record_stream(home)
    return results


@dataclass(frozen=True)
class Asked:
    """A `LogProb` that is asked outside a graph: what it says is in a tensor that the graph has."""

    log_prob: LogProb
    gradient: Simplex
    """Of the logits (N, W, V)."""

    def __call__(self, context: Context, logits: Simplex) -> Tensor:
        return self.log_prob(context, logits)


@dataclass(frozen=True)
class UserFunction:
    """A `LogProb` that a user wrote: its errors are said with its name, its context is a copy."""

    function: LogProb

    @property
    def title(self) -> str:
        return title_of(self.function)

    def __call__(self, context: Context, logits: Simplex) -> Tensor:
        try:
            return self.function(context.clone(), logits)
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"control {self.title} raised {type(error).__name__}: {shorten(str(error))}"
            ) from error


def logit_gradient(log_prob: LogProb, context: Context, logits: Simplex) -> Simplex:
    """Return the gradient of a log-probability in each row's own logits."""
    if isinstance(log_prob, InSimplex):
        return through_softmax(log_prob.simplex_gradient(context, logits), logits)
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        said = log_prob(context, logits)
        if not isinstance(said, torch.Tensor) or not said.requires_grad:
            raise ValueError(
                f"control {title_of(log_prob)} returns nothing that depends on the logits; return "
                "a tensor computed from them, one log-probability a row"
            )
        (gradient,) = torch.autograd.grad(said.sum(), logits)
    # On a GPU looking would be a wait.
    if gradient.device.type == "cpu" and not bool(gradient.isfinite().all()):
        raise ValueError(
            f"control {title_of(log_prob)} has a gradient that is not finite; see that there is no "
            "logarithm of 0 in it"
        )
    return gradient


@torch.no_grad()
def next_gain(log_prob: LogProb, context: Context, logits: Simplex) -> Simplex:
    """Return what a log-probability is with each token as the next one (FUDGE).

    That is asked of the likeliest tokens; all others count as the worst of them.
    """
    tokens = logits[:, 0].topk(min(CANDIDATES, logits.shape[-1])).indices
    if isinstance(log_prob, InSimplex):
        said = log_prob.candidates(context, tokens)
    else:
        k, certain = tokens.shape[1], torch.full_like(logits[:, :1], -SURE)
        rows = certain.repeat_interleave(k, 0).scatter(2, tokens.view(-1, 1, 1), SURE)
        said = log_prob(context.repeat_interleave(k, 0), rows).view_as(tokens)
    found = torch.zeros_like(logits)
    found[:, 0] = said.amin(1, True).expand_as(found[:, 0]).scatter(1, tokens, said)
    return found


def title_of(control: Any) -> str:
    """Return what a control that is no text is called."""
    title = getattr(control, "title", "") or getattr(control, "name", "")
    return title or getattr(control, "__name__", type(control).__name__)


def without_repeats(nudge: Simplex, context: Context) -> Simplex:
    """Return nudges that do not help tokens of the context; else they are written for ever."""
    is_present = torch.zeros_like(nudge[:, 0], dtype=torch.bool).scatter(1, context, True)
    return nudge.where(~is_present.unsqueeze(1) | (nudge < 0), 0.0)


@dataclass(frozen=True)
class WeightedSum:
    """One log-probability made of several, each times its weight."""

    terms: tuple[tuple[LogProb, float], ...]

    def __call__(self, context: Context, logits: Simplex) -> Tensor:
        return torch.stack([weight * term(context, logits) for term, weight in self.terms]).sum(0)


def weighted(*terms: tuple[LogProb, float]) -> WeightedSum:
    """Return one log-probability made of several, each times its weight."""
    return WeightedSum(terms)

"""A denoiser whose texts match a grammar as a whole.

    denoiser -> guidance -> [grammatical] -> projection

The support is exact: a text never leaves the states of the automaton from which it can be finished
in the room there is. Where it could end, end-of-text may follow, and after that anything.

The law depends on what is decided together. Tokens drawn in one pass are independent, given what
the network says. Of such tokens the law given that they match is known, by messages from the end of
the block to its start: m_i(s) = sum over x of p_i(x) m_i+1(s'), with s' the state after x, is the
chance of a match from state s on. From left to right, x is drawn in proportion to p_i(x) m_i+1(s').
A position that is noise alone while others are not is not being decided, and all that is asked of
it is that there is a way to the end: m is 1 or 0. So with one position at a time illegal tokens are
left out, and the rest stay in proportion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import torch
import torch.nn.functional as F

from ssdlm.constraints.constrained import ConstrainedCache, Prediction, constrained
from ssdlm.constraints.matching import Drawing, GrammarPrediction, Weighing
from ssdlm.diffusion.projection import Projection, Truncate, untruncated
from ssdlm.diffusion.sampler import Step
from ssdlm.diffusion.simplex import to_logits
from ssdlm.shapes import Block, Levels, Simplex, Tensor


@dataclass
class grammatical(constrained):
    """A denoiser held to one grammar per row."""

    ends_as_drawn: bool = False
    """Whether a text ends as it is drawn (w_0), and not as the argmax of logits."""
    is_weighed: bool = False
    """Whether to keep what draws are worth."""
    truncate: Truncate = untruncated
    """How logits are cut before tokens are drawn, to know their chances without the grammar."""
    log_weights: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False)
    """Of the latest draw (N, b): log p/q of each token, where p is what the network says of it
    without the grammar, and q its chance under it. With illegal tokens left out and no more, that
    is the log of the probability that legal ones have together. Multiplied by the weights of all
    of its tokens, each of the draw that decided it, a text has the law given a match again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # A token that stands behind the window would have to be seen.
        self.has_windows = self.denoiser.has_windows and self.is_free

    def denoise_window(
        self, cache: ConstrainedCache, w_t: Simplex, progress: Tensor, tokens: Block, window: slice
    ) -> Tensor:
        self.read_context(cache, w_t.shape[1])
        logits = self.denoiser.denoise_window(cache.inner, w_t, progress, tokens, window)
        before = tokens[:, : window.start].tolist()
        states = [
            placement.read(state, cache.written, row)
            for placement, state, row in zip(cache.placements, cache.states, before, strict=True)
        ]
        here = replace(cache, states=states, written=cache.written + window.start)
        return self.hold(here, logits, w_t[:, window], progress[:, window], has_own_levels=True)

    def predict(
        self,
        cache: ConstrainedCache,
        logits: Simplex,
        decided: list[list[int]],
        is_drawn: list[list[bool]],
    ) -> Prediction:
        return GrammarPrediction(cache, logits, decided, is_drawn, self.ends_as_drawn)

    def draw_legally(self, project: Projection, logits: Simplex, u: Levels) -> Simplex:
        """Return the projection with tokens drawn one after another, so that they match."""
        prediction = cast(GrammarPrediction, self.prediction)
        if not self.ends_as_drawn:
            logits = prediction.logits  # what the call returned is about its argmax alone
        choose = Drawing(project, u, torch.empty_like(logits), self.K)
        w_hat = choose.w_hat
        if self.is_weighed:
            self.log_weights = logits.new_zeros(logits.shape[:2])
            free = self.truncate(prediction.logits, *self.seen)
            choose = Weighing(choose, (free, prediction.logits), self.log_weights)
        fixed = prediction.walk(logits, choose)
        rows, indices = (fixed >= 0).nonzero(as_tuple=True)
        clean = to_logits(fixed[rows, indices].unsqueeze(0), V=self.V, K=self.K)[0]
        w_hat[rows.to(w_hat.device), indices.to(w_hat.device)] = clean.to(w_hat)
        return w_hat


def weighed(steps: Iterator[Step], denoiser: grammatical) -> Iterator[Step]:
    """Yield a denoiser's steps, each with what the tokens are worth that it has decided."""
    level = torch.ones(0)
    for step in steps:
        before = F.pad(level, (0, len(step.progress) - len(level)), value=1.0)
        level = torch.zeros_like(before) if step.is_last else step.progress
        is_new = ((before > 0) & (level == 0))[step.window]
        # The positions that a sliding window has open in the next block are not the step's.
        worth = denoiser.log_weights[:, : len(is_new)]
        log_weight = (worth * is_new.to(denoiser.device)).sum(1)
        yield replace(step, log_weight=log_weight)
        level = torch.ones(0) if step.is_last else level

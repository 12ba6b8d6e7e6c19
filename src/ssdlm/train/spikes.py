"""Which optimiser steps are skipped: those whose gradient is far above the usual.  -> run, loop

A gradient that is not finite, or whose norm is more than `train.spike` times the mean norm of the
steps before, does not move the weights. A run of `MOST_IN_A_ROW` such steps is no spike: it ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DECAY = 0.98
"""Of the mean norm: it remembers some fifty steps."""
FIRST = 20
"""Steps before which no norm is usual, and only what is not finite is skipped."""
MOST_IN_A_ROW = 20


@dataclass(frozen=True)
class Spikes:
    """What is known of the norms so far; a checkpoint keeps it, so that a run resumes alike."""

    mean: float = 0.0
    """Of the norms of steps that were taken, in which later ones weigh more."""
    steps: int = 0
    """That were taken."""
    skipped: int = 0
    """In all."""
    in_a_row: int = 0

    def allows(self, norm: float, factor: float) -> bool:
        """Tell whether a gradient of this norm may move the weights."""
        if not math.isfinite(norm):
            return False
        return self.steps < FIRST or norm <= factor * self.mean

    def after(self, norm: float, *, is_taken: bool) -> Spikes:
        """Return what is known after a step of this norm."""
        if not is_taken:
            return Spikes(self.mean, self.steps, self.skipped + 1, self.in_a_row + 1)
        decay = min(DECAY, self.steps / (self.steps + 1))  # a plain mean at first
        return Spikes(decay * self.mean + (1 - decay) * norm, self.steps + 1, self.skipped)

    @property
    def is_hopeless(self) -> bool:
        return self.in_a_row >= MOST_IN_A_ROW

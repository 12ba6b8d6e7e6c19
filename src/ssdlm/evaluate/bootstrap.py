"""How far a figure would move with other prompts.

perplexity, diversity, mauve -> [bootstrap] -> run

Prompts are drawn with replacement, each with all of its samples and its gold, since samples of one
prompt are not independent. Counts of distinct things shrink when a prompt is drawn twice, so the
interval is the spread of the draws around their mean, moved to the figure itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Statistic = Callable[[np.ndarray], float]
"""A figure as a function of how often each prompt counts; all ones give the figure itself."""

Interval = tuple[float, float]
"""Its low and its high end."""


@dataclass(frozen=True)
class Bootstrap:
    """Draws of prompts that every figure of a report shares."""

    num_prompts: int
    num_resamples: int = 1000
    level: float = 0.95
    seed: int = 0

    def estimate(self, statistic: Statistic) -> float:
        """Return the figure, each prompt counting once."""
        return statistic(np.ones(self.num_prompts))

    def interval(self, statistic: Statistic) -> Interval | None:
        """Return the interval around the figure, or None where fewer than two prompts vary."""
        generator = np.random.default_rng(self.seed)
        share = np.full(self.num_prompts, 1 / self.num_prompts)
        counts = generator.multinomial(self.num_prompts, share, size=self.num_resamples)
        draws = np.array([statistic(weights) for weights in counts.astype(float)])
        draws = draws[np.isfinite(draws)]
        figure = self.estimate(statistic)
        if self.num_prompts < 2 or len(draws) < 2 or not math.isfinite(figure):
            return None
        tail = (1 - self.level) / 2
        low, high = np.quantile(draws, [tail, 1 - tail]) - draws.mean() + figure
        return min(float(low), figure), max(float(high), figure)


def clipped(interval: Interval | None, low: float, high: float) -> Interval | None:
    """Return an interval cut to what the figure can be."""
    return None if interval is None else (max(interval[0], low), min(interval[1], high))


def folded(interval: Interval | None) -> Interval | None:
    """Return the interval of |x| given that of x."""
    if interval is None:
        return None
    low, high = interval
    inside = low <= 0 <= high
    return 0.0 if inside else min(abs(low), abs(high)), max(abs(low), abs(high))

"""Each figure of a report with its interval, and notes on what it leaves out.

perplexity, diversity, self_bleu, mauve -> [figures] -> run
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ssdlm.evaluate import diversity
from ssdlm.evaluate.bootstrap import Bootstrap, Interval, Statistic, clipped, folded
from ssdlm.evaluate.mauve import FEW_TEXTS, Mauve
from ssdlm.evaluate.perplexity import Surprise
from ssdlm.evaluate.samples import Pool
from ssdlm.evaluate.self_bleu import self_bleu

Metric = Callable[[Sequence[Pool]], Statistic]
"""What a new metric is: it reduces pools of samples to a statistic, such as a `PromptMean`."""


@dataclass(frozen=True)
class Figure:
    """A named number, None where there is nothing to measure, and its interval if it has one."""

    name: str
    value: float | None
    interval: Interval | None


def measure(
    name: str,
    statistic: Statistic,
    bootstrap: Bootstrap,
    *,
    low: float = 0.0,
    high: float = math.inf,
) -> Figure:
    """Return a statistic's figure with its interval, cut to what the figure can be."""
    interval = clipped(bootstrap.interval(statistic), low, high)
    return Figure(name, finite(bootstrap.estimate(statistic)), interval)


def perplexity_figures(samples: Surprise, bootstrap: Bootstrap) -> list[Figure]:
    """Return micro and macro perplexity."""
    return [
        measure("ppl_micro", samples.micro, bootstrap),
        measure("ppl_macro", samples.macro, bootstrap),
    ]


def delta_figure(samples: Surprise, gold: Surprise, bootstrap: Bootstrap) -> Figure:
    """Return |log PPL - log PPL of gold|, micro."""

    def difference(weights: np.ndarray) -> float:
        return math.log(samples.micro(weights)) - math.log(gold.micro(weights))

    interval = folded(bootstrap.interval(difference))
    return Figure("delta_log_ppl", finite(abs(bootstrap.estimate(difference))), interval)


def perplexity_notes(samples: Surprise) -> list[str]:
    """Return what the macro mean leaves out."""
    silent = int((samples.tokens <= 0).sum())
    absurd = int((~samples.kept).sum()) - silent
    notes = []
    if silent:
        notes.append(f"{silent} samples add no judge token and are not in ppl_macro")
    if absurd:
        notes.append(f"ppl_macro leaves out {absurd} samples of perplexity 1e4 and more")
    return notes


def mauve_figure(name: str, result: Mauve, bootstrap: Bootstrap) -> Figure:
    """Return the library's score, with the spread of the fixed buckets moved onto it."""
    interval = bootstrap.interval(result.resampled)
    if interval is not None:
        shift = result.score - bootstrap.estimate(result.resampled)
        interval = clipped((interval[0] + shift, interval[1] + shift), 0.0, 1.0)
    return Figure(name, result.score, interval)


def mauve_notes(name: str, result: Mauve) -> list[str]:
    """Return why a score may mislead."""
    notes = []
    if result.num_cut:
        notes.append(f"{name}: {result.num_cut} texts were cut to {result.limit} tokens")
    if len(result.human) < FEW_TEXTS:
        notes.append(
            f"{name} from {len(result.human)} gold texts is unsteady: {FEW_TEXTS} or more are usual"
        )
    return notes


def diversity_figures(
    pools: Sequence[Pool], chosen: Sequence[str], bootstrap: Bootstrap
) -> list[Figure]:
    """Return the chosen figures among those that need no model."""
    figures = []
    if "dist" in chosen:
        for n in (1, 2, 3):
            statistic = diversity.distinct(pools, n)
            figures.append(measure(f"dist-{n}", statistic, bootstrap, high=1.0))
    if "zipf" in chosen:
        counts = diversity.token_counts(pools)
        figures.append(measure("zipf", lambda w: diversity.zipf(counts.weighted(w)), bootstrap))
    if "rep" in chosen:
        figures.append(measure("rep", diversity.repetition(pools), bootstrap, high=1.0))
    if "self_bleu" in chosen:
        scores = self_bleu(pools)
        named = {"self_bleu": scores[4]} | {f"self_bleu-{n}": scores[n] for n in scores}
        for name, score in named.items():
            figures.append(measure(name, score, bootstrap, high=1.0))
    if "entropy" in chosen:
        figures.append(measure("entropy", diversity.entropy(pools), bootstrap))
    return figures


def extra_figures(
    pools: Sequence[Pool], extra_metrics: Mapping[str, Metric], bootstrap: Bootstrap
) -> list[Figure]:
    """Return the figures of metrics that a caller brings along."""
    return [
        measure(name, metric(pools), bootstrap, low=-math.inf)
        for name, metric in extra_metrics.items()
    ]


def finite(value: float) -> float | None:
    """Return the value, or None for one that JSON has no number for."""
    return value if math.isfinite(value) else None

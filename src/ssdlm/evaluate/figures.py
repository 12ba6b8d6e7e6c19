"""Each figure of a report with its interval, and remarks on what it leaves out.

perplexity, diversity, self_bleu, mauve -> [figures] -> run
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ssdlm.evaluate import diversity
from ssdlm.evaluate.bootstrap import Bootstrap, Interval, Statistic, clipped, folded
from ssdlm.evaluate.mauve import FEW_TEXTS, Mauve
from ssdlm.evaluate.perplexity import Surprise
from ssdlm.evaluate.samples import Pool
from ssdlm.evaluate.self_bleu import self_bleu

DIVERSITY = ("dist", "zipf", "rep", "self_bleu", "entropy")


@dataclass(frozen=True)
class Figure:
    """A named number, None where there is nothing to measure, and its interval if it has one."""

    name: str
    value: float | None
    interval: Interval | None


def measure(
    name: str, statistic: Statistic, bootstrap: Bootstrap, *, most: float = math.inf
) -> Figure:
    """A figure that cannot be below 0 or above `most`."""
    interval = clipped(bootstrap.interval(statistic), 0.0, most)
    return Figure(name, finite(bootstrap.estimate(statistic)), interval)


def perplexity_figures(samples: Surprise, bootstrap: Bootstrap) -> list[Figure]:
    """Micro and macro perplexity."""
    return [
        measure("ppl_micro", samples.micro, bootstrap),
        measure("ppl_macro", samples.macro, bootstrap),
    ]


def delta_figure(samples: Surprise, gold: Surprise, bootstrap: Bootstrap) -> Figure:
    """|log PPL - log PPL of gold|, micro."""

    def difference(weights: np.ndarray) -> float:
        return math.log(samples.micro(weights)) - math.log(gold.micro(weights))

    interval = folded(bootstrap.interval(difference))
    return Figure("delta_log_ppl", finite(abs(bootstrap.estimate(difference))), interval)


def perplexity_remarks(samples: Surprise) -> list[str]:
    """What the macro mean leaves out."""
    silent = int((samples.tokens <= 0).sum())
    absurd = int((~samples.kept).sum()) - silent
    remarks = []
    if silent:
        remarks.append(f"{silent} samples add no judge token and are not in ppl_macro")
    if absurd:
        remarks.append(f"ppl_macro leaves out {absurd} samples of perplexity 1e4 and more")
    return remarks


def mauve_figure(name: str, result: Mauve, bootstrap: Bootstrap) -> Figure:
    """The library's score, with the spread of the fixed buckets moved onto it."""
    interval = bootstrap.interval(result.of)
    if interval is not None:
        shift = result.score - bootstrap.estimate(result.of)
        interval = clipped((interval[0] + shift, interval[1] + shift), 0.0, 1.0)
    return Figure(name, result.score, interval)


def mauve_remarks(name: str, result: Mauve) -> list[str]:
    """Why a score may mislead."""
    remarks = []
    if result.num_cut:
        remarks.append(f"{name}: {result.num_cut} texts were cut to {result.limit} tokens")
    if len(result.human) < FEW_TEXTS:
        remarks.append(
            f"{name} from {len(result.human)} gold texts is unsteady: {FEW_TEXTS} or more are usual"
        )
    return remarks


def diversity_figures(
    pools: Sequence[Pool], chosen: Sequence[str], bootstrap: Bootstrap
) -> list[Figure]:
    """Those of the chosen measures that need no model."""
    makers: dict[str, Callable[[Sequence[Pool], Bootstrap], list[Figure]]] = {
        "dist": _distinct,
        "zipf": _zipf,
        "rep": _repetition,
        "self_bleu": _self_bleu,
        "entropy": _entropy,
    }
    return [
        figure for name in DIVERSITY if name in chosen for figure in makers[name](pools, bootstrap)
    ]


def finite(value: float) -> float | None:
    """The value, or None for one that JSON cannot hold."""
    return value if math.isfinite(value) else None


def _distinct(pools: Sequence[Pool], bootstrap: Bootstrap) -> list[Figure]:
    return [
        measure(f"dist-{n}", diversity.distinct(pools, n).of, bootstrap, most=1.0)
        for n in (1, 2, 3)
    ]


def _zipf(pools: Sequence[Pool], bootstrap: Bootstrap) -> list[Figure]:
    counts = diversity.token_counts(pools)
    return [measure("zipf", lambda weights: diversity.zipf(counts.of(weights)), bootstrap)]


def _repetition(pools: Sequence[Pool], bootstrap: Bootstrap) -> list[Figure]:
    return [measure("rep", diversity.repetition(pools).of, bootstrap, most=1.0)]


def _self_bleu(pools: Sequence[Pool], bootstrap: Bootstrap) -> list[Figure]:
    scores = self_bleu(pools)
    named = {"self_bleu": scores[4]} | {f"self_bleu-{n}": score for n, score in scores.items()}
    return [measure(name, score.of, bootstrap, most=1.0) for name, score in named.items()]


def _entropy(pools: Sequence[Pool], bootstrap: Bootstrap) -> list[Figure]:
    return [measure("entropy", diversity.entropy(pools).of, bootstrap)]

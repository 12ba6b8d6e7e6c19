"""Pictures of figures over one option, all of one look: panels side by side, a legend below.

table.Row -> [plot] -> page
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING

from ssdlm.reproduce.table import Row, is_percent
from ssdlm.storage.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "mauve": "MAUVE, %",
    "ppl_micro": "perplexity",
    "ppl_macro": "perplexity",
    "rep": "repeated endings, %",
    "dist-1": "distinct words (Dist-1), %",
    "control_external": "accuracy by the outside judge, %",
    "control_internal": "accuracy by the guide, %",
}
LINEAR, LOG, FROM_ZERO = "linear", "log", "symlog"
EVEN = 10.0
"""Up to here an axis that starts at zero is evenly spaced, and logarithmic beyond."""
WIDE = 10.0
"""A perplexity that varies by more than this factor is drawn on a logarithmic axis."""
GAP = 1 / 12
"""Ticks are at least this share of an axis apart."""


@dataclass(frozen=True)
class Point:
    """One figure at one value of the option, as a report has it."""

    x: float
    y: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Plot:
    """A metric per panel, a curve per label, over one option."""

    x_label: str
    panels: Mapping[str, Mapping[str, Sequence[Point]]]
    """Metric -> label -> points in the order of x."""
    scale: str = LINEAR
    """How the option is spaced: linear, log, or symlog (from zero)."""

    def save(self, path: Path) -> None:
        """Write the picture as PNG."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 4.4), layout="constrained")
        panels = figure.subplots(1, len(self.panels), squeeze=False)[0]
        for axes, (metric, curves) in zip(panels, self.panels.items(), strict=True):
            self.draw(axes, metric, curves)
        # Every panel has the same curves, so that one legend is enough.
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        write_file(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))

    def draw(self, axes: Axes, metric: str, curves: Mapping[str, Sequence[Point]]) -> None:
        """Draw one panel: each figure with its interval where it has one."""
        unit = 100 if is_percent(metric) else 1
        for label, points in curves.items():
            x, y = [point.x for point in points], [unit * point.y for point in points]
            ends = [point.interval or (point.y, point.y) for point in points]
            below = [unit * max(p.y - low, 0) for p, (low, _) in zip(points, ends, strict=True)]
            above = [unit * max(high - p.y, 0) for p, (_, high) in zip(points, ends, strict=True)]
            axes.errorbar(x, y, (below, above), fmt="o-", markersize=4, capsize=3, label=label)
        every = [point for points in curves.values() for point in points]
        axes.set(xlabel=self.x_label, title=TITLES[metric])
        space(axes, sorted({point.x for point in every}), self.scale)
        heights = [point.y for point in every]
        if unit == 1 and heights and max(heights) > WIDE * min(heights) > 0:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:,g}")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)


def curves(
    rows: Iterable[Row], metrics: Iterable[str], x: str, label: str
) -> dict[str, dict[str, list[Point]]]:
    """Return the panels of a plot: the rows' figures over their fact `x`, a curve per `label`."""
    panels: dict[str, dict[str, list[Point]]] = {metric: {} for metric in metrics}
    for metric, row in product(panels, sorted(rows, key=lambda row: row.facts[x])):
        value = row.values[metric]
        if value is not None:
            point = Point(float(row.facts[x]), value, row.intervals.get(metric))
            panels[metric].setdefault(row.facts[label], []).append(point)
    return panels


def space(axes: Axes, values: Sequence[float], scale: str) -> None:
    """Space an axis, with ticks at the values that were measured and room between them."""
    if scale == LOG:
        axes.set_xscale("log")
    elif scale == FROM_ZERO:
        axes.set_xscale("symlog", linthresh=EVEN)
    axes.minorticks_off()
    shown = ticks(values, scale)
    axes.set_xticks(shown, [f"{value:g}" for value in shown])


def ticks(values: Sequence[float], scale: str) -> list[float]:
    """Return the values, from the largest down, that are not too near to one another."""

    def place(value: float) -> float:
        if scale == LINEAR or (scale == FROM_ZERO and value <= EVEN):
            return value if scale == LINEAR else value / EVEN
        return log10(value)

    least = GAP * (place(values[-1]) - place(values[0])) if values else 0.0
    kept: list[float] = []
    for value in reversed(values):
        if not kept or place(kept[-1]) - place(value) >= least:
            kept.append(value)
    return kept[::-1]

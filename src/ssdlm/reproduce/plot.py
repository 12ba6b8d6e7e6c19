"""Pictures of figures over one option, all of one look: panels side by side, one legend below.

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
    "mauve": "MAUVE, %", "ppl_micro": "perplexity", "ppl_macro": "perplexity",
    "rep": "repetition, %", "dist-1": "distinct words (Dist-1), %",
    "control_external": "accuracy by the outside judge, %",
    "control_internal": "accuracy by the guide, %",
}  # fmt: skip
LINEAR, LOG, FROM_ZERO = "linear", "log", "symlog"
EVEN = 10.0
"""Up to here an axis that starts at zero is evenly spaced; beyond, it is logarithmic."""
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


Curves = Mapping[str, Sequence[Point]]
"""Points in the order of x, by what the legend calls them."""


@dataclass(frozen=True)
class Plot:
    """A panel per metric, each with the same curves over one option."""

    x_label: str
    panels: Mapping[str, Curves]
    scale: str = LINEAR
    """How the option is spaced: linear, log, or symlog (from zero)."""

    def save(self, path: Path) -> None:
        """Write the picture as PNG."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 4.4), layout="constrained")
        panels = figure.subplots(1, len(self.panels), squeeze=False)[0]
        for axes, (metric, curves) in zip(panels, self.panels.items(), strict=True):
            self.draw(axes, metric, curves)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        write_file(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))

    def draw(self, axes: Axes, metric: str, curves: Curves) -> None:
        """Draw one panel: each figure with its interval where it has one."""
        unit = 100 if is_percent(metric) else 1
        for label, points in curves.items():
            heights = [unit * point.y for point in points]
            (line,) = axes.plot([p.x for p in points], heights, "o-", markersize=4, label=label)
            for point in points:
                if point.interval is not None:
                    low, high = point.interval
                    axes.vlines(point.x, unit * low, unit * high, line.get_color(), alpha=0.5)
        every = [point for points in curves.values() for point in points]
        axes.set(xlabel=self.x_label, title=TITLES[metric])
        axes.set_xscale(self.scale, **({"linthresh": EVEN} if self.scale == FROM_ZERO else {}))
        shown = ticks(sorted({point.x for point in every}), self.scale)
        axes.set_xticks(shown, [f"{value:g}" for value in shown])
        axes.minorticks_off()
        heights = [point.y for point in every]
        if unit == 1 and heights and max(heights) > WIDE * min(heights) > 0:
            from matplotlib.ticker import LogLocator

            axes.set_yscale("log")
            axes.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:,g}")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)


def ticks(values: Sequence[float], scale: str) -> list[float]:
    """Return the values, from the largest down, that are not too near to one another."""

    def position(value: float) -> float:
        if scale == LOG or (scale == FROM_ZERO and value > EVEN):
            return log10(value)
        return value if scale == LINEAR else value / EVEN

    kept: list[float] = []
    for value in reversed(values):
        least = GAP * (position(values[-1]) - position(values[0]))
        if not kept or position(kept[-1]) - position(value) >= least:
            kept.append(value)
    return kept[::-1]


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

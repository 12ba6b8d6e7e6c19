"""Draw the pictures of the results pages from docs/figures.json: python docs/draw_results.py

The figures are those of the tables beside each picture. Pictures have no background and colours of
middle brightness, so that they can be read on light and on dark pages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

DOCS = Path(__file__).parent
FIGURES = DOCS / "figures.json"
COLOURS = ["#2f81f7", "#d4711c", "#2da44e", "#a371f7"]
INK, GRID = "#707b88", "#707b8855"
MARKERS = ["o", "s", "^", "D"]
STYLE = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # letters stay letters: smaller, and a reader can search them
    "svg.hashsalt": "ssdlm",  # the same file in every run
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "sans-serif"],
}


def draw(picture: Mapping[str, Any]) -> Figure:
    """Return a figure: a panel per metric, a curve per setting, one legend below."""
    panels = picture["panels"]
    figure = Figure(figsize=(3.6 * len(panels) + (2.6 if len(panels) == 1 else 0), 3.9))
    figure.set_layout_engine("constrained")
    figure.patch.set_alpha(0)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.patch.set_alpha(0)
        draw_panel(axes, panel, picture["x"])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    first = [curve["name"] for curve in panels[0]["curves"]]
    labels = [*first, *(label for label in labels if label not in first)]
    figure.legend(
        [named[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=picture["columns"],
        frameon=False,
    )
    return figure


def draw_panel(axes: Axes, panel: Mapping[str, Any], x: Mapping[str, Any]) -> None:
    """Draw one metric: curves with intervals as bars, and references as dashed lines."""
    for number, curve in enumerate(panel["curves"]):
        look = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 5}
        if "interval" in curve:
            errors = errors_of(curve)
            axes.errorbar(curve["x"], curve["y"], errors, label=curve["name"], capsize=3, **look)
        else:
            axes.plot(curve["x"], curve["y"], label=curve["name"], **look)
    for line in panel.get("lines", ()):
        axes.axhline(
            line["y"], color=INK, linestyle=line["dash"], linewidth=1.2, label=line["name"]
        )
    axes.set(title=panel["title"], xlabel=x["label"], xscale=x["scale"], yscale=panel["scale"])
    axes.set_xticks(x["ticks"], [f"{tick:,}" for tick in x["ticks"]])
    axes.xaxis.set_minor_locator(NullLocator())
    if "ticks" in panel:
        axes.set_yticks(panel["ticks"])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(color=GRID, linewidth=0.6)


def errors_of(curve: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return how far intervals reach below and above; nowhere where none was measured."""
    ends = [pair or (y, y) for pair, y in zip(curve["interval"], curve["y"], strict=True)]
    below = [y - low for (low, _), y in zip(ends, curve["y"], strict=True)]
    return below, [high - y for (_, high), y in zip(ends, curve["y"], strict=True)]


def main() -> None:
    for name, picture in json.loads(FIGURES.read_text(encoding="utf-8")).items():
        with rc_context(STYLE):
            path = DOCS / f"{name}.svg"
            draw(picture).savefig(path, metadata={"Date": None}, transparent=True)
            print(f"wrote {path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

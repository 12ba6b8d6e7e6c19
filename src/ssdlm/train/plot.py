"""`ssdlm plot`: a run's loss over steps, and its last profile over noise levels.  log -> [plot]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssdlm.storage.files import write_file
from ssdlm.train.log import LOG, Record, read_log

LINES = ("loss", "block", "next_token")
FIGURES = {"bound": "validation bound", "next_token": "validation next token"}


def plot(out: str | Path, target: str | Path | None = None) -> Path:
    """Draw OUT/log.jsonl as a PNG, OUT/plot.png unless `target` is given; return its path."""
    from matplotlib.figure import Figure

    records = read_log(Path(out) / LOG)
    if not records:
        raise ValueError(f"{Path(out) / LOG} has no lines yet; wait for the first logged step")
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    over_steps, over_levels = figure.subplots(1, 2)
    draw_losses(over_steps, records)
    draw_profile(over_levels, records)
    path = Path(target) if target is not None else Path(out) / "plot.png"
    write_file(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))
    return path


def draw_losses(axes: Any, records: list[Record]) -> None:
    """Draw each loss over steps, validations as dots."""
    for name in LINES:
        points = [(r["step"], r[name]) for r in records if name in r]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1)
    validated = [(r["step"], r["validation"]) for r in records if "validation" in r]
    for name, label in FIGURES.items():
        points = [(step, figures[name]) for step, figures in validated if name in figures]
        if points:
            axes.plot(*zip(*points, strict=True), "o", label=label, markersize=4)
    axes.set(xlabel="step", ylabel="nats per token", title="loss")
    if axes.lines:
        axes.legend()


def draw_profile(axes: Any, records: list[Record]) -> None:
    """Draw the last validation's loss over noise levels, or say that there is none."""
    profiles = [r["validation"].get("profile") for r in records if "validation" in r]
    axes.set(xlabel="t/T", ylabel="nats per token", title="profile on the hold-out", xlim=(0, 1))
    if profiles and profiles[-1]:
        axes.plot(*zip(*profiles[-1], strict=True), "o-", markersize=3)
    else:
        axes.text(0.5, 0.5, "no validation yet", ha="center", transform=axes.transAxes)

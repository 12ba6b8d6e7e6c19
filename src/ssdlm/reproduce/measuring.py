"""The stage `evaluate`: a cell's report, written by the library's own evaluation.

making -> [measuring] -> OUT/cells/NAME/report.json, measured.json -> page
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ssdlm.evaluate.judge import Judge, load_judge
from ssdlm.evaluate.run import evaluate
from ssdlm.files import sha256, write_json
from ssdlm.progress import bar
from ssdlm.reproduce.cell import Cell, Gold, Place
from ssdlm.reproduce.making import gold_lines
from ssdlm.reproduce.order import Order, read


def measure(order: Order, cells: Sequence[Cell]) -> None:
    """Write the reports of all cells that have generations and no report of them."""
    judge = cache(lambda name: load_judge(name, device_of(order)))
    with bar("evaluate", len(cells), is_shown=order.is_shown) as show:
        for number, cell in enumerate(cells):

            def observe(what: str, done: int, total: int) -> None:
                show(number, f"{cell.name}: {what} {done}/{total}")  # noqa: B023

            if order.place(cell).generations.exists():
                measure_cell(order, cell, judge, observe)
            show(number + 1, cell.name)


def measure_cell(order: Order, cell: Cell, judge: Any, observe: Any) -> None:
    """Write one cell's report, unless it is there and of these generations and settings."""
    place = order.place(cell)
    settings = inputs(order, cell, place)
    if place.report.exists() and read(place.measured) == settings:
        return
    evaluate(
        place.generations,
        reference=gold_lines(cell) if settings["reference"] else None,
        judge=judge_of(order, cell, judge),
        device=device_of(order),
        out=place.report,
        num_resamples=order.scale.resamples,
        observe=observe,
        **cell.measures,
    )
    write_json(place.measured, settings)


def inputs(order: Order, cell: Cell, place: Place) -> dict[str, Any]:
    """Return all that decides a report."""
    has_reference = cell.has_reference and not isinstance(cell.author, Gold)
    return {
        "generations": sha256(place.generations),
        "reference": sha256(Path(cell.prompts)) if has_reference else None,
        "judge": cell.judge or order.scale.judge,
        "resamples": order.scale.resamples,
        "measures": cell.plain_measures,
    }


def judge_of(order: Order, cell: Cell, judge: Any) -> Judge | str:
    """Return the judge, loaded once for all cells; its name where nothing asks for it."""
    name = cell.judge or order.scale.judge
    metrics = cell.measures.get("metrics")
    is_needed = metrics is None or "ppl" in metrics or "mauve" in metrics
    return judge(name) if is_needed else name


def device_of(order: Order) -> str | None:
    """Return where judges run; None lets them choose."""
    return None if order.device == "auto" else order.device

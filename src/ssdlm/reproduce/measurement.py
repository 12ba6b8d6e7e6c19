"""The stage `evaluate`: a cell's report, written by the library's own evaluation.

making -> [measuring] -> OUT/cells/NAME/report.json, measured.json -> page

The stage `read` before it is for a machine with a GPU: judges read, and OUT/readings has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ssdlm.evaluate.cache import Readings
from ssdlm.evaluate.judge import Judge, load_judge
from ssdlm.evaluate.run import evaluate, read_texts
from ssdlm.progress import bar
from ssdlm.reproduce.experiment import Order, read, refuse_others
from ssdlm.reproduce.generation import gold_lines
from ssdlm.reproduce.setting import Cell, Gold, Place
from ssdlm.storage.files import sha256, write_json


def measure(order: Order, cells: Sequence[Cell]) -> None:
    """Write the reports of all cells that have generations and no report of them."""
    each_cell("evaluate", measure_cell, order, cells)


def read_cells(order: Order, cells: Sequence[Cell]) -> None:
    """Let the judges read the texts of all cells that have any, and keep what they find."""
    each_cell("read", read_cell, order, cells)


def each_cell(name: str, work: Callable[..., None], order: Order, cells: Sequence[Cell]) -> None:
    """Do something with every cell that has generations, and show progress."""
    judge = cache(lambda name: load_judge(name, device_of(order)))
    with bar(name, len(cells), is_shown=order.is_shown) as show:
        for number, cell in enumerate(cells):

            def observe(what: str, done: int, total: int) -> None:
                show(number, f"{cell.name}: {what} {done}/{total}")  # noqa: B023

            if order.place(cell).generations.exists():
                refuse_others(cell, read(order.place(cell).made) or {})
                work(order, cell, judge, observe)
            show(number + 1, cell.name)


def readings_of(order: Order, *, is_growing: bool = False) -> Readings:
    """Return what judges have found in an order's texts."""
    return Readings(order.out / "readings", is_growing)


def read_cell(order: Order, cell: Cell, judge: Any, observe: Any) -> None:
    """Let the judges read one cell's texts, and the gold that it is compared with."""
    read_texts(
        order.place(cell).generations,
        readings=readings_of(order, is_growing=True),
        reference=gold_lines(cell) if has_reference(cell) else None,
        judge=judge_of(order, cell, judge),
        device=device_of(order),
        observe=observe,
        **cell.measures,
    )


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
        readings=readings_of(order),
        observe=observe,
        **cell.measures,
    )
    write_json(place.measured, settings)


def inputs(order: Order, cell: Cell, place: Place) -> dict[str, Any]:
    """Return all that decides a report."""
    return {
        "generations": sha256(place.generations),
        "reference": sha256(Path(cell.prompts)) if has_reference(cell) else None,
        "judge": cell.judge or order.scale.judge,
        "resamples": order.scale.resamples,
        "measures": cell.plain_measures,
    }


def has_reference(cell: Cell) -> bool:
    """Tell whether a cell's texts are compared with people's."""
    return cell.has_reference and not isinstance(cell.author, Gold)


def judge_of(order: Order, cell: Cell, judge: Any) -> Judge | str:
    """Return the judge, loaded once for all cells; its name where nothing asks for it."""
    name = cell.judge or order.scale.judge
    metrics = cell.measures.get("metrics")
    is_needed = metrics is None or "ppl" in metrics or "mauve" in metrics
    return judge(name) if is_needed else name


def device_of(order: Order) -> str | None:
    """Return where judges run; None lets them choose."""
    return None if order.device == "auto" else order.device

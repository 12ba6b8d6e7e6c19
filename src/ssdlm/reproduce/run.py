"""An experiment from end to end: a table by name, its cells made and measured, its page written.

scale, order -> cells -> making -> measuring -> page
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

from ssdlm.config import choose
from ssdlm.engine.prompt_files import read_prompts
from ssdlm.reproduce.experiment import Findings, Order, find, named
from ssdlm.reproduce.generation import gold_lines, make
from ssdlm.reproduce.scale import scale_of
from ssdlm.reproduce.setting import Cell

EXAMPLE = "ours=runs/mini"
DTYPES = ("float32", "bfloat16")
TABLES = ("table1", "table2", "table3", "figures")
STAGES = ("generate", "read", "evaluate", "page", "both")


def reproduce(
    name: str,
    *,
    out: str | Path,
    scale: str = "mini",
    stage: str = "both",
    models: Sequence[str] = (),
    prompts: Sequence[str] = (),
    overrides: Sequence[str] = (),
    **options: Any,
) -> list[Path]:
    """Run an experiment, or what is left of it; return the files of its page, none before them.

    `models` are ROLE=FOLDER, `prompts` are NAME=FILE, `overrides` are FIELD=VALUE of the scale.
    """
    if stage not in STAGES:
        raise ValueError(f"stage={stage!r} is unknown; choose one of {', '.join(STAGES)}")
    table, size = table_of(name), scale_of(scale, overrides)
    order = Order(
        table=name,
        scale=size,
        out=Path(out),
        models=named(size.models, "model", EXAMPLE) | roles(name, models),
        prompts=named(prompts, "prompts", "50=prompts-50.jsonl", bare="all"),
        **options,
    )
    check(order)
    if stage in ("generate", "both") and hasattr(table, "prepare"):
        table.prepare(order)
    cells = checked(table.cells(order))
    wanted = [cell for cell in cells if is_wanted(cell, order.only)]
    if cells and not wanted:
        asked = " or ".join(order.only)
        raise ValueError(f"no cell of {name} is named {asked}; there are {several(cells)}")
    if stage in ("generate", "both"):
        make(order, wanted)
        record(table, order)
    if stage == "read":
        from ssdlm.reproduce.measurement import read_cells

        read_cells(order, wanted)
    if stage in ("generate", "read"):
        return []
    if stage != "page":
        from ssdlm.reproduce.measurement import measure

        measure(order, wanted)
    from ssdlm.reproduce.page import save

    found = find(order, cells)
    page = table.page(order, found)
    page = replace(
        page, values=page.values | facts(order, found), notes=page.notes + several_judges(found)
    )
    return save(page, name, order.out)


def roles(name: str, models: Sequence[str]) -> dict[str, str]:
    """Return the models that were given, by roles that the table has."""
    given, known = named(models, "model", EXAMPLE), getattr(table_of(name), "ROLES", None)
    for role in given:
        if known is not None and role not in known:
            there = ", ".join(known)
            raise ValueError(f"{name} has no use for a model as {role!r}; there are {there}")
    return given


def check(order: Order) -> None:
    """Raise on what no cell could be made with."""
    choose("dtype", order.dtype, DTYPES)
    for path in order.prompts.values():
        if not Path(path).is_file():
            raise ValueError(f"prompts {path!r} are no file; make one with `ssdlm prompts`")


def facts(order: Order, found: Findings) -> dict[str, Any]:
    """Return what a page's JSON has of every experiment: its size, models, and all its cells."""
    kept = ("metrics", "intervals", "reference", "counts", "notes", "versions")
    cells = {
        name: {"options": finding.cell.options, "made": finding.made}
        | {key: (finding.report or {}).get(key) for key in kept}
        for name, finding in found.items()
    }
    return {"scale": asdict(order.scale), "models": dict(order.models), "cells": cells}


def several_judges(found: Findings) -> list[str]:
    """Return a warning where figures of one page are by different judges."""
    judges = found.judges()
    return [f"not one judge but several: {', '.join(judges)}"] if len(judges) > 1 else []


def table_of(name: str) -> Any:
    """Return the module of a table."""
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return import_module(f"ssdlm.reproduce.{name}")


def record(table: Any, order: Order) -> None:
    """Let a table write what is no cell's, while the models are at hand."""
    if hasattr(table, "record"):
        table.record(order)


def checked(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each once; two of one name must be one."""
    known: dict[str, Cell] = {}
    for cell in cells:
        if known.setdefault(cell.name, cell) != cell:
            raise ValueError(f"two different cells are named {cell.name}; name them apart")
    return [fitted(cell) for cell in known.values()]


def fitted(cell: Cell) -> Cell:
    """Return a cell that uses no more prompts than its file has; gold that it needs is there."""
    count = len(read_prompts(Path(cell.prompts)))
    cell = replace(cell, num_prompts=min(cell.num_prompts, count))
    if cell.has_reference:
        gold_lines(cell)
    return cell


def several(cells: Sequence[Cell], most: int = 6) -> str:
    """Return the names of some cells, from all over."""
    names = [cell.name for cell in cells[:: -(-len(cells) // most)]]
    return ", ".join(names) + (", ..." if len(names) < len(cells) else "")


def is_wanted(cell: Cell, only: Sequence[str]) -> bool:
    """Tell whether a cell is one of those asked for."""
    return not only or any(fnmatch(cell.name, pattern) for pattern in only)

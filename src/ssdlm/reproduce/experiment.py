"""What was asked for: a scale, models by role, prompts by name; and what was found.

scale, cell -> [order] -> run, tables
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Cell, Place
from ssdlm.storage.files import sha256


@dataclass(frozen=True)
class Order:
    """One run of a table."""

    table: str
    scale: Scale
    out: Path
    models: Mapping[str, str] = field(default_factory=dict)
    """Role -> folder or Hub id."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Name -> file; the name `all` stands for every name that is not there."""
    device: str = "auto"
    dtype: str = "float32"
    batch_size: int = 32
    only: tuple[str, ...] = ()
    """Patterns of cell names; nothing means all."""
    is_shown: bool = True

    def place(self, cell: Cell) -> Place:
        """Return where a cell's files are."""
        return Place(self.out / "cells" / cell.name)

    def model(self, role: str) -> str | None:
        """Return the model of a role, None where none was given."""
        return self.models.get(role)

    def prompt_file(self, name: str) -> str | None:
        """Return the prompts of a name, None where none were given."""
        return self.prompts.get(name, self.prompts.get("all"))


def named(texts: Sequence[str], what: str, example: str, bare: str = "") -> dict[str, str]:
    """Return NAME=VALUE as a mapping; `bare` is the name of a value without one."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            name, value = bare, text
        if not name or not value:
            raise ValueError(f"{what} {text!r} is not NAME=VALUE; write for example {example}")
        if name in found:
            raise ValueError(f"{what} {name} is given twice; give it once")
        found[name] = value
    return found


@dataclass(frozen=True)
class Finding:
    """What is known of a cell."""

    cell: Cell
    report: dict[str, Any] | None
    """What `evaluate` wrote; None where the cell was not measured."""
    made: dict[str, Any]
    """How its generations came about; empty where there are none."""
    generations: Path
    judge: str = ""
    """Who judged."""

    def value(self, metric: str) -> float | None:
        """Return a figure, None where it was not measured."""
        return None if self.report is None else self.report["metrics"].get(metric)

    def interval(self, metric: str) -> list[float] | None:
        """Return the ends of a figure's interval, None where it has none."""
        return None if self.report is None else self.report["intervals"].get(metric)

    def lines(self) -> list[dict[str, Any]]:
        """Return the generations, none where there are none."""
        if not self.generations.exists():
            return []
        text = self.generations.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


class Findings(dict[str, Finding]):
    """What is known of all cells, by name."""

    def value(self, cell: Cell | str, metric: str) -> float | None:
        """Return a cell's figure, None where it was not measured."""
        finding = self.get(cell if isinstance(cell, str) else cell.name)
        return None if finding is None else finding.value(metric)

    def judges(self) -> list[str]:
        """Return who judged, which need not be whom this order would ask."""
        judged = (finding.judge for finding in self.values() if finding.report is not None)
        return sorted(set(judged))

    def missing(self) -> list[str]:
        """Return the cells that have no report."""
        return [name for name, finding in self.items() if finding.report is None]


def find(order: Order, cells: Sequence[Cell]) -> Findings:
    """Return what the files of an order say of its cells."""
    found = Findings()
    for cell in cells:
        place = order.place(cell)
        made, measured = read(place.made) or {}, read(place.measured) or {}
        refuse_others(cell, made)
        report = read(place.report) if is_current(cell, place, measured) else None
        judge = measured.get("judge", "")
        found[cell.name] = Finding(cell, report, made, place.generations, judge)
    return found


def refuse_others(cell: Cell, made: Mapping[str, Any]) -> None:
    """Raise where a cell's texts were written with other options than those it is to have."""
    known = made.get("settings", {}).get("options", cell.options)
    asked = json.loads(json.dumps(cell.options))
    for key in sorted(known.keys() | asked.keys()):
        if known.get(key) != asked.get(key):
            raise ValueError(
                f"{cell.name} was written with {key}={known.get(key)!r}, not {asked.get(key)!r}; "
                "ask for that, or give another --out"
            )


def is_current(cell: Cell, place: Place, measured: Mapping[str, Any]) -> bool:
    """Tell whether a report is of these measures, and of the generations if they are there."""
    if measured.get("measures") != cell.plain_measures:
        return False
    return not place.generations.exists() or measured["generations"] == sha256(place.generations)


def read(path: Path) -> Any:
    """Return a JSON file's value, None where there is no file."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); remove it and run again") from None

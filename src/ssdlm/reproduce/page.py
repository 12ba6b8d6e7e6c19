"""What a table ends in: Markdown, JSON and plots, from reports alone.  order.Findings -> [page]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdlm.storage.files import write_file, write_json

Draw = Callable[[Any], None]
"""Draws on a matplotlib Figure."""


@dataclass(frozen=True)
class Page:
    """A finished experiment."""

    title: str
    parts: list[str]
    """Markdown: headings, paragraphs, tables."""
    values: dict[str, Any]
    """Everything that is printed, as numbers."""
    notes: list[str] = field(default_factory=list)
    plots: dict[str, Draw] = field(default_factory=dict)
    """Name -> drawing; each becomes NAME.png and stands below the tables."""

    def markdown(self) -> str:
        """Return the whole page."""
        pictures = [f"![{name}]({name}.png)" for name in self.plots]
        notes = ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join([f"# {self.title}", *self.parts, *pictures, *notes]) + "\n"


def save(page: Page, name: str, out: Path) -> list[Path]:
    """Write NAME.md, NAME.json and the plots, each whole or not at all; return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [draw(page.plots[plot], out / f"{plot}.png") for plot in page.plots]
    values = {"title": page.title, "notes": page.notes, **page.values}
    write_json(out / f"{name}.json", values)
    text = page.markdown()
    write_file(out / f"{name}.md", lambda path: path.write_text(text, encoding="utf-8"))
    return [out / f"{name}.md", out / f"{name}.json", *paths]


def draw(drawing: Draw, path: Path) -> Path:
    """Write a plot as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    drawing(figure)
    write_file(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))
    return path


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a Markdown table; the first columns, `words` of them, are text, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(heading) - words)
    lines = [heading, rule, *rows]
    return "\n".join("| " + " | ".join(map(escaped, line)) + " |" for line in lines)


def escaped(text: str) -> str:
    """Return a text that stays in its cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Return a text as it is, on one line, where Markdown means nothing."""
    shown = text.replace("\n", "\\n")
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure as shown; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 2) -> str:
    """Return a fraction as a percentage; a dash where there is none."""
    return number(None if value is None else 100 * value, digits)

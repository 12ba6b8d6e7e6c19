"""What an experiment ends in: Markdown, JSON and pictures, from reports alone.

table, plot -> [page] -> OUT/NAME.md, OUT/NAME.json, OUT/PLOT.png
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ssdlm.reproduce.plot import Plot
from ssdlm.reproduce.setting import Options
from ssdlm.storage.files import write_json, write_text


@dataclass(frozen=True)
class Page:
    """A finished experiment."""

    title: str
    parts: list[str]
    """Markdown: headings, paragraphs, tables."""
    values: Options
    """Everything that is printed, as numbers."""
    notes: list[str] = field(default_factory=list)
    plots: dict[str, Plot] = field(default_factory=dict)
    """Each becomes NAME.png and stands below the tables."""

    def markdown(self) -> str:
        """Return the whole page."""
        pictures = [f"![{name}]({name}.png)" for name in self.plots]
        notes = ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join([f"# {self.title}", *self.parts, *pictures, *notes]) + "\n"

    def save(self, name: str, out: Path) -> list[Path]:
        """Write NAME.md, NAME.json and the pictures, each whole or not at all; return the paths."""
        out.mkdir(parents=True, exist_ok=True)
        pictures = [out / f"{plot}.png" for plot in self.plots]
        for path, plot in zip(pictures, self.plots.values(), strict=True):
            plot.save(path)
        write_json(out / f"{name}.json", {"title": self.title, "notes": self.notes, **self.values})
        write_text(out / f"{name}.md", self.markdown())
        return [out / f"{name}.md", out / f"{name}.json", *pictures]

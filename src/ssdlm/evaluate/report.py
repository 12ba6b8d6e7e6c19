"""What an evaluation found, as JSON and as a table.

run -> [report]
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ssdlm.storage.files import partial_name, write_text

Interval = list[float]

PERCENT = re.compile(r"(mauve|dist|rep|self_bleu|control)([-_:]|$)")
"""Figures whose name begins so are fractions, shown in percent; the JSON keeps fractions."""


@dataclass(frozen=True)
class Report:
    """Figures of the samples and of their gold, with what is needed to compare or repeat them."""

    metrics: dict[str, float | None]
    """Fractions and numbers; None where there is nothing to measure, and a note says why."""
    intervals: dict[str, Interval]
    """Low and high end of each figure over resampled prompts."""
    reference: dict[str, float | None]
    """The same figures of the gold continuations: one sample per prompt, which raises dist-n."""
    reference_intervals: dict[str, Interval]
    counts: dict[str, int]
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self), indent=2, allow_nan=False) + "\n")

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return name, figure, interval and gold figure of each metric, as shown."""
        return [
            (
                f"{name} %" if PERCENT.match(name) else name,
                format_figure(name, value),
                " to ".join(format_figure(name, end) for end in self.intervals.get(name, ())),
                format_figure(name, self.reference[name]) if name in self.reference else "",
            )
            for name, value in self.metrics.items()
        ]


def refuse_out(path: str | os.PathLike[str], inputs: Sequence[str | os.PathLike[str]]) -> None:
    """Raise if a report cannot be written to a path, or would replace one of the inputs."""
    if not os.fspath(path):
        raise ValueError("the report has an empty path; give a file such as report.json")
    path = Path(path)
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; give a file, such as {path / 'report.json'}")
    if os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path)):
        raise ValueError(f"{path} is a link, a pipe or a device; give an ordinary file")
    for other in inputs:
        if os.path.exists(path) and os.path.exists(other) and path.samefile(other):
            raise ValueError(f"the report would replace what it measures, {other}; name a new file")
    try:
        try_writing(path)
    except OSError as error:
        reason = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror
        raise ValueError(f"{path} cannot be written ({reason}); choose another file") from error


def try_writing(path: Path) -> None:
    """Raise an OSError if a file cannot be made beside a path; leave nothing behind."""
    missing = [parent for parent in path.parents if not os.path.exists(parent)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            partial_name(path).stat()  # the name may be too long
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    finally:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()


def show(report: Report) -> None:
    """Print a report as a table: a rich one where rich is installed, a plain one elsewhere."""
    title = f"{report.counts['samples']} samples of {report.counts['prompts']} prompts"
    level = f"{100 * report.settings['level']:g} % interval"
    heading = ("metric", "samples", level, "gold")
    try:
        show_rich(title, heading, report.rows())
    except ImportError:
        show_plain(title, heading, report.rows())
    for note in report.notes:
        print(f"note: {note}")


def progress_on_stderr(what: str, done: int, total: int) -> None:
    """Keep one line of progress on a terminal; write nothing into a file."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{what} {done}/{total}", end=end, file=sys.stderr, flush=True)


def show_rich(title: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with rich."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column(heading[0])
    for name in heading[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def show_plain(title: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in plain text."""
    rows = [heading, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    print(title)
    for row in rows:
        first, *others = row
        shown = [other.rjust(width) for other, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *shown]).rstrip())


def format_figure(name: str, value: float | None) -> str:
    """Return a figure as it is shown, fractions in percent, a dash where there is none."""
    if value is None:
        return "-"
    return f"{100 * value:.2f}" if PERCENT.match(name) else f"{value:.4g}"

"""Tables of figures, the paper's rows beside ours: columns know how they are printed.

experiment.Results, published -> [table] -> page
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from ssdlm.reproduce.experiment import Result, Results
from ssdlm.reproduce.setting import Gold, Options

HEADINGS = {
    "mauve": "MAUVE", "ppl_micro": "PPL", "ppl_macro": "PPL", "ppl_ratio": "PPL / lambda 0",
    "delta_log_ppl": "abs. delta log PPL", "zipf": "Zipf", "rep": "Rep",
    "dist-1": "Dist-1", "dist-2": "Dist-2", "dist-3": "Dist-3",
    "control_external": "C-Ext.", "control_internal": "(Int.)",
    "control_second": "second (Int.)", "control_second_verbs": "second, by its verbs",
    "control_second_external": "second, C-Ext.",
}  # fmt: skip
OF_GOLD = {"mauve": 1.0, "delta_log_ppl": 0.0}
"""What human text is by definition, being what the others are compared with."""


def is_percent(metric: str) -> bool:
    """Tell whether a figure is printed in percent; in reports all are fractions."""
    return metric.startswith(("mauve", "dist-", "control_")) or metric == "rep"


@dataclass(frozen=True)
class Row:
    """One row: figures by name, and what is known besides."""

    label: str
    values: Mapping[str, float | None]
    spread: Mapping[str, float] = field(default_factory=dict)
    """What stands after a plus-minus: the standard deviation over seeds."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Ends of a figure's interval over prompts; pictures show it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Costs, and the options that pictures and lists go by."""

    def json(self) -> Options:
        """Return the row for a page's JSON."""
        figures = {"values": self.values, "spread": self.spread, "intervals": self.intervals}
        return {"label": self.label, **self.facts, **figures}


@dataclass(frozen=True)
class Column:
    """One column: which figure, its heading, and how it is printed."""

    name: str
    heading: str
    digits: int = 2
    unit: float = 1.0
    """What a figure is multiplied by: 100 for percent."""
    suffix: str = ""
    unknown: str = "-"
    """Printed where there is no figure."""

    def shown(self, row: Row) -> str:
        """Return the figure of a row as it is printed."""
        value = row.values.get(self.name, row.facts.get(self.name))
        if value is None:
            return self.unknown
        spread = row.spread.get(self.name)
        plus = "" if spread is None else f" +- {self.unit * spread:.{self.digits}f}"
        return f"{self.unit * value:.{self.digits}f}{self.suffix}{plus}"


COSTS = (
    Column("tokens_seen", "tokens seen", 0, 1e-6, "M", unknown=""),
    Column("training_s", "training s", 0, unknown=""),
    Column("writing_s", "writing s", 0, unknown=""),
)


def columns(names: Iterable[str], digits: int = 2) -> list[Column]:
    """Return columns under the paper's headings; `METRIC:PART` is a metric of one label."""
    found = []
    for name in names:
        metric, _, part = name.partition(":")
        shown_digits = 2 if metric == "ppl_ratio" else digits
        unit = 100.0 if is_percent(name) else 1.0
        found.append(Column(name, f"{HEADINGS[metric]} {part}".strip(), shown_digits, unit))
    return found


def table(
    columns: Sequence[Column], rows: Iterable[Row], published: Iterable[Row] = (), corner: str = ""
) -> str:
    """Return a Markdown table: the paper's rows where there are any, then ours."""
    heading = [corner, *(column.heading for column in columns)]
    every = [*published, *rows]
    return markdown(heading, [[row.label, *(c.shown(row) for c in columns)] for row in every])


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a Markdown table; the first columns, `words` of them, are text, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(heading) - words)
    lines = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, rule, *lines])


def code(text: str) -> str:
    """Return a text as it is, on one line, where Markdown means nothing.

    >>> code("a\\nb\\x85c")
    '`a\\\\nb\\\\x85c`'
    """
    ends = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
    escaped = {ord(one): one.encode("unicode_escape").decode() for one in ends}
    shown = text.translate(escaped)
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def rows_of(
    results: Results, home: str, names: Mapping[str, str], metrics: Sequence[str]
) -> dict[str, Row]:
    """Return a row for each setting below `home` that was measured; the seeds of one are one."""
    groups: dict[str, list[Result]] = {}
    for name, result in results.items():
        if name.startswith(f"{home}/"):
            setting = name.removeprefix(f"{home}/").partition("/seed-")[0]
            groups.setdefault(setting, []).append(result)
    rows = {}
    for setting, group in groups.items():
        role, _, sampler = setting.partition("/")
        label = ", ".join(filter(None, (names.get(role, role), sampler.replace("-", " "))))
        measured = [result for result in group if result.report is not None]
        if len(measured) < len(group):
            label += f" ({len(measured)} of {len(group)} seeds)"
        if measured:
            rows[setting] = row_of(label, measured, metrics, role=role)
    return rows


def row_of(label: str, results: Sequence[Result], metrics: Iterable[str], **facts: Any) -> Row:
    """Return the mean of some results' figures, their standard deviation, and what they cost."""
    values: dict[str, float | None] = {}
    spread: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for metric in metrics:
        known = [value for one in results if (value := one.value(metric)) is not None]
        values[metric] = average(known)
        if len(known) > 1:
            spread[metric] = stdev(known)
        if interval := average_interval([one.interval(metric) for one in results]):
            intervals[metric] = interval
    if isinstance(results[0].setting.source, Gold):
        values |= {metric: OF_GOLD[metric] for metric in values.keys() & OF_GOLD.keys()}
    training = results[0].made.get("training") or {}
    costs = {"tokens_seen": training.get("tokens"), "training_s": training.get("seconds")}
    costs["writing_s"] = average(one.made.get("seconds") for one in results)
    return Row(label, values, spread, intervals, facts | costs)


def average(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def average_interval(intervals: Sequence[Sequence[float] | None]) -> tuple[float, float] | None:
    """Return the means of both ends: no narrower than the interval of the mean itself."""
    known = [interval for interval in intervals if interval is not None]
    if not known or len(known) < len(intervals):
        return None
    return mean(low for low, _ in known), mean(high for _, high in known)

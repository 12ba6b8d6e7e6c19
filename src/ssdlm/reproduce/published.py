"""The paper's own figures, read from published.txt.  [published] -> rows that stand beside ours"""

from __future__ import annotations

from pathlib import Path

from ssdlm.reproduce.table import Row, is_percent

UNCONSTRAINED, STORIES, CONTROLLED = "unconstrained", "stories", "controlled"


def rows(table: str, length: int) -> list[Row]:
    """Return the paper's rows at one length, with the names and the units of our reports."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    (part,) = (part for part in text.split("\n# ") if part.startswith(f"{table} "))
    heading, *sections = part.strip().split("\n## ")
    found = []
    for section in sections:
        title, *lines = section.splitlines()
        source, size = title.split()
        for line in lines if size == str(length) else ():
            model, setting, figures = (words.strip() for words in line.split("|"))
            values, spread = {}, {}
            for name, figure in zip(heading.split()[1:], figures.split(), strict=True):
                unit = 100 if is_percent(name) else 1
                value, _, plus = figure.partition("+")
                if value != "-":
                    values[name] = float(value) / unit
                if plus:
                    spread[name] = float(plus) / unit
            label = f"[paper] {', '.join(filter(None, (model, setting)))}"
            found.append(Row(label, values, spread, facts={"source": source}))
    return found

"""The notebook runs from top to bottom, and is kept without its outputs.

Its cells are plain Python, so they are run here as one program: a kernel would take a dozen more
libraries and a socket, and show nothing else.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOK = json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"))


def sources(kind: str) -> list[str]:
    """The text of every cell of a kind."""
    return ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == kind]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value that a notebook shows below it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "tutorial.ipynb", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "tutorial.ipynb", "eval"), names)


def test_every_cell_runs_and_keeps_what_the_text_around_it_promises(capsys, unchecked):
    names: dict[str, Any] = {}
    shown = [run_cell(source, names) for source in sources("code")]
    moving = [one._repr_html_() for one in shown if hasattr(one, "_repr_html_")]
    assert len(moving) == 5
    assert [html.count('<div class="f ') > 15 for html in moving] == [False, True] + [False] * 3
    assert all(" title=" in html for html in moving)
    assert names["happy"].text != names["sad"].text
    assert "bridge" in names["words"].text and not re.search(r"\bthe\b", names["words"].text, re.I)
    assert re.fullmatch(r" [1-9] (May|June) 19\d\d\.", names["date"].text)
    assert names["review"].keys() == {"title", "stars"} and 1 <= names["review"]["stars"] <= 5
    assert names["filled"].text.endswith(names["suffix"])
    start, end = names["story"].split("old men")
    assert all(one.text.startswith(start) and one.text.endswith(end) for one in names["rewritten"])
    assert names["common"].perplexity < names["odd"].perplexity
    assert {"dist-1", "rep", "entropy"} <= names["report"].metrics.keys()
    printed = capsys.readouterr().out
    assert printed.count("steps left") == 3 and "entropy" in printed


def test_the_notebook_is_kept_without_outputs_and_its_links_lead_somewhere():
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    assert max(map(len, "\n".join(sources("markdown")).splitlines())) <= 120
    links = re.findall(r"\]\(([^)]+)\)", " ".join(sources("markdown")))
    assert len(links) >= 5
    assert [link for link in links if not (DOCS / link).is_file()] == []

"""Columns, rows and Markdown."""

from pathlib import Path

import pytest

from ssdlm.reproduce.experiment import Result
from ssdlm.reproduce.setting import Diffusion, Gold, Setting
from ssdlm.reproduce.table import COSTS, Row, code, columns, is_percent, markdown, row_of, table

OURS = Diffusion("m")


def result(metrics: dict, intervals: dict, made: dict, source=OURS) -> Result:
    report = {"metrics": metrics, "intervals": intervals}
    return Result(Setting("x", source, "prompts", 1), report, made, Path("none"))


def test_a_table_keeps_every_text_in_its_cell():
    lines = markdown(["a", "b"], [["x|y", "1"], ["two\nlines", "2"]]).splitlines()
    assert lines[1] == "| --- | ---: |"
    assert lines[2] == "| x\\|y | 1 |" and lines[3] == "| two lines | 2 |"
    assert markdown(["a", "b"], [], words=2).splitlines()[1] == "| --- | --- |"
    assert code("a\nb") == "`a\\nb`" and code("a`b") == "`` a`b ``"


def test_figures_are_shown_and_their_absence_too():
    rows = [Row("ours", {"mauve": 0.5, "zipf": 1.234}, {"mauve": 0.01}), Row("none", {})]
    paper = [Row("[paper] theirs", {"mauve": 1.0, "zipf": None})]
    lines = table([*columns(["mauve", "zipf"]), COSTS[0]], rows, paper, corner="B").splitlines()
    assert lines[0] == "| B | MAUVE | Zipf | tokens seen |"
    assert lines[2] == "| [paper] theirs | 100.00 | - |  |"
    assert lines[3] == "| ours | 50.00 +- 1.00 | 1.23 |  |"
    assert lines[4] == "| none | - | - |  |"
    assert is_percent("mauve_minilm") and is_percent("rep") and not is_percent("zipf")


def test_a_row_is_the_mean_of_its_results_with_its_costs():
    costs = {"training": {"tokens": 2_000_000, "seconds": 7.0}}
    some = [
        result({"zipf": 1.0}, {"zipf": [0.8, 1.2]}, costs | {"seconds": 3.0}),
        result({"zipf": 2.0}, {"zipf": [1.0, 2.2]}, costs | {"seconds": None}),
    ]
    row = row_of("ours", some, ["zipf", "rep"])
    assert row.values == {"zipf": 1.5, "rep": None}
    assert row.spread == {"zipf": pytest.approx(0.5**0.5)}
    assert row.intervals == {"zipf": pytest.approx((0.9, 1.7))}
    assert row.facts == {"tokens_seen": 2_000_000, "training_s": 7.0, "writing_s": 3.0}
    assert [column.shown(row) for column in COSTS] == ["2M", "7", "3"]


def test_human_text_is_the_measure_of_itself():
    row = row_of(
        "gold", [result({"zipf": 1.0}, {}, {}, Gold())], ["mauve", "delta_log_ppl", "zipf"]
    )
    assert row.values == {"mauve": 1.0, "delta_log_ppl": 0.0, "zipf": 1.0}

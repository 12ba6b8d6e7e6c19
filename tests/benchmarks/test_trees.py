"""Two trees by turns: what is timed, and what is made of it."""

import json
from pathlib import Path

from benchmarks import many_texts, trees

SRC = Path(__file__).resolve().parents[2] / "src"


def test_rows_are_medians_and_the_best_of_processes():
    rows = trees.table({"a": [10.0, 30.0, 20.0]}, {"a": [40.0, 10.0, 10.0]})
    assert rows[-1] == "| a | 20 | 10 | 0.50 | 30 | 40 | 1.33 |"


def test_both_trees_write_in_processes_of_their_own(capsys):
    few = ["--rounds", "1", "--calls", "1", "--length", "2", "--only", "one, default"]
    trees.main([str(SRC), str(SRC), *few, "--device", "cpu"])
    out, told = capsys.readouterr()
    assert out.splitlines()[-1].startswith("| one, default | ")
    assert told.count(str(SRC)) == 2


def test_what_python_takes_for_each_text_is_timed_on_any_machine(capsys):
    many_texts.main(["--texts", "6", "--calls", "2"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["texts"] == 6 and list(found["ms"]) == list(many_texts.WAYS)
    assert all(one["median_ms"] >= one["least_ms"] > 0 for one in found["ms"].values())
    assert not hasattr(many_texts.DecodeBatch, "is_captured")  # all is as it was

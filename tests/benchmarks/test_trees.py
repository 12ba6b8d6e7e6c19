"""Two trees by turns: what is timed, and what is made of it."""

from pathlib import Path

from benchmarks import trees

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

"""The table people see and the file programs read."""

import json
import sys

import pytest

from ssdlm.evaluate.report import Report, progress_on_stderr, show

REPORT = Report(
    metrics={"mauve": 0.5, "ppl_micro": 31.25, "ppl_macro": None, "rep": 0.0016},
    intervals={"mauve": [0.4, 0.6], "ppl_micro": [30.0, 32.5]},
    reference={"ppl_micro": 17.75},
    reference_intervals={},
    counts={"prompts": 3, "samples": 15, "gold": 3},
    notes=["look out"],
    settings={"level": 0.95},
    versions={"python": "3"},
)


@pytest.mark.parametrize("has_rich", [True, False])
def test_the_table_shows_fractions_in_percent(capsys, monkeypatch, has_rich):
    if not has_rich:
        for name in ("rich", "rich.console", "rich.table"):
            monkeypatch.setitem(sys.modules, name, None)
    else:
        pytest.importorskip("rich")
    show(REPORT)
    shown = capsys.readouterr().out
    assert "15 samples of 3 prompts" in shown
    assert "50.00" in shown and "40.00 to 60.00" in shown
    assert "31.25" in shown and "30 to 32.5" in shown and "17.75" in shown
    assert "0.16" in shown
    assert "note: look out" in shown


def test_rows_show_what_is_missing_as_a_dash_or_nothing():
    rows = {row[0]: row[1:] for row in REPORT.rows()}
    assert rows["ppl_macro"] == ("-", "", "")
    assert rows["mauve %"] == ("50.00", "40.00 to 60.00", "")


def test_a_saved_report_keeps_plain_fractions(tmp_path):
    REPORT.save(tmp_path / "deep" / "report.json")
    saved = json.loads((tmp_path / "deep" / "report.json").read_text(encoding="utf-8"))
    assert saved["metrics"]["rep"] == 0.0016
    assert saved["intervals"]["mauve"] == [0.4, 0.6]


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    broken = Report({"zipf": float("nan")}, {}, {}, {}, {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        broken.save(path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_progress_is_silent_into_a_file(capsys):
    progress_on_stderr("judging:", 1, 2)
    assert capsys.readouterr().err == ""


def test_progress_keeps_one_line_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress_on_stderr("judging:", 1, 2)
    progress_on_stderr("judging:", 2, 2)
    assert capsys.readouterr().err == "\rjudging: 1/2\rjudging: 2/2\n"

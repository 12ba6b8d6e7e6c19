"""The table people see and the file programs read."""

import json
import os
import sys

import pytest

from ssdlm.evaluate.report import Report, progress_on_stderr, refuse_out, show

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


def test_a_path_that_can_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "old.json").write_text("old")
    for name in ("report.json", "new/deep/report.json", "old.json"):
        refuse_out(tmp_path / name, [])
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", r"is a folder; give a file, such as .*folder/report\.json"),
        ("link", "is a link, a pipe or a device"),
        ("dangling", "is a link, a pipe or a device"),
        ("pipe", "is a link, a pipe or a device"),
        ("file/report.json", r"cannot be written \(its folder is a file\)"),
        ("file/deep/report.json", r"cannot be written \(Not a directory\)"),
        ("x" * 300, r"cannot be written \(File name too long\)"),
        ("new/file" + "x" * 245, r"cannot be written \(File name too long\)"),
        ("new/folder" + "x" * 300 + "/r.json", r"cannot be written \(File name too long\)"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message) as error:
        refuse_out(tmp_path / name, [])
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_path_is_refused():
    with pytest.raises(ValueError, match="empty path"):
        refuse_out("", [])


def test_an_input_is_not_replaced(tmp_path):
    (tmp_path / "gold.jsonl").write_text("gold")
    (tmp_path / "same.jsonl").hardlink_to(tmp_path / "gold.jsonl")
    for name in ("gold.jsonl", "../" + tmp_path.name + "/gold.jsonl", "same.jsonl"):
        with pytest.raises(ValueError, match=r"would replace what it measures, .*gold\.jsonl"):
            refuse_out(tmp_path / name, [tmp_path / "nowhere", tmp_path / "gold.jsonl"])


def test_progress_is_silent_into_a_file(capsys):
    progress_on_stderr("judging:", 1, 2)
    assert capsys.readouterr().err == ""


def test_progress_keeps_one_line_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress_on_stderr("judging:", 1, 2)
    progress_on_stderr("judging:", 2, 2)
    assert capsys.readouterr().err == "\rjudging: 1/2\rjudging: 2/2\n"

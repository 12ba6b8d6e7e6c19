"""What is shown while long work is done."""

import sys

import pytest

from ssdlm import progress


def test_nothing_is_shown_unless_asked(capsys):
    with progress.bar("read", 100, is_shown=False) as show:
        show(50, "half")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_away_from_a_terminal_there_is_a_line_now_and_then_and_one_at_the_end(capsys, monkeypatch):
    with progress.bar("read", 2000) as show:
        show(10, "early")
        show(2000, "1,234 tokens")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "read 2,000/2,000  1,234 tokens  0 s left\n"
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.bar("read", 0) as show:
        show(7, "no end known")
    assert capsys.readouterr().err == "read 7  no end known\n"


def test_no_time_left_is_shown_before_anything_is_done(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.bar("read", 20, done=5) as show:
        show(5, "first file")
        show(6, "second file")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "read 5/20  first file"
    assert second.endswith("second file  0 s left")


def test_a_total_that_changes_is_the_one_that_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.bar("step", 20_000) as show:
        show(1, "begun", 20_000)
        show(2, "timed", 12)
        show(3, "as before")
    ends = [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()]
    assert ends == ["step 1/20,000", "step 2/12", "step 3/12"]


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.bar("read", 100, done=10) as show:
        show(100, "1,234 tokens")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "100%" in captured.err
    assert "1,234 tokens" in captured.err


def test_a_terminal_without_rich_gets_lines(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with progress.bar("read", 3) as show:
        show(3, "done")
    assert capsys.readouterr().err == "read 3/3  done  0 s left\n"

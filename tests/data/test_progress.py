"""What is said while a long input is read."""

import builtins

from ssdlm.data import progress


def test_nothing_is_said_unless_asked(capsys):
    with progress.shown(100, is_shown=False) as report:
        report(50, 1, 2)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_the_bar_goes_to_standard_error(capsys):
    with progress.shown(100, is_shown=True) as report:
        report(100, 1234, 56789)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "100%" in captured.err and "1,234 documents, 56,789 tokens" in captured.err


def test_without_rich_plain_lines_do(capsys, monkeypatch):
    real = builtins.__import__

    def without_rich(name, *args, **kwargs):
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    with progress.shown(100, is_shown=True) as report:
        report(10, 1, 2)
    assert capsys.readouterr().err == ""  # too early for a line

    report = progress.plain(200, every_s=0.0)
    report(50, 1000, 20000)
    assert capsys.readouterr().err == " 25%, 1,000 documents, 20,000 tokens\n"
    progress.plain(0, every_s=0.0)(50, 1000, 20000)
    assert capsys.readouterr().err == "1,000 documents, 20,000 tokens\n"

"""Markdown, JSON and plots."""

import json

from ssdlm.reproduce.page import Page, code, number, percent, save, table


def test_a_table_keeps_every_text_in_its_cell():
    lines = table(["a", "b"], [["x|y", "1"], ["two\nlines", "2"]]).splitlines()
    assert lines[1] == "| --- | ---: |"
    assert lines[2] == "| x\\|y | 1 |" and lines[3] == "| two lines | 2 |"
    assert table(["a", "b"], [], words=2).splitlines()[1] == "| --- | --- |"


def test_figures_are_shown_and_their_absence_too():
    assert (number(1.234), number(None), percent(0.5), percent(None)) == ("1.23", "-", "50.00", "-")
    assert code("a\nb") == "`a\\nb`" and code("a`b") == "`` a`b ``"


def test_a_page_is_saved_with_its_plots(tmp_path):
    plots = {"curve": lambda figure: figure.subplots().plot([1, 2], [3, 4])}
    page = Page("Title", ["text"], {"x": [1]}, ["a note"], plots)
    paths = save(page, "table9", tmp_path / "new")
    assert [path.name for path in paths] == ["table9.md", "table9.json", "curve.png"]
    assert paths[0].read_text() == "# Title\n\ntext\n\n![curve](curve.png)\n\n- a note\n"
    assert json.loads(paths[1].read_text())["x"] == [1]
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "curve.png",
        "table9.json",
        "table9.md",
    ]

"""Markdown, JSON and plots."""

import json

from ssdlm.reproduce.page import Page
from ssdlm.reproduce.plot import Plot, Point


def test_a_page_is_saved_with_its_plots(tmp_path):
    points = {"ours": [Point(1.0, 0.3), Point(2.0, 0.4, (0.3, 0.6))]}
    plots = {"curve": Plot("top-p", {"mauve": points})}
    page = Page("Title", ["text"], {"x": [1]}, ["a note"], plots)
    paths = page.save("table9", tmp_path / "new")
    assert [path.name for path in paths] == ["table9.md", "table9.json", "curve.png"]
    assert paths[0].read_text() == "# Title\n\ntext\n\n![curve](curve.png)\n\n- a note\n"
    assert json.loads(paths[1].read_text())["x"] == [1]
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "curve.png",
        "table9.json",
        "table9.md",
    ]

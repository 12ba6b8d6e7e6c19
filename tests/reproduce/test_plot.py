"""Pictures: ticks, scales, intervals."""

import pytest

from ssdlm.reproduce.plot import FROM_ZERO, LINEAR, LOG, Plot, Point, curves, ticks
from ssdlm.reproduce.table import Row


@pytest.mark.parametrize(
    ("scale", "values", "shown"),
    [
        (LINEAR, [0.0, 2.0, 4.0, 5.0, 5.5, 6.0], [0.0, 2.0, 4.0, 5.0, 5.5, 6.0]),
        (LINEAR, [0.0, 0.5, 0.9, 0.95, 0.99], [0.0, 0.5, 0.9, 0.99]),
        (FROM_ZERO, [0.0, 100.0, 500.0, 2000.0], [0.0, 100.0, 500.0, 2000.0]),
        (LOG, [100.0, 101.0, 1000.0], [101.0, 1000.0]),
        (LINEAR, [], []),
    ],
)
def test_ticks_are_values_that_were_measured_and_lie_apart(scale, values, shown):
    assert ticks(values, scale) == shown


def test_curves_go_by_a_fact_of_the_rows_and_leave_out_what_is_unknown():
    rows = [
        Row("b", {"mauve": 0.2}, intervals={"mauve": (0.1, 0.3)}, facts={"x": 2, "curve": "one"}),
        Row("a", {"mauve": 0.1}, facts={"x": 1, "curve": "one"}),
        Row("c", {"mauve": None}, facts={"x": 1, "curve": "two"}),
    ]
    found = curves(rows, ["mauve"], "x", "curve")
    assert found == {"mauve": {"one": [Point(1.0, 0.1), Point(2.0, 0.2, (0.1, 0.3))]}}


def test_a_panel_has_percent_intervals_and_a_wide_perplexity_on_a_log_axis():
    from matplotlib.figure import Figure

    one, two = Figure().subplots(1, 2)
    plot = Plot("calls per block", {}, LOG)
    plot.draw(one, "mauve", {"ours": [Point(4.0, 0.5, (0.4, 0.7)), Point(64.0, 0.9)]})
    plot.draw(two, "ppl_micro", {"ours": [Point(4.0, 2000.0), Point(64.0, 60.0)]})
    (line,) = one.get_lines()
    assert list(line.get_ydata()) == pytest.approx([50.0, 90.0])
    (bar,) = [bar for bars in one.collections for bar in bars.get_segments()]
    assert bar[:, 1] == pytest.approx([40.0, 70.0])
    assert [label.get_text() for label in one.get_xticklabels()] == ["4", "64"]
    assert (one.get_yscale(), two.get_yscale()) == ("linear", "log")

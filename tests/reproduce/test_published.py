"""The paper's own figures."""

import pytest

from ssdlm.reproduce.published import CONTROLLED, STORIES, UNCONSTRAINED, rows
from ssdlm.reproduce.table import is_percent


def test_figures_are_fractions_under_our_names():
    best = rows(UNCONSTRAINED, 50)[4]
    assert best.facts["source"] == "tab:main_result"
    assert best.label == "[paper] SSD-LM, sampling p 0.99, T 1000"
    expected = {"mauve": 0.9789, "ppl_micro": 30.68, "delta_log_ppl": 0.54, "dist-1": 0.6899}
    expected |= {"dist-2": 0.926, "dist-3": 0.9294, "zipf": 1.01, "rep": 0.0016}
    assert best.values == pytest.approx(expected)
    assert rows(UNCONSTRAINED, 25)[1].spread["mauve"] == pytest.approx(0.0029)


@pytest.mark.parametrize(
    ("printed", "length", "count"),
    [(UNCONSTRAINED, 25, 7), (UNCONSTRAINED, 50, 7), (UNCONSTRAINED, 100, 7), (STORIES, 50, 4)]
    + [(CONTROLLED, length, 8) for length in (12, 20, 50)],
)
def test_every_table_has_all_its_rows(printed, length, count):
    found = rows(printed, length)
    assert len(found) == count
    for row in found:
        for name, value in row.values.items():
            assert value <= 1 or not is_percent(name)


def test_delta_log_ppl_follows_from_the_perplexities():
    from math import log

    for length in (25, 50, 100):
        gold, *others = rows(UNCONSTRAINED, length)
        for row in others:
            delta = abs(log(row.values["ppl_micro"]) - log(gold.values["ppl_micro"]))
            assert delta == pytest.approx(row.values["delta_log_ppl"], abs=0.02)


def test_what_the_paper_leaves_out_is_left_out():
    pplm = rows(CONTROLLED, 50)[1]
    assert pplm.label == "[paper] PPLM, customised classifier" and "dist-1" not in pplm.values
    assert pplm.values["control_internal"] == pytest.approx(0.736)

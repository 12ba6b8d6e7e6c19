"""Figures: what they draw, and what they take from other tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssdlm.reproduce import figures, table3
from ssdlm.reproduce.experiment import Finding, Findings, Order, find
from ssdlm.reproduce.page import save
from ssdlm.reproduce.scale import scale_of


@pytest.fixture
def order(toy, tmp_path) -> Order:
    prompts = {"6": toy.prompts[6], "pplm": toy.prompts[6]}
    scale = scale_of("toy", ["control_judges=outside"])
    return Order("figures", scale, tmp_path, {"ours": toy.ours}, prompts)


def test_lambda_is_drawn_from_what_table3_has_measured(order, monkeypatch):
    controlled = Findings()
    for number, cell in enumerate(table3.cells(order)):
        path = order.out / f"{number}.jsonl"
        line = {"prompt": "the city", "text": f"text {number}", "sample": 0}
        path.write_text(json.dumps(line) + "\n")
        metrics = {"ppl_macro": 10.0 + number, "control_internal": 0.5, "control_external": 0.4}
        report = {"metrics": metrics, "intervals": {}}
        controlled[cell.name] = Finding(cell, report, {}, path)
    monkeypatch.setattr(figures, "controlled_findings", lambda order: controlled)
    page = figures.page(order, find(order, figures.cells(order)))
    length = order.scale.control_lengths[0]
    assert [line["lam"] for line in page.values[f"lambda-{length}"]] == [0.0, 2.0]
    assert "`text 0`" in page.markdown()
    names = [path.name for path in save(page, "figures", order.out)]
    assert f"lambda-{length}.png" in names


def test_before_table3_there_is_no_lambda_and_no_example(order):
    page = figures.page(order, find(order, figures.cells(order)))
    assert page.plots == {} and page.values == {}
    assert any("cells are not measured yet" in note for note in page.notes)


def test_over_gives_means_and_spreads_in_order():
    points = [{"top_p": 0.9, "rep": 0.1}, {"top_p": 0.0, "rep": 0.5}, {"top_p": 0.9, "rep": 0.3}]
    means, spreads = figures.over(points, "top_p", "rep", 100)
    assert list(means) == [0.0, 0.9]
    assert means == pytest.approx({0.0: 50.0, 0.9: 20.0})
    assert spreads == pytest.approx({0.0: 0.0, 0.9: 10.0})


@pytest.mark.parametrize(("lengths", "expected"), [("6", 6), ("3,6", 6), ("6,50", 50), ("3", None)])
def test_the_main_length_is_50_or_the_longest_with_prompts(toy, lengths, expected):
    scale = scale_of("toy", [f"lengths={lengths}"])
    prompts = {"6": toy.prompts[6], "50": toy.prompts[6]}
    order = Order("figures", scale, Path("."), prompts=prompts)
    assert figures.main_length(order) == expected

"""Figures: what they draw, and what they take from other tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig
from ssdlm.reproduce import figures, table3
from ssdlm.reproduce.experiment import Experiment, Result, Results, read_results
from ssdlm.reproduce.scale import scale_of


@pytest.fixture
def experiment(toy, tmp_path) -> Experiment:
    prompts = {"6": toy.prompts[6], "pplm": toy.prompts[6]}
    scale = scale_of("toy", ["control_judges=outside"])
    return Experiment(scale, tmp_path, {"ours": toy.ours}, prompts)


def test_lambda_is_drawn_from_what_table3_has_measured(experiment, monkeypatch):
    controlled = Results()
    for number, setting in enumerate(table3.settings(experiment)):
        path = experiment.out / f"{number}.jsonl"
        line = {"prompt": "the city", "text": f"text {number}", "sample": 0}
        path.write_text(json.dumps(line) + "\n")
        metrics = {"ppl_macro": 10.0 + number, "control_internal": 0.5, "control_external": 0.4}
        report = {"metrics": metrics, "intervals": {}}
        controlled[setting.name] = Result(setting, report, {}, path)
    monkeypatch.setattr(figures, "controlled_results", lambda experiment: controlled)
    page = figures.page(experiment, read_results(experiment, figures.settings(experiment)))
    length = experiment.scale.control_lengths[0]
    assert [line["lam"] for line in page.values[f"lambda-{length}"]] == [0.0, 2.0]
    assert "`text 0`" in page.markdown()
    names = [path.name for path in page.save("figures", experiment.out)]
    assert f"lambda-{length}.png" in names


def test_before_table3_there_is_no_lambda_and_no_example(experiment):
    page = figures.page(experiment, read_results(experiment, figures.settings(experiment)))
    assert page.plots == {} and page.values == {}
    assert any("settings are not measured yet" in note for note in page.notes)


def test_over_gives_means_and_spreads_in_order():
    points = [{"top_p": 0.9, "rep": 0.1}, {"top_p": 0.0, "rep": 0.5}, {"top_p": 0.9, "rep": 0.3}]
    first, second = figures.over(points, "top_p", "rep")
    assert (first.x, second.x) == (0.0, 0.9)
    assert (first.y, second.y) == pytest.approx((0.5, 0.2))
    assert first.interval == pytest.approx((0.5, 0.5))
    assert second.interval == pytest.approx((0.1, 0.3))


@pytest.mark.parametrize(("lengths", "expected"), [("6", 6), ("3,6", 6), ("6,50", 50), ("3", None)])
def test_the_main_length_is_50_or_the_longest_with_prompts(toy, lengths, expected):
    scale = scale_of("toy", [f"lengths={lengths}"])
    prompts = {"6": toy.prompts[6], "50": toy.prompts[6]}
    experiment = Experiment(scale, Path("."), prompts=prompts)
    assert figures.main_length(experiment) == expected


def test_the_state_of_a_sliding_window_is_shown_behind_what_is_decided():
    own = DecodeConfig(length=8, B=(4,), T=4, grid="sliding", width=3.0, returns="w_0")
    model = SSDLM(tiny.block(), tiny.tokenizer(), own)
    *steps, last = [d.step for d in model.stream("the", states=True) if d.block == 0]
    for number, step in enumerate(steps, 1):
        noisy = step.w_t[0].argmax(-1).tolist()
        assert figures.state_ids(step) == step.tokens[0, :number].tolist() + noisy
    assert figures.state_ids(last) == last.tokens[0].tolist()
    for draft in model.stream("the", grid="uniform", states=True):
        assert figures.state_ids(draft.step) == draft.step.w_t[0].argmax(-1).tolist()

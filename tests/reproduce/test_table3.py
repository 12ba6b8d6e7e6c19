"""Controlled generation from end to end, at toy size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests import tiny

from ssdlm import cli
from ssdlm.reproduce import table3
from ssdlm.reproduce.experiment import Finding, Findings, Order, find
from ssdlm.reproduce.scale import scale_of


@pytest.fixture(scope="module")
def arguments(toy, tmp_path_factory) -> list[str]:
    """A guide and a judge of the tiny vocabulary, and two prompts."""
    root = tmp_path_factory.mktemp("control")
    guide, judge = (tiny.save_classifier(root / name, seed=n) for n, name in enumerate("gj"))
    for folder in (guide, judge):
        tiny.tokenizer().save(folder)
    settings = json.loads((judge / "config.json").read_text())
    settings["guide_accuracy"] = {"yelp": 0.95}
    (judge / "config.json").write_text(json.dumps(settings))
    labels = list(settings["id2label"].values())[:2]
    prompts = root / "pplm.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("the book", "the city")))
    sets = [f"judge={toy.judge}", f"guide={guide}", f"control_judges={judge}"]
    sets += [f"labels={labels[0]},{labels[1]}", f"second={guide}={labels[1]}:3"]
    models = [f"--model=ours={toy.ours}", f"--model=paper={toy.paper}"]
    return ["--scale", "toy", "--set", *sets, f"--prompts=pplm={prompts}", *models]


@pytest.fixture(scope="module")
def done(arguments, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("table3")
    for stage in ("generate", "evaluate"):
        assert (
            cli.main(["reproduce", "table3", *arguments, "--out", str(out), "--stage", stage]) == 0
        )
    return out


def test_every_setting_has_a_row_whose_figures_are_in_its_reports(done):
    values = json.loads((done / "table3.json").read_text())
    rows = {row["label"]: row for row in values["tables"]["4"]}
    assert list(rows) == [
        "the paper's recipe, sampling p0.9 T2, lambda 0",
        "the paper's recipe, sampling p0.9 T2, lambda 10",
        "the paper's recipe, multi_hot p0.9 T2, lambda 0",
        "the paper's recipe, multi_hot p0.9 T2, lambda 10",
        "ours, own p0.9, lambda 0",
        "ours, own p0.9, lambda 2",
    ]
    reports = [
        json.loads(path.read_text())["metrics"]
        for path in sorted((done / "cells/control/4/ours/own-p0.9/lam2").glob("*/report.json"))
        if "+" not in path.parent.name
    ]
    assert len(reports) == 2
    found = rows["ours, own p0.9, lambda 2"]["values"]
    for metric in ("control_external", "control_internal", "ppl_macro", "dist-2"):
        assert found[metric] == pytest.approx(sum(report[metric] for report in reports) / 2)
    plain = rows["ours, own p0.9, lambda 0"]["values"]
    assert plain["ppl_ratio"] == 1.0
    assert found["ppl_ratio"] == pytest.approx(found["ppl_macro"] / plain["ppl_macro"])


def test_without_control_one_set_of_texts_answers_for_every_label(done):
    values = json.loads((done / "table3.json").read_text())
    plain = next(row for row in values["tables"]["4"] if row["label"] == "ours, own p0.9, lambda 0")
    assert len(plain["by_label"]) == 2
    assert None not in plain["by_label"].values()
    made = json.loads((done / "cells/control/4/ours/own-p0.9/lam0/made.json").read_text())
    assert "control" not in made["settings"]["options"]
    assert made["texts"] == 4


def test_the_page_has_the_judges_accuracy_pairs_and_a_plot(done):
    text = (done / "table3.md").read_text()
    assert "itself right on 95.0 % of yelp" in text
    assert "## Two controls at once" in text
    assert "![lambda-4](lambda-4.png)" in text
    assert (done / "lambda-4.png").stat().st_size > 1000
    (pair,) = json.loads((done / "table3.json").read_text())["tables"]["pairs"]
    assert pair["lam"] == 2.0
    assert None not in (pair["external"], pair["internal"], pair["ppl_ratio"])


def order(tmp_path, **changes) -> Order:
    (tmp_path / "pplm.jsonl").write_text('{"prompt": "the book"}\n')
    scale = replace(scale_of("mini"), **changes)
    prompts = {"pplm": str(tmp_path / "pplm.jsonl")}
    return Order("table3", scale, tmp_path, {"ours": "o", "paper": "p"}, prompts)


def test_the_papers_grid_has_its_lengths_blocks_and_lambdas(tmp_path):
    asked = order(tmp_path, control_T=(1000,))
    cells = [cell for cell in table3.cells(asked) if "/paper/" in cell.name]
    blocks = {cell.options["length"]: cell.options["B"] for cell in cells}
    assert blocks == {12: 12, 20: 20, 50: 25}
    steered = [cell for cell in cells if cell.options.get("control")]
    assert len(steered) == 3 * 2 * 3 * 3 * 2  # lengths, projections, top-p, lambdas, labels
    assert len(cells) - len(steered) == 3 * 2 * 3
    assert steered[0].options["control"] == ["sentiment=positive:100"]
    assert all(cell.num_samples == 20 for cell in cells)


def test_a_tense_is_also_told_by_its_verbs(tmp_path):
    cells = [cell for cell in table3.cells(order(tmp_path)) if cell.name.endswith("+past")]
    path = tmp_path / "texts.jsonl"
    texts = (
        "It was late.",
        "It is early, and was.",
        "He had it, she has it, they did.",
        "No verb.",
    )
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert table3.counted([Finding(cells[0], None, {}, path)]) == 1.0
    present = replace(cells[0], measures=cells[0].measures | {"control_guides": ("tense=present",)})
    assert table3.counted([Finding(present, None, {}, path)]) == 0.0


def test_what_is_not_there_is_told(tmp_path):
    asked = order(tmp_path)
    found = find(asked, table3.cells(asked))
    page = table3.page(asked, found)
    told = "\n".join(page.notes)
    assert "no outside judge was given" in told
    assert "cells are not measured yet" in told
    assert isinstance(found, Findings)
    with pytest.raises(ValueError, match="there are no prompts; give --prompts pplm=FILE"):
        table3.cells(replace(asked, prompts={}))

"""Controlled generation from end to end, at toy size."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from tests import tiny
from transformers import AutoConfig, AutoModelForSequenceClassification

from ssdlm import classifier_guide, cli
from ssdlm.guidance import load_guide, load_text_classifier
from ssdlm.reproduce import table3
from ssdlm.reproduce.experiment import Experiment, Result, Results, read_results
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
    other = tiny.save_classifier(root / "other", seed=5)
    tiny.tokenizer().save(other)
    sets += [f"labels={labels[0]},{labels[1]}", f"second={guide}={labels[1]}:3"]
    sets += [f"second_judges={other}"]
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
        "the paper's recipe, sampling p0.9 T2, lambda 100",
        "the paper's recipe, multi_hot p0.9 T2, lambda 0",
        "the paper's recipe, multi_hot p0.9 T2, lambda 100",
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
    by_label = [v for k, v in plain["values"].items() if k.startswith("control_external:")]
    assert len(by_label) == 2
    assert None not in by_label
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
    for metric in ("control_external", "control_internal", "control_second", "ppl_ratio"):
        assert pair["values"][metric] is not None
    folder = done / "cells/control/4/ours/own-p0.9/lam2"
    reports = [json.loads(path.read_text())["metrics"] for path in folder.glob("*+*/report.json")]
    shares = {"j=": [], "other=": []}
    for (end, own), report in product(shares.items(), reports):
        own += [value for key, value in report.items() if f"/{end}" in key]
    assert len(shares["j="]) == len(shares["other="]) == 2
    assert pair["values"]["control_external"] == pytest.approx(sum(shares["j="]) / 2)
    assert pair["values"]["control_second_external"] == pytest.approx(sum(shares["other="]) / 2)


def test_two_judges_have_a_column_each(arguments, done, tmp_path):
    (judge,) = [word for word in arguments if word.startswith("control_judges=")]
    first = judge.partition("=")[2]
    second = Path(first).with_name("other")
    scale = replace(scale_of("toy"), control_judges=(first, str(second)))
    assert table3.parts_of(scale) == {"j": first, "other": str(second)}
    assert table3.parts_of(replace(scale, control_judges=(first,))) == {}


def save_as_on_the_hub(folder: Path, num_labels: int, seed: int) -> None:
    """Write a tiny classifier whose labels have the names that transformers gives: LABEL_0, ..."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "roberta",
        vocab_size=tiny.V,
        max_position_embeddings=66,
        num_labels=num_labels,
        **tiny.SIZES,
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tiny.tokenizer().save(folder)
    named = json.loads((folder / "config.json").read_text()).get("id2label")
    assert named in (None, {str(n): f"LABEL_{n}" for n in range(num_labels)})


def test_the_papers_own_classifiers_are_known_by_what_their_labels_mean(toy, tmp_path, monkeypatch):
    scale = scale_of("paper")
    (judge,) = scale.control_judges
    for seed, (name, num_labels) in enumerate({scale.guide: 3, judge: 2}.items()):
        save_as_on_the_hub(tmp_path / name, num_labels, seed)
    monkeypatch.chdir(tmp_path)  # a folder of a Hub id's name goes before the Hub
    (tmp_path / "pplm.jsonl").write_text('{"prompt": "the book"}\n{"prompt": "the city"}\n')
    sets = [f"judge={toy.judge}", f"control_ppl={toy.judge}", "control_lengths=4", "B=4"]
    sets += ["control_samples=2", "control_T=2", "control_top_p=0.9", "projections=sampling"]
    sets += ["lams=0,2000", "resamples=20", "models="]
    words = ["reproduce", "table3", "--scale", "paper", "--set", *sets, "--out", "out"]
    words += [f"--model=paper={toy.paper}", "--prompts=pplm=pplm.jsonl"]
    assert cli.main(words) == 0
    rows = json.loads((tmp_path / "out/table3.json").read_text())["tables"]["4"]
    assert [row["lam"] for row in rows] == [0.0, 2000.0, 0.0, 2000.0]
    assert [" block" in row["label"] for row in rows] == [False, False, True, True]
    for row in rows:
        assert None not in [row["values"][f"control_{kind}"] for kind in ("internal", "external")]
    # The guide was asked for the log-probability of LABEL_2, and LABEL_1 is out of its choice.
    assert classifier_guide(scale.guide, "positive").label == 2
    lines = next(Path("out").rglob("lam0/generations.jsonl")).read_text().splitlines()
    texts = list(map(json.loads, lines))
    guide = load_text_classifier(scale.guide)
    log_probs = guide.log_probs([text["prompt"] + text["text"] for text in texts])
    expected = (log_probs[:, 2] > log_probs[:, 0]).float().mean().item()
    report = json.loads(next(Path("out").rglob("lam0/report.json")).read_text())["metrics"]
    assert report[f"control_internal:{scale.guide}=positive"] == pytest.approx(expected)


def test_labels_of_any_other_classifier_are_named_in_brackets(tmp_path, monkeypatch):
    save_as_on_the_hub(tmp_path / "org/name", 3, seed=4)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"give a number, or name them: org/name\[A\+B\+C\]"):
        load_guide("org/name=positive")
    named = "org/name[positive+neutral+negative]"
    assert load_guide(f"{named}=positive:3").label == 0
    assert load_text_classifier(named).labels == ["positive", "neutral", "negative"]
    with pytest.raises(ValueError, match="names 2 labels, and it has 3; name each"):
        load_guide("org/name[positive+negative]=positive")


def experiment(tmp_path, **changes) -> Experiment:
    (tmp_path / "pplm.jsonl").write_text('{"prompt": "the book"}\n')
    scale = replace(scale_of("mini"), **changes)
    prompts = {"pplm": str(tmp_path / "pplm.jsonl")}
    return Experiment(scale, tmp_path, {"ours": "o", "paper": "p"}, prompts)


def test_the_papers_grid_has_its_lengths_blocks_and_lambdas(tmp_path):
    asked = experiment(tmp_path, control_T=(1000,))
    settings = [one for one in table3.settings(asked) if "/paper/" in one.name]
    blocks = {one.options["length"]: one.options["B"] for one in settings}
    assert blocks == {12: 12, 20: 20, 50: 25}
    steered = [one for one in settings if one.options.get("control")]
    assert len(steered) == 3 * 2 * 3 * 3 * 2  # lengths, projections, top-p, lambdas, labels
    assert len(settings) - len(steered) == 3 * 2 * 3
    assert steered[0].options["control"] == ["sentiment=positive:100"]
    assert all(one.num_samples == 20 for one in settings)


@pytest.mark.parametrize("role", ["paper", "ours"])
def test_a_guide_may_read_the_block_alone_as_where_the_papers_figures_come_from(tmp_path, role):
    asked = experiment(tmp_path, control_sees=("context", "block"), scorer_particles=())
    whole, block = (
        [
            one
            for one in table3.settings(asked)
            if f"/{role}/" in one.name and has == ("-block/" in one.name)
        ]
        for has in (False, True)
    )
    assert len(whole) == len(block) > 10
    assert {one.options.get("sees") for one in whole} == {None}
    steered = [one for one in block if "control" in one.options]
    assert 0 < len(steered) < len(block)
    for one in block:  # what is not steered has the same path, and nothing that reads the block
        is_steered = "control" in one.options
        assert one.options.get("sees") == ("block" if is_steered else None)
        assert one.options.get("special_tokens") == (False if is_steered else None)
        assert one.options["grid"] == ("uniform" if role == "paper" else "staggered")
    assert scale_of("paper").control_sees == ("context", "block")
    with pytest.raises(ValueError, match="control_sees='blok' is unknown; choose one of context"):
        scale_of("mini", ["control_sees=blok"])


def test_particles_go_with_our_model_beside_the_gradient(tmp_path):
    asked = experiment(tmp_path)
    every = {one.name: one.options for one in table3.settings(asked)}
    with_them = {name: options for name, options in every.items() if "-n8/" in name}
    assert {name.split("/")[4] for name in with_them} == {"lam0", "lam3", "lam4"}
    for name, options in with_them.items():
        assert name.startswith("control/") and "/ours/" in name
        if name.endswith("/lam0"):
            assert options == every[name.replace("-n8", "")]
            continue
        assert (options["particles"], "particle_step" in options) == (8, False)
        assert options["particle_weight"] == [8.0, 4.0][: len(options["control"])]
        lam, label = name.split("/")[4:]
        first, _, second = label.partition("+")
        expected = [f"sentiment={first}:{lam[3:]}", *([f"tense={second}:3"] if second else [])]
        assert options["control"] == expected


def test_scores_steer_our_model_alone_at_the_largest_length(tmp_path):
    asked = experiment(tmp_path)
    every = {one.name: one.options for one in table3.settings(asked) if "scored" in one.name}
    own = {name for name in every if name.startswith("control/50/ours/own-p0.9-n16-scored/")}
    assert {name.rpartition("scored/")[2] for name in own} == {
        "lam0", "lam8/positive", "lam8/negative"
    }  # fmt: skip
    assert len(every) == 3 * len(own)  # for each top-p, and no second control
    options = every["control/50/ours/own-p0.9-n16-scored/lam8/positive"]
    assert options["control"] == ["sentiment=positive:0"]  # no gradient
    assert options["particle_weight"] == [8.0]
    assert (options["particles"], options["particle_step"]) == (16, 3)
    changed = replace(asked, scale=replace(asked.scale, scorer="my/folder"))
    (other,) = [
        one
        for one in table3.settings(changed)
        if one.name == "control/50/ours/own-p0.9-n16-scored/lam8/positive"
    ]
    assert other.options["control"] == ["my/folder=positive:0"]
    assert other.measures["control_guides"] == ("sentiment=positive",)


def test_rows_of_particles_are_in_the_tables_and_not_over_lambda(arguments, tmp_path):
    words = ["reproduce", "table3", *arguments, "--out", str(tmp_path)]
    at = words.index("--set") + 1
    words[at:at] = [
        "own_particles=2", "scorer_particles=2", "particle_lams=0,3", "projections=sampling",
        f"particle_second={arguments[arguments.index('--set') + 5].partition('=')[2]}",
    ]  # fmt: skip
    assert cli.main(words) == 0
    tables = json.loads((tmp_path / "table3.json").read_text())["tables"]
    rows = {row["label"]: row for row in tables["4"] if row["label"].startswith("ours")}
    assert list(rows) == [
        "ours, own p0.9 n2, lambda 0",
        "ours, own p0.9 n2, lambda 3",
        "ours, own p0.9 n2 scored, weight 0",
        "ours, own p0.9 n2 scored, weight 8",
    ]
    assert [row.get("weight") for row in rows.values()] == [None, None, 0.0, 8.0]
    for row in rows.values():
        assert row["values"]["control_external"] is not None
    plain, scored = (rows[f"ours, own p0.9 n2 scored, weight {n}"]["values"] for n in (0, 8))
    assert scored["ppl_ratio"] == pytest.approx(scored["ppl_macro"] / plain["ppl_macro"])
    assert [pair["label"] for pair in tables["pairs"]] == ["ours, own p0.9 n2, lambda 3"]
    made = json.loads(
        next(tmp_path.glob("cells/control/4/ours/*scored/lam8/*/made.json")).read_text()
    )
    assert made["settings"]["options"]["particles"] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("particle_weights=", "particle_weights is empty; give a number"),
        ("scorer_particles=1", "scorer_particles=1 is out of range; one alone is not weighed"),
    ],
)
def test_particles_that_weigh_nothing_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        scale_of("mini", [change])


def test_a_tense_is_also_known_by_its_verbs(tmp_path):
    every = table3.settings(experiment(tmp_path))
    past = next(one for one in every if one.name.endswith("+past"))
    path = tmp_path / "texts.jsonl"
    texts = (
        "It was late.",
        "It is early, and was.",
        "He had it, she has it, they did.",
        "No verb.",
    )
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert table3.share_by_verbs([Result(past, None, {}, path)]) == 1.0
    present = replace(past, measures=past.measures | {"control_guides": ("tense=present",)})
    assert table3.share_by_verbs([Result(present, None, {}, path)]) == 0.0


def test_what_is_not_there_is_named(tmp_path):
    asked = experiment(tmp_path)
    results = read_results(asked, table3.settings(asked))
    page = table3.page(asked, results)
    notes = "\n".join(page.notes)
    assert "no outside judge was given" in notes
    assert "settings are not measured yet" in notes
    assert isinstance(results, Results)
    with pytest.raises(ValueError, match="there are no prompts; give --prompts pplm=FILE"):
        table3.settings(replace(asked, prompts={}))


def test_without_any_model_the_page_says_so(arguments, tmp_path):
    words = [word for word in arguments if not word.startswith("--model")]
    assert cli.main(["reproduce", "table3", *words, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "table3.md").read_text()
    assert "no model was given as `ours`; its rows are missing" in text
    assert "## Length 4" in text and "lambda-4.png" not in text

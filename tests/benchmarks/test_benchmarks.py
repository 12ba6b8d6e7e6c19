"""The benchmarks run at tiny size on a CPU and end in one JSON line."""

from __future__ import annotations

import importlib
import json
import lzma
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests import tiny
from tests.bpe import write_gpt2
from tests.evaluate.tiny_judge import save_judge

from ssdlm import SSDLM, DecodeConfig
from ssdlm.config import BlockConfig
from ssdlm.constraints.grammars.pattern import read_pattern
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.guidance import load_text_classifier
from ssdlm.tokenizer import load_tokenizer

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """How to import a benchmark as Python would run it: from its own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield lambda name: importlib.import_module(name)
    for name in (
        "causal",
        "runs",
        "train",
        "memory",
        "ablation",
        "grammars",
        "guides",
        "levers",
        "quality",
        "likelihood",
        "start",
        "serve",
        "hostile",
        "siege",
        "same_texts",
    ):
        sys.modules.pop(name, None)


def call(main, monkeypatch, capsys, *args: str) -> dict:
    """Run a benchmark's `main` with arguments; return its last line."""
    run(main, monkeypatch, list(args))
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("name", ["mini", "paper", "blocks"])
def test_a_case_of_the_training_benchmark_has_its_figures(name, load, monkeypatch, capsys):
    train = load("train")
    found = call(train.main, monkeypatch, capsys, "--tiny", "--seconds", "0", "--one", name)
    assert found["supervised_tokens_per_s"] > found["sequences_per_s"] > 0
    assert found["steps"] == 2
    assert found["parameters"] > 0


def test_the_memory_benchmark_says_what_was_expected_of_each_case(load, monkeypatch, capsys):
    memory = load("memory")
    found = call(memory.main, monkeypatch, capsys, "--tiny")["results"]
    assert len(found) == 3 and all(row["expected_gib"] > 0 for row in found)
    found = call(memory.main, monkeypatch, capsys, "--tiny", "--seconds", "1")["results"]
    assert {row["error"] for row in found} == {"no time left"}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_model_is_made_in_shards_and_takes_a_step():
    """In processes of its own: this one must not be part of a group."""
    script = str(FOLDER / "sharded.py")
    words = [sys.executable, script, "step", "--tiny", "--save"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["saving"]["loss"] == found["saving"]["loss_again"]
    words = [sys.executable, script, "create", "--tiny", "--processes", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])["results"]
    assert [row["process"] for row in rows] == [0, 1]
    whole = 4 * rows[0]["parameters"] / 2**30
    assert sum(row["own_gib"] for row in rows) == pytest.approx(whole)


def test_the_training_benchmark_starts_a_process_a_case(load, monkeypatch, capsys):
    train = load("train")
    args = ("--tiny", "--seconds", "0", "--cases", "mini")
    found = call(train.main, monkeypatch, capsys, *args)
    assert [row["name"] for row in found["results"]] == ["mini"]
    assert found["results"][0]["mfu"] > 0


def test_a_case_that_fails_is_told(load, monkeypatch, capsys):
    train = load("train")
    case = train.Case("mini", "too many heads", 64, 32, 1, 5, 2, 2)
    monkeypatch.setattr(train.subprocess, "run", failing)
    args = train.argparse.Namespace(no_compile=False, seconds=0.0, tiny=True)
    assert train.run_apart(args, case)["error"] == ["CUDA out of heads"]
    assert "failed" in train.show({"name": "mini", "error": "why"})


def failing(command, **_):
    return type("Done", (), {"returncode": 1, "stdout": "", "stderr": "x\nCUDA out of heads"})()


def test_flops_are_about_six_a_parameter_and_position(load):
    train = load("train")
    model = train.BlockConfig(V=8192, D=512, num_layers=8, num_heads=8, B=25)
    layers = 8 * 12 * 512**2
    plain = 6 * layers * 400 + 6 * 8192 * 512 * 399 + 4 * 8192 * 512 * 200
    assert 1.0 < train.block_flops(model, 200) / plain < 1.1


@pytest.mark.nightly
def test_the_ablation_keeps_what_is_done(load, monkeypatch, capsys, tmp_path):
    ablation = load("ablation")
    tokens = np.random.default_rng(0).integers(tiny.V, size=2000).astype("<u2")
    tokens.tofile(tmp_path / "tokens.u16")
    masked_lm = tiny.encoder("bert", V=tiny.V).backbone
    masked_lm.save_pretrained(tmp_path / "init")
    capsys.readouterr()
    args = ["--tiny", "--seconds", "0.05", "--sequences", "2", "--V", str(tiny.V)]
    args += ["--data", str(tmp_path / "tokens.u16"), "--out", str(tmp_path / "out")]
    args += ["--init", str(tmp_path / "init"), "--rows"]
    names = ["encoder", "paper-one", "evidence-all-l2", "random-init", "encoder-init"]
    first = call(ablation.main, monkeypatch, capsys, *args, ",".join(names))
    assert [row["name"] for row in first["results"]] == names
    for row in first["results"]:
        assert len(row["ce"]) == 6
        assert row["bound"] > 0
        assert row["steps"] >= 1
    again = call(ablation.main, monkeypatch, capsys, *args, "encoder")
    assert again["results"] == first["results"][:1]


def test_the_cost_of_a_guide_stands_beside_no_guide(load, monkeypatch, capsys, tmp_path):
    guides = load("guides")
    denoiser = BlockDenoiser(BlockConfig(V=tiny.V, D=32, num_layers=1, num_heads=2, B=3))
    decoding = DecodeConfig(length=3, B=(3,), T=4, grid="staggered", width=1.0)
    SSDLM(denoiser, tiny.tokenizer(), decoding).save_pretrained(tmp_path / "model")
    folder = tiny.save_classifier(tmp_path / "guide")
    args = ["cost", "--model", str(tmp_path / "model"), "--control", f"{folder}=positive"]
    args += ["--length", "3", "--rounds", "1", "--rows", "1", "--device", "cpu", "--threads", "1"]
    found = call(guides.main, monkeypatch, capsys, *args)
    assert list(found["ms"]) == list(guides.WAYS)
    assert all(value > 0 for value in found["ms"].values())


def test_judges_over_words_are_made_from_documents_of_their_own(
    load, monkeypatch, capsys, tmp_path
):
    guides = load("guides")
    reviews = [
        {"text": f"It was {('bad', 'good')[side]} {n}. " + "So it goes. " * 12, "label": side}
        for n in range(40)
        for side in [n // 2 % 2]
    ]
    articles = [
        {"text": " ".join(f"It {verb} {n} and she {verb} so." for _ in range(20))}
        for n, verb in enumerate(("was", "is") * 20)
    ]
    for name in guides.OTHER_SOURCES:
        rows = reviews if name.startswith("imdb") else articles
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    assert not set(guides.SOURCES) & set(guides.OTHER_SOURCES)
    for kind, labels in (("reviews", ["negative", "positive"]), ("tenses", ["past", "present"])):
        out = tmp_path / kind
        args = [kind, "--data", str(tmp_path), "--out", str(out), "--threads", "1"]
        run(guides.main, monkeypatch, args)
        assert f"wrote {out}: accuracy" in capsys.readouterr().out
        judge = load_text_classifier(out)
        assert judge.labels == labels
        for part in ("train", "test"):
            lines = (tmp_path / f"{kind}.{part}.jsonl").read_text().splitlines()
            assert {json.loads(line)["label"] for line in lines} == set(labels)
    assert judge.encode("It was and is") == judge.encode("It and")


def test_windows_for_guides_of_tense_lack_the_verbs_that_label_them(load, monkeypatch, tmp_path):
    guides = load("guides")
    rows = [
        {"text": " ".join(f"It {verb} {n}, and {verb}: she {word}." for _ in range(20))}
        for n, (verb, word) in enumerate((("was", "ran"), ("is", "runs")) * 20)
    ]
    for name in guides.SOURCES:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    args = ["tense-words", "--data", str(tmp_path), "--out", str(tmp_path / "w"), "--threads", "1"]
    run(guides.main, monkeypatch, args)
    lines = (tmp_path / "w.train.jsonl").read_text().splitlines()
    found = {(word, row["label"]) for row in map(json.loads, lines) for word in row["text"].split()}
    assert {("ran.", "past"), ("runs.", "present")} <= found
    assert not {"was", "was:", "is", "is:"} & {word for word, _ in found}


def block_model(folder: Path) -> SSDLM:
    """Write a tiny model of blocks, with a tokenizer, and return it."""
    denoiser = BlockDenoiser(BlockConfig(V=tiny.V, D=32, num_layers=2, num_heads=2, B=10))
    model = SSDLM(denoiser, tiny.tokenizer(), DecodeConfig(length=3, B=(3,), T=4))
    model.save_pretrained(folder)
    return model


@pytest.mark.nightly
def test_levers_are_pulled_from_given_weights_or_from_none(load, monkeypatch, capsys, tmp_path):
    levers = load("levers")
    block_model(tmp_path / "init")
    tokens = np.random.default_rng(0).integers(tiny.V, size=2000).astype("<u2")
    tokens.tofile(tmp_path / "tokens.u16")
    args = ["--tiny", "--seconds", "0.05", "--sequences", "2", "--V", str(tiny.V)]
    args += ["--data", str(tmp_path / "tokens.u16"), "--out"]
    first = [*args, str(tmp_path / "a"), "--init", str(tmp_path / "init"), "--rows", "base,self"]
    found = call(levers.main, monkeypatch, capsys, *first)["results"]
    assert [row["name"] for row in found] == ["base", "self"]
    figures = {"AR", "step", "bound@all", "bound@1.0", "text@1.0", "text@all"}
    assert all(row[name] > 0 for row in found for name in figures)
    assert found[1]["parameters"] == found[0]["parameters"] + 32**2
    later = [*args, str(tmp_path / "b"), "--rows", "ar-first"]
    (row,) = call(levers.main, monkeypatch, capsys, *later)["results"]
    assert row["AR"] > 0
    assert "text@all" not in row


def test_every_setting_of_the_quality_benchmark_can_be_decoded(load, tmp_path):
    model = block_model(tmp_path / "model")
    for settings in load("quality").settings_by_kind().values():
        for options in settings.values():
            requests = model.requests(["a"], {"length": 50} | options)
            assert len(requests) == options.get("best_of", 1)
            assert requests[0].options.T == options.get("T", 4)


def test_quality_is_written_judged_and_drawn(load, monkeypatch, capsys, tmp_path):
    quality = load("quality")
    block_model(tmp_path / "model")
    rows = [{"prompt": word, "gold": " to be", "gold_tokens": [3, 4]} for word in ("the", "a")]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = str(tmp_path / "out")
    write = ["write", str(tmp_path / "model"), "--out", out]
    write += ["--prompts", f"words={tmp_path / 'prompts.jsonl'}"]
    judge = ["judge", out, "--judge", str(save_judge(tmp_path / "judge"))]
    for args in ([*write, "--names", "*, 4"], [*write, "--only", "autoregressive"], judge, judge):
        run(quality.main, monkeypatch, args)
    judged = quality.read_jsonl(tmp_path / "out" / "judged.jsonl")
    names = {f"{path}, 4" for path in quality.PATHS} | {"gold"}
    names |= {f"autoregressive, top-p {p}" for p in (0.9, 0.95)}
    assert sorted(row["name"] for row in judged) == sorted(names)
    assert all(row["ppl"] > 1 and row["texts"] == 2 for row in judged)
    capsys.readouterr()
    run(quality.main, monkeypatch, ["draw", out, "--picture", str(tmp_path / "calls.svg")])
    told = capsys.readouterr().out
    assert all(f"| {name} |" in told for name in names)
    assert "</svg>" in (tmp_path / "calls.svg").read_text()
    pair = ["words, uniform, 4", "words, warped, 4"]
    run(quality.main, monkeypatch, ["compare", out, *pair, *judge[2:]])
    same, other = capsys.readouterr().out.splitlines()
    ppl = {row["name"]: row["ppl"] for row in judged}
    assert same == "words, uniform, 4: 0.00 [0.00, 0.00]"
    assert f": {math.log(ppl['warped, 4'] / ppl['uniform, 4']):.2f} [" in other


def run(main, monkeypatch, args: list[str]) -> None:
    """Run a benchmark's `main` with arguments."""
    monkeypatch.setattr(sys, "argv", ["benchmark", *args])
    main()


def test_likelihoods_of_a_store_are_tabulated(load, monkeypatch, capsys, tmp_path):
    block_model(tmp_path / "model")
    tokens = np.random.default_rng(0).integers(tiny.V, size=600)
    load("runs").write_store(tmp_path / "store", tokens, tokens, V=tiny.V)
    args = [str(tmp_path / "model"), "--data", str(tmp_path / "store"), "--windows", "2"]
    args += ["--bound-windows", "1", "--width", "1", "--points", "4"]
    run(load("likelihood").main, monkeypatch, args)
    cells = capsys.readouterr().out.splitlines()[2].split("|")
    assert len(cells) == 7
    assert all(float(cell.split()[0]) > 0 for cell in cells[2:6])


def test_the_start_is_timed_part_by_part(load, monkeypatch, capsys, tmp_path):
    options = DecodeConfig(length=2, B=(2,), T=1)
    SSDLM(tiny.block(), tiny.tokenizer(), options).save_pretrained(tmp_path)
    args = ("--model", str(tmp_path), "--length", "2", "--no-neighbour")
    found = call(load("start").main, monkeypatch, capsys, *args)
    assert list(found["parts"])[-3:] == ["weights", "layout for a CPU", "text"]
    assert found["passes"] == 2 and found["rows"] == []


def test_a_command_is_timed_alone_and_beside_a_busy_core(load, monkeypatch):
    start, seen = load("start"), []

    def seconds(model_name, length, threads):
        seen.append(threads)
        return float(len(seen))

    monkeypatch.setattr(start, "seconds", seconds)
    rows = start.run_neighbour("m", 2, 1)
    assert [(row["alone_s"], row["beside_s"]) for row in rows] == [(1.0, 2.0), (3.0, 4.0)]
    assert seen[:2] == [None, None] and seen[2] == seen[3] == rows[1]["threads"]


@pytest.mark.nightly
def test_a_server_under_load_writes_what_is_written_offline(load, monkeypatch, capsys):
    serve = load("serve")
    words = ("load", "--tiny", "--kinds", "api", "--length", "12", "--guides", "", "--count")
    found = call(serve.main, monkeypatch, capsys, *words, "17")
    assert (found["requests"], found["left"], found["wrong"]) == (17, 3, 0)
    assert len(found["by_path"]) == 4  # completions, chat, responses, spans
    assert found["ratio_by_processor_time"] > 0 and found["first_draft_p50"] > 0


def test_short_requests_by_the_dozen(load, monkeypatch, capsys):
    serve = load("serve")
    found = call(serve.main, monkeypatch, capsys, "soak", "--count", "30", "--most-growth", "500")
    assert found["requests"] == 30 and len(found["megabytes"]) == 10


def test_hostile_requests_are_refused_or_closed(load, monkeypatch, capsys):
    serve = load("serve")
    monkeypatch.setattr(load("hostile"), "SLOW_SHARE", 0.0)
    found = call(serve.main, monkeypatch, capsys, "fuzz", "--count", "60")
    assert sum(found["answers"].values()) == found["requests"] == 60
    assert found["texts_of_others"] == 24
    assert found["wrong"] == []


@pytest.mark.parametrize("kind", ["headers", pytest.param("", marks=pytest.mark.nightly)])
def test_others_are_answered_while_a_server_is_held_up(kind, load, monkeypatch, capsys):
    serve = load("serve")
    monkeypatch.setattr(load("siege"), "PATIENCE", 2.0)
    found = call(serve.main, monkeypatch, capsys, "siege", "--only", kind, "--at-once", "4")
    assert set(found["worst"]) == ({kind} if kind else set(load("siege").ATTACKS))
    assert not any(found["refused"].values()) and found["requests"] > 0


def test_hostile_requests_are_of_all_kinds(load):
    hostile = load("hostile")
    kinds = {hostile.hostile(seed)[0] for seed in range(1500)}
    assert kinds == {kind.__name__ for kind in (*hostile.KINDS, hostile.broken_off)}
    assert hostile.hostile(7) == hostile.hostile(7)


def test_the_benchmark_of_grammars_has_patterns_of_many_kinds_that_compile(load):
    grammars = load("grammars")
    found = grammars.patterns()
    assert len({pattern for _, pattern in found}) == len(found) >= 200
    assert len({kind for kind, _ in found[:11]}) == len(grammars.KINDS) == 11
    for _, pattern in found:
        read_pattern(pattern)


def test_the_benchmark_of_grammars_holds_texts_against_their_patterns(
    load, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    grammars = load("grammars")
    monkeypatch.setattr(grammars, "patterns", lambda: [("a", "[ab]{2,4}"), ("b", ""), ("a", "c")])
    SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig()).save_pretrained(tmp_path / "model")
    words = [str(tmp_path / "model"), "--samples", "2", "--count", "3", "--length", "5"]
    found = call(grammars.main, monkeypatch, capsys, *words, "--compare", "2")
    assert found["patterns"] == 3 and found["texts"] == 6 and found["match"] == 1.0
    # Every second pattern is written without it, too.
    assert set(found["cost_ratio"]) == {"left to right", "window in blocks"}


def test_texts_of_all_kinds_of_grammars_are_written_and_judged(load, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    grammars = load("grammars")
    listed = [("grammar", "as_then_bs", grammars.GRAMMARS["as_then_bs"]), ("regex", "a*b", "a*b")]
    listed += [("json_schema", "0", {"type": "integer"}), ("regex", "a{9}", "a{9}")]
    monkeypatch.setattr(grammars, "languages", lambda: iter(listed))
    tokenizer = load_tokenizer(write_gpt2(tmp_path))
    model = SSDLM(tiny.block(V=tokenizer.V), tokenizer, DecodeConfig())
    model.save_pretrained(tmp_path / "model")
    out = tmp_path / "valid.jsonl"
    words = [str(tmp_path / "model"), "--valid", str(out), "--samples", "3", "--length", "6"]
    run(grammars.main, monkeypatch, [*words, "--part", "1/2"])
    run(grammars.main, monkeypatch, words)  # goes on
    assert len(out.read_text().splitlines()) == 4
    found = call(grammars.main, monkeypatch, capsys, "--judge", str(out))
    assert [found[one]["texts"] for one in ("grammar", "json_schema", "regex")] == [3, 3, 3]
    assert not any(one["bad"] for one in found.values())
    assert "9 tokens" in found["regex"]["refused"]["a{9}"]
    out.write_text('{"option": "grammar", "name": "as_then_bs", "texts": ["ab", "abb"]}')
    bad = call(grammars.main, monkeypatch, capsys, "--judge", str(out))["grammar"]["bad"]
    assert bad == [["as_then_bs", "abb"]]


def test_a_causal_model_is_timed_beside_transformers(load, monkeypatch, capsys):
    causal = load("causal")
    monkeypatch.setattr(causal, "LENGTH", 3)
    given = ["causal.py", "--shapes", "tiny", "--batches", "2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", given)
    causal.main()
    heading, ours, theirs = capsys.readouterr().out.splitlines()
    assert heading.startswith("tiny: weights read in")
    assert float(ours.split()[5]) > 0 and "ours, 2 at a time" in ours
    assert float(theirs.split()[5]) > 0 and "transformers, 2 at a time" in theirs


def test_texts_of_two_trees_are_compared_request_by_request(load, monkeypatch, capsys, tmp_path):
    same_texts = load("same_texts")
    asked = [same_texts.request_of(number) for number in range(60)]
    assert asked == [same_texts.request_of(number) for number in range(60)]
    assert {one["options"]["mode"] for one in asked} == {
        "diffusion",
        "autoregressive",
        "speculative",
    }
    found = [{"texts": ["a"]}, {"texts": ["b"]}, {"refused": "no"}], [{"texts": ["a"]}] * 3
    for name, lines in zip(("old", "new"), found, strict=True):
        text = "".join(json.dumps(asked[n] | one) + "\n" for n, one in enumerate(lines))
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("old", "new")]
    counts = call(same_texts.main, monkeypatch, capsys, "compare", *files)
    assert {kind: n for kind, n in counts.items() if n} == {
        "same": 1,
        "different": 1,
        "refused by old": 1,
    }

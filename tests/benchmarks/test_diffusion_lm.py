"""The Diffusion-LM baseline: its schedule, its steps, what it learns, and its commands."""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import tiny

from ssdlm.data.shards import TokenStore

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
STORIES = ["the dog ran. it was wet.", "my cat sat on a mat, and slept!", "we ate? yes we ate."] * 4


@pytest.fixture
def bench(monkeypatch):
    """The benchmark, imported as Python would run it: from its own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("diffusion_lm")
    for name in ("runs", "diffusion_lm"):
        sys.modules.pop(name, None)


@pytest.fixture
def call(bench, monkeypatch, capsys):
    """How to run a command; returns its last line."""

    def run(*args: object) -> dict:
        monkeypatch.setattr(sys, "argv", ["diffusion_lm.py", *map(str, args)])
        bench.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.fixture
def stories(tmp_path):
    """A file of stories and a tokenizer for it."""
    tiny.tokenizer().save(tmp_path / "tokenizer")
    path = tmp_path / "stories.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in STORIES))
    return path


@pytest.fixture
def train(call, stories, tmp_path):
    """How to train a tiny model on the stories."""

    def run(out: str, *args: object) -> dict:
        more = ("--tokenizer", tmp_path / "tokenizer", "--size", "tiny", *args)
        return call("train", "--data", stories, "--out", tmp_path / out, *more)

    return run


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_schedule_falls_from_a_little_noise_to_noise_alone(bench):
    a = bench.alpha_bar(torch.linspace(0, 1, 101, dtype=torch.float64))
    assert a[0] == pytest.approx(1 - math.sqrt(1e-4))
    assert a[-1] == 0
    assert (a.diff() < 0).all()


@pytest.mark.parametrize("rule", ["renoise", "posterior"])
def test_a_step_of_the_true_data_keeps_the_forward_process(bench, rule):
    noise, a, a_next = torch.randn(2, 400_000, dtype=torch.float64), 0.3, 0.6
    x_0 = torch.full((400_000,), 2.0, dtype=torch.float64)
    x_t = math.sqrt(a) * x_0 + math.sqrt(1 - a) * noise[0]
    moved = bench.step(x_t, x_0, a, a_next, noise[1], rule)
    assert moved.mean() == pytest.approx(2 * math.sqrt(a_next), abs=0.01)
    assert moved.std() == pytest.approx(math.sqrt(1 - a_next), abs=0.01)


def test_it_learns_two_texts_and_which_of_them_a_context_begins(bench, tmp_path):
    up = np.arange(8)
    tokens = np.concatenate([up, up[::-1]] * 20)
    bench_runs = importlib.import_module("runs")
    store = TokenStore.open(bench_runs.write_store(tmp_path, tokens, tokens, V=8))
    sizes = {"d": 8, "D": 16, "num_layers": 1, "num_heads": 2, "max_len": 8, "shift": False}
    settings = bench.Settings(V=8, **sizes, batch=16, steps=120, lr=1e-2, ema=0.9, dropout=0.0)
    run = bench.begin(settings, store, torch.device("cpu"))
    while run.done < 1:
        run.optimise()
    net = run.net.eval()
    context = torch.tensor(np.stack([up[:4], up[::-1][:4]] * 4))
    found = bench.decode(net, context, torch.arange(8), bench.Decoding(4, 20))
    wanted = torch.tensor(np.stack([up[4:], up[::-1][4:]] * 4))
    assert (found == wanted).float().mean() > 0.7


def test_clamping_gives_the_nearest_embedding(bench):
    net = bench.Network(replace(bench.Settings(V=20), **bench.SIZES["tiny"]))
    x = torch.randn(3, 4, 8)
    distances = (x.unsqueeze(-2) - net.words.weight).square().sum(-1)
    assert torch.equal(net.nearest(x), distances.argmin(-1))


def test_a_run_that_was_cut_short_ends_as_if_it_had_not_been(bench, train, tmp_path, monkeypatch):
    whole = train("whole", "--steps", 6)
    optimise = bench.Training.optimise

    def cut(run):
        if run.step == 4:
            raise KeyboardInterrupt
        return optimise(run)

    monkeypatch.setattr(bench.Training, "optimise", cut)
    with pytest.raises(KeyboardInterrupt):
        train("cut", "--steps", 6, "--save-seconds", 0)
    monkeypatch.setattr(bench.Training, "optimise", optimise)
    resumed = train("cut", "--steps", 6)
    assert resumed["loss"] == whole["loss"]
    assert resumed["tokens"] == whole["tokens"] == 6 * 4 * 16
    means = [
        torch.load(tmp_path / out / "state.pt", weights_only=True)["ema"]["mean"]
        for out in ("whole", "cut")
    ]
    assert all(torch.equal(means[0][name], means[1][name]) for name in means[0])
    with pytest.raises(SystemExit, match="a run with other batch"):
        train("cut", "--steps", 6, "--batch", 2)


def test_training_ends_by_the_clock(train):
    found = train("timed", "--seconds", 0.01, "--steps", 1000)
    assert 1 <= found["step"] < 1000
    assert found["seconds"] >= 0.01


def test_texts_are_written_after_prompts_and_without_any(call, train, tmp_path):
    train("model", "--steps", 1)
    prompts = tmp_path / "prompts.jsonl"
    texts = [{"prompt": "the dog"}, {"prompt": "a cat"}, {"prompt": "my dog"}]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in texts))
    model = ("generate", "--model", tmp_path / "model", "--T", 3)
    out = tmp_path / "texts.jsonl"
    more = ("--input", prompts, "--length", 5, "--num-samples", 2, "--output")
    made = call(*model, *more, out)
    written = lines(out)
    assert [line["prompt"] for line in written] == [t["prompt"] for t in texts for _ in range(2)]
    assert {len(line["tokens"]) for line in written} == {5}
    assert made["training"]["tokens"] == 64
    assert call(*model, *more, out)["texts"] == 6
    assert lines(out) == written
    call(*model, *more, tmp_path / "alone.jsonl", "--batch-size", 1)
    assert [line["tokens"] for line in lines(tmp_path / "alone.jsonl")] == [
        line["tokens"] for line in written
    ]
    own = tmp_path / "own.jsonl"
    call(*model, "--num-samples", 3, "--output", own, "--rule", "posterior", "--no-clamp")
    assert {len(line["tokens"]) for line in lines(own)} == {16}
    with pytest.raises(SystemExit, match="17 tokens, and the model writes 16"):
        call(*model, "--input", prompts, "--length", 10, "--output", tmp_path / "long.jsonl")


def test_what_cannot_be_done_is_said_in_a_line(call, stories, tmp_path):
    with pytest.raises(SystemExit, match="give --tokenizer"):
        call("train", "--data", stories, "--out", tmp_path / "x", "--size", "tiny")
    with pytest.raises(SystemExit, match="contains no trained Diffusion-LM"):
        call("generate", "--model", tmp_path, "--output", tmp_path / "y.jsonl")

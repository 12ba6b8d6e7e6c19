"""The benchmarks run at tiny size on a CPU and end in one JSON line."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ssdlm import SSDLM, DecodeConfig
from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from tests import tiny

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """How to import a benchmark as Python would run it: from its own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield lambda name: importlib.import_module(name)
    for name in ("runs", "train", "ablation", "guides"):
        sys.modules.pop(name, None)


def call(main, monkeypatch, capsys, *args: str) -> dict:
    """Run a benchmark's `main` with arguments; return its last line."""
    monkeypatch.setattr(sys, "argv", ["benchmark", *args])
    main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("name", ["mini", "paper", "blocks"])
def test_a_case_of_the_training_benchmark_has_its_figures(name, load, monkeypatch, capsys):
    train = load("train")
    found = call(train.main, monkeypatch, capsys, "--tiny", "--seconds", "0", "--one", name)
    assert found["supervised_tokens_per_s"] > found["sequences_per_s"] > 0
    assert found["steps"] == 2
    assert found["parameters"] > 0


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

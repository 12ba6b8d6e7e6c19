"""torchrun starts dead workers again: one kill here, twenty in benchmarks/kills.py."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import pytest
from tests.processes import make_store

from ssdlm.train import configure, train

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are found as on Linux")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_whose_worker_is_killed_ends_with_the_losses_of_one_process(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kills = importlib.import_module("kills")
    store, out = make_store(tmp_path / "store"), tmp_path / "run"
    settings = [*kills.SETTINGS, "train.steps=20"]
    run = kills.launch(out, store, settings, processes=2, restarts=1)
    draw = random.Random(1)
    done = kills.disturb(run, out, kills=1, draw=draw, seconds=600)
    assert len(done) == 1 and 0 < done[0]["step"] < 20
    assert run.returncode == 0, out.with_suffix(".err").read_text()[-2000:]
    train(configure("tiny", settings), data=[store], out=tmp_path / "alone")
    assert kills.losses(out) == pytest.approx(kills.losses(tmp_path / "alone"), abs=1e-4)
    for name in ("kills", "runs"):
        sys.modules.pop(name, None)

"""The library does what the authors' decoder did, step for step."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.parity.plain import record

from ssdlm.diffusion import schedule
from ssdlm.storage.checkpoint import load_denoiser

HERE = Path(__file__).parent
TRACES = sorted(path.parent for path in HERE.glob("*/trace.npz"))


def replay(folder, capsys):
    """Run replay.py's main and return its exit code and last line."""
    spec = importlib.util.spec_from_file_location("replay", HERE / "replay.py")
    script = importlib.util.module_from_spec(spec)
    sys.modules["replay"] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["replay.py", str(folder)])
        code = script.main()
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_script_runs_by_itself():
    command = [sys.executable, str(HERE / "replay.py"), str(HERE / "greedy")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["token_mismatches"] == 0


def test_there_are_traces_of_every_kind():
    names = {folder.name for folder in TRACES}
    assert names == {"greedy", "guided", "guided_batch", "multi_hot", "sampling"}


@pytest.mark.parametrize("folder", TRACES, ids=lambda folder: folder.name)
def test_a_recorded_run_is_replayed_step_for_step(folder, capsys):
    code, result = replay(folder, capsys)
    assert code == 0
    assert result["max_abs_logit_error"] < 1e-4
    assert result["token_mismatches"] == 0


@pytest.mark.parametrize("folder", TRACES, ids=lambda folder: folder.name)
def test_the_schedule_is_the_recorded_one(folder):
    trace = np.load(folder / "trace.npz")
    T = len(trace["alpha_bar"])
    ours = schedule.alpha_bar(T).numpy()
    assert np.abs(ours[1:] - trace["alpha_bar"]).max() < 1e-6
    assert np.abs(ours[:-1] - trace["alpha_bar_prev"]).max() < 1e-6


def test_a_changed_weight_is_noticed(tmp_path, capsys):
    folder = shutil.copytree(HERE / "greedy", tmp_path / "changed")
    path = folder / "timestep_layer.pt"
    weights = torch.load(path, weights_only=True)
    torch.save({key: value * 1.2 for key, value in weights.items()}, path)
    code, result = replay(folder, capsys)
    assert code == 1
    assert result["max_abs_logit_error"] > 1e-3


def test_prefixed_keys_and_a_missing_tied_decoder_are_the_same_model(tmp_path, capsys):
    folder = shutil.copytree(HERE / "greedy", tmp_path / "prefixed")
    for name in ("pytorch_model.bin", "embed_sum_layer.pt", "timestep_layer.pt"):
        weights = torch.load(folder / name, weights_only=True)
        plain = {key.removeprefix("module."): value for key, value in weights.items()}
        kept = {f"module.{key}": value for key, value in plain.items() if "decoder" not in key}
        torch.save(kept, folder / name)
    ours, theirs = (load_denoiser(path).state_dict() for path in (folder, HERE / "greedy"))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert replay(folder, capsys)[0] == 0


SIZES = {"V": 70, "D": 16, "N": 2, "C": 1, "B": 3, "blocks": 2, "T": 6, "K": 5.0, "positions": 40}
PLAIN = {"projection": "multi_hot", "top_p": 0.5, "control_lambda": 0.0, "control_label": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"top_p": 0.0, "N": 1, "B": 1, "T": 1, "blocks": 1},
        {"V": 1300, "D": 32, "top_p": 0.95, "prefix": "module."},
        {"C": 12, "B": 7, "positions": 28, "has_decoder": False},
        {"projection": "sampling", "top_p": 0.9, "N": 4, "T": 15},
        {"projection": "sampling", "top_p": 0.99, "control_lambda": 3.0, "control_label": 2},
        {"control_lambda": 500.0, "control_label": 1, "N": 3, "prefix": "module."},
        {"K": 3.0, "top_p": 0.2},
    ],
    ids=lambda change: ",".join(f"{key}={value}" for key, value in change.items()),
)
def test_a_run_of_any_size_agrees_with_a_plain_reading(change, tmp_path, capsys):
    record(tmp_path, seed=len(change), **SIZES | PLAIN | change)
    code, result = replay(tmp_path, capsys)
    assert code == 0, result

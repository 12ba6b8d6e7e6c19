"""Losses that are not finite, gradients that are spikes, checkpoints that are kept."""

import json
import math

import pytest
import torch
from tests.processes import SMALL

from ssdlm.train import checkpoint_folders, configure, train
from ssdlm.train.spikes import FIRST, MOST_IN_A_ROW, Spikes


@pytest.fixture
def poison(monkeypatch):
    """A function that makes the gradients of some steps, counted from 1, infinite or large."""
    real, steps, calls = torch.nn.utils.clip_grad_norm_, {}, 0

    def clip(parameters, limit):
        nonlocal calls
        calls += 1
        parameters = list(parameters)
        for weight in parameters:
            if calls in steps and weight.grad is not None:
                weight.grad.mul_(steps[calls])
        return real(parameters, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    return steps.update


def run(store, out, *settings):
    return train(configure("tiny", [*SMALL, *settings]), data=[store], out=out)


@pytest.mark.parametrize(("log_every", "step"), [(1, 7), (100, 8)])
def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_last_good_checkpoint(
    store, tmp_path, poison, log_every, step
):
    poison({6: math.nan})
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=rf"the loss of step {step} is nan; the last good") as got:
        run(store, out, f"log_every={log_every}")
    assert str(out / "checkpoints" / "step-4") in str(got.value) and "\n" not in str(got.value)
    assert list(checkpoint_folders.list_steps(out)) == [4]


def test_without_a_checkpoint_a_lower_rate_is_advised(store, tmp_path, poison):
    poison({2: math.nan})
    with pytest.raises(ValueError, match=r"is nan; lower train.lr and use --fresh"):
        run(store, tmp_path / "run", "log_every=1")


def test_a_spike_is_skipped_counted_and_remembered(store, tmp_path, poison):
    poison({6: math.inf, 7: math.nan})
    out = tmp_path / "run"
    assert math.isfinite(run(store, out, "log_every=1", "spike=5").loss)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in lines] == [0] * 5 + [1] + [2] * 6
    state = json.loads((out / "checkpoints" / "step-12" / "state.json").read_text())
    assert state["spikes"]["skipped"] == 2 and state["spikes"]["steps"] == 10


def test_spikes_without_end_end_the_run(store, tmp_path, poison):
    poison({step: math.inf for step in range(6, 99)})
    with pytest.raises(ValueError, match=r"20 steps in a row is a spike .* at step 25"):
        run(store, tmp_path / "run", "steps=40", "spike=5")


def test_the_usual_norm_is_a_mean_that_forgets():
    spikes = Spikes()
    for _ in range(FIRST):
        assert spikes.allows(100.0, 2.0)
        spikes = spikes.after(1.0, is_taken=True)
    assert spikes.mean == pytest.approx(1.0)
    assert spikes.allows(2.0, 2.0) and not spikes.allows(2.1, 2.0)
    assert not spikes.allows(math.nan, 2.0)
    for _ in range(MOST_IN_A_ROW):
        assert not spikes.is_hopeless
        spikes = spikes.after(9.0, is_taken=False)
    assert spikes.is_hopeless and spikes.mean == pytest.approx(1.0)
    assert not spikes.after(1.0, is_taken=True).is_hopeless
    for _ in range(400):
        spikes = spikes.after(3.0, is_taken=True)
    assert spikes.mean == pytest.approx(3.0, rel=0.01)


def test_the_newest_checkpoints_and_every_nth_are_kept(store, tmp_path):
    run(store, tmp_path / "run", "save_every=1", "keep=2", "keep_every=5")
    assert list(checkpoint_folders.list_steps(tmp_path / "run")) == [12, 11, 10, 5]


def test_an_old_checkpoint_that_stayed_is_removed_by_the_next_start(store, tmp_path, monkeypatch):
    settings = ["save_every=6", "keep=1"]

    def fail(folder):
        if folder.exists() and folder.name == "step-6":
            raise OSError(5, "Input/output error", str(folder))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"):
        patch.setattr(checkpoint_folders, "remove", fail)
        run(store, tmp_path / "run", *settings)
    assert list(checkpoint_folders.list_steps(tmp_path / "run")) == [12, 6]
    run(store, tmp_path / "run", *settings)
    assert list(checkpoint_folders.list_steps(tmp_path / "run")) == [12]


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_newer_one(store, tmp_path):
    """Past a damaged one, a run writes older steps anew: those are the newest that are whole."""
    settings = ["save_every=1", "keep=1", "keep_every=10"]
    run(store, tmp_path / "run", *settings)
    (tmp_path / "run" / "checkpoints" / "step-12" / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="step-12 is damaged"):
        run(store, tmp_path / "run", *settings)
    assert list(checkpoint_folders.list_steps(tmp_path / "run")) == [12, 10]
    assert checkpoint_folders.find_damage(tmp_path / "run" / "checkpoints" / "step-12") == ""

"""Checkpoints in shards: written beside the run by all of its processes, read by any number."""

from __future__ import annotations

import json
import os
import signal
import threading
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.processes import SMALL, run_together, start_together

from ssdlm.api import SSDLM
from ssdlm.storage.tensors import write_one_by_one
from ssdlm.train import checkpoint_folders, configure, loop, train
from ssdlm.train.checkpoints import OPTIMIZER
from ssdlm.train.shards import SHARDS, files_of

SETTINGS = [*SMALL, "ema=0.9", "sharding=fsdp", "micro_batch=1", "train.steps=12", "save_every=1"]


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory) -> Path:
    """A run in one process."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(configure("tiny", SETTINGS), data=[store], out=out)
    return out


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


def newest(out: Path) -> Path:
    found = checkpoint_folders.find_newest(out)
    assert found is not None
    return found


@pytest.mark.nightly
def test_a_run_goes_on_in_4_then_2_then_1_then_4_processes(store, whole, tmp_path):
    out, seen = tmp_path / "run", [0]
    for count in (4, 2, 1):
        # By the fourth step three checkpoints were begun, so two of them are whole.
        run_together(SETTINGS, [store], out, count=count, bomb=("ssdlm.train.loop:train_step", 4))
        folder = newest(out)
        assert (folder / OPTIMIZER).exists() == (count == 1)
        assert len(files_of(folder, "moments")) == (count if count > 1 else 0)
        seen.append(int(folder.name.removeprefix("step-")))
    assert seen == sorted(set(seen))
    run_together(SETTINGS, [store], out, count=4)
    assert losses(out) == pytest.approx(losses(whole), abs=1e-4)
    for name in ("model.safetensors", "ema.safetensors"):
        one, other = (load_file(newest(folder) / name) for folder in (whole, out))
        assert one.keys() == other.keys()
        assert all(torch.allclose(one[key], other[key], atol=1e-3) for key in one)
    assert not files_of(newest(out), "weights")  # joined: the checkpoint is a model's folder
    assert SSDLM.from_pretrained(newest(out), device="cpu").generate("the", length=8, T=2).text
    check_nothing_is_pickled(out)


def check_nothing_is_pickled(out: Path) -> None:
    files = [path for path in newest(out).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    listed = json.loads((newest(out) / "manifest.json").read_text())["files"]
    assert any(name.startswith(f"{SHARDS}/") for name in listed)


def fill_the_disk_once(overrides: list[str], data: list[Path], out: Path) -> None:
    """Train; at step 8 the second process finds no room for its part."""
    from ssdlm.train import shards

    real = shards.FolderWriter.write_data

    def write_data(self, plan, planner):
        if os.environ["RANK"] == "1" and "partial-8" in str(self.path):
            raise OSError(28, "No space left on device")
        return real(self, plan, planner)

    shards.FolderWriter.write_data = write_data
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        report = train(configure("tiny", overrides), data=data, out=out)
    assert report.step == 12
    told = [str(one.message) for one in said if "no space left for checkpoint 8" in str(one)]
    assert len(told) == (os.environ["RANK"] == "0")


def test_a_full_disk_in_one_process_keeps_the_checkpoint_before(store, whole, tmp_path):
    settings = [*SETTINGS, "save_every=4", "keep=4"]
    ended = start_together(fill_the_disk_once, settings, [store], tmp_path / "run", count=2)
    assert ended == [0, 0]
    assert list(checkpoint_folders.list_steps(tmp_path / "run")) == [12, 4]
    assert not list((tmp_path / "run" / "checkpoints").glob(f"{checkpoint_folders.PARTIAL}*"))
    assert losses(tmp_path / "run") == pytest.approx(losses(whole), abs=1e-4)


def test_killed_while_a_checkpoint_is_written_the_one_before_is_whole(store, whole, tmp_path):
    """The main process dies; the other finds nobody to talk to, and ends as well."""
    out = tmp_path / "run"
    for bomb in (
        ("ssdlm.train.shards:join", 3),  # of the second checkpoint the shards are written
        ("ssdlm.train.checkpoint_folders:digests", 2),  # joined, no manifest yet
        ("ssdlm.train.checkpoints:export", 2),  # named, OUT not brought up to date
    ):
        before = [*checkpoint_folders.list_steps(out), 0][0]
        ended = start_together(die_beside, SETTINGS, [store], out, bomb, count=2)
        assert ended[0] == -signal.SIGKILL and ended[1] != 0
        assert int(newest(out).name.removeprefix("step-")) in (before + 1, before + 2)
    train(configure("tiny", SETTINGS), data=[store], out=out)
    assert losses(out) == pytest.approx(losses(whole), abs=1e-4)


def die_beside(overrides: list[str], data: list[Path], out: Path, bomb: tuple[str, int]) -> None:
    from tests.processes import plant

    if os.environ["RANK"] == "0":
        plant(*bomb)
    train(configure("tiny", overrides), data=data, out=out)


def test_training_goes_on_while_a_checkpoint_is_written(store, tmp_path, monkeypatch):
    """The first one is held up until the run has taken three steps more."""
    has_moved, steps = threading.Event(), []
    real_digests, real_step = checkpoint_folders.digests, loop.train_step

    def digests(folder):
        assert has_moved.wait(60)
        return real_digests(folder)

    def train_step(run):
        steps.append(run.step)
        if run.step == 7:
            assert not list(checkpoint_folders.list_steps(tmp_path))
            has_moved.set()
        return real_step(run)

    monkeypatch.setattr(checkpoint_folders, "digests", digests)
    monkeypatch.setattr(loop, "train_step", train_step)
    settings = [*SMALL, "keep=9"]
    train(configure("tiny", settings), data=[store], out=tmp_path)
    assert steps == list(range(12))
    assert list(checkpoint_folders.list_steps(tmp_path)) == [12, 8, 4]


def test_a_checkpoint_has_the_weights_of_its_step_and_not_later_ones(store, tmp_path):
    for name, is_async in (("beside", "true"), ("before", "false")):
        settings = [*SMALL, "ema=0.9", "keep=9", f"async_save={is_async}"]
        train(configure("tiny", settings), data=[store], out=tmp_path / name)
    for step in (4, 8, 12):
        one, other = (tmp_path / name / "checkpoints" for name in ("beside", "before"))
        for name in ("model.safetensors", "ema.safetensors", OPTIMIZER):
            file = f"step-{step}/{name}"
            assert (one / file).read_bytes() == (other / file).read_bytes()


def test_a_file_written_one_by_one_is_a_safetensors_file(tmp_path):
    tensors = {
        "b": torch.arange(6.0).view(2, 3),
        "a": torch.tensor([1, 2, 3]),
        "none": torch.zeros(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    write_one_by_one(tmp_path / "own", tensors, tensors.__getitem__)
    save_file(tensors, tmp_path / "theirs")
    own, theirs = load_file(tmp_path / "own"), load_file(tmp_path / "theirs")
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)

"""A run that was killed goes on as if it had not been."""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.mutations import check_reader
from tests.processes import LIMIT, SMALL, spawn

from ssdlm.settings import to_json
from ssdlm.storage import files
from ssdlm.train import checkpoint_folders, configure, train
from ssdlm.train.checkpoints import State
from ssdlm.train.resume import find_checkpoint

SETTINGS = [*SMALL, "ema=0.9", "micro_batch=2", "validate_every=6"]
BOMBS = [
    ("ssdlm.train.log:append", 3),  # before the first checkpoint
    ("ssdlm.train.checkpoints:save_tensors", 2),  # a checkpoint half written
    ("ssdlm.train.checkpoint_folders:digests", 1),  # all but its manifest written
    ("ssdlm.train.checkpoints:export", 1),  # a checkpoint, but no model in OUT yet
    ("ssdlm.train.checkpoints:link", 9),  # OUT half brought up to date
    ("ssdlm.train.loop:train_step", 2),  # a line in the log past the checkpoint
    ("ssdlm.train.loop:validate", 1),  # the last step taken, not logged
    (
        "ssdlm.train.checkpoint_folders:remove",
        3,
    ),  # the last checkpoint written, the oldest not yet removed
]
"""Where a run dies, and at which call."""


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    finish(spawn(SETTINGS, [store], out))
    return out


def finish(process) -> None:
    process.join(LIMIT)
    assert process.exitcode == 0


def losses(out: Path) -> list[str]:
    """What of a log does not depend on the clock."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [json.dumps({k: v for k, v in line.items() if k != "tokens_per_s"}) for line in lines]


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs ended in the same bytes."""
    names = ("model.safetensors", "checkpoints/step-12/optimizer.safetensors")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_a_run_killed_at_every_kind_of_moment_logs_the_same_losses_bit_for_bit(
    store, whole, tmp_path
):
    out = tmp_path / "run"
    for bomb in BOMBS:
        process = spawn(SETTINGS, [store], out, bomb=bomb)
        process.join(LIMIT)
        assert process.exitcode == -signal.SIGKILL, bomb
    finish(spawn(SETTINGS, [store], out))
    assert losses(out) == losses(whole)
    assert same_weights(out, whole)


def test_a_run_killed_from_outside_logs_the_same_losses_bit_for_bit(store, whole, tmp_path):
    out = tmp_path / "run"
    for lines in (1, 5, 10):
        process = spawn(SETTINGS, [store], out)
        while process.is_alive() and num_lines(out) < lines:
            time.sleep(0.001)
        process.kill()
        process.join(LIMIT)
    finish(spawn(SETTINGS, [store], out))
    assert losses(out) == losses(whole)
    assert same_weights(out, whole)


def num_lines(out: Path) -> int:
    path = out / "log.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_line_that_was_cut_off_is_written_anew(store, whole, tmp_path):
    out = tmp_path / "run"
    spawn(SETTINGS, [store], out, bomb=("ssdlm.train.loop:train_step", 7)).join(LIMIT)
    with open(out / "log.jsonl", "a", encoding="utf-8") as log:
        log.write('{"step": 7, "lo')
    finish(spawn(SETTINGS, [store], out))
    assert losses(out) == losses(whole)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(store, whole, tmp_path):
    out = tmp_path / "run"
    settings = [*SETTINGS, "async_save=false"]  # so that step 8 is written when the run dies
    spawn(settings, [store], out, bomb=("ssdlm.train.loop:train_step", 11)).join(LIMIT)
    weights = out / "checkpoints" / "step-8" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.warns(UserWarning, match="step-8 is damaged .model.safetensors has the wrong dig"):
        report = train(configure("tiny", settings), data=[store], out=out)
    assert report.resumed == 4
    assert losses(out) == losses(whole)


def write_folder(new: checkpoint_folders.NewFolder) -> None:
    new.prepare()
    (new.temporary / "a").write_text("abc")
    new.finish()


@pytest.mark.parametrize("damage", ["truncate", "no manifest", "no file"])
def test_every_damage_to_a_checkpoint_is_noticed(tmp_path, damage):
    for step in (1, 2):
        write_folder(checkpoint_folders.NewFolder(tmp_path, step, keep=2))
    newest = tmp_path / "checkpoints" / "step-2"
    if damage == "truncate":
        (newest / "a").write_text("ab")
    else:
        (newest / (checkpoint_folders.MANIFEST if damage == "no manifest" else "a")).unlink()
    with pytest.warns(UserWarning, match="damaged"):
        assert checkpoint_folders.find_newest(tmp_path) == tmp_path / "checkpoints" / "step-1"


def test_a_full_disk_keeps_the_checkpoint_before_and_goes_on(store, tmp_path, monkeypatch):
    out, save_file = tmp_path / "run", files.write_json

    def write(path, value):
        if path.name == "state.json" and value["step"] == 8:
            raise OSError(28, "No space left on device")
        save_file(path, value)

    monkeypatch.setattr("ssdlm.train.checkpoints.write_json", write)
    with pytest.warns(UserWarning, match="no space left for checkpoint 8"):
        report = train(configure("tiny", SETTINGS), data=[store], out=out)
    assert report.step == 12
    assert list(checkpoint_folders.list_steps(out)) == [12, 4]
    assert not list((out / "checkpoints").glob(f"{checkpoint_folders.PARTIAL}*"))


def test_a_full_disk_at_the_very_end_is_an_error(store, tmp_path, monkeypatch):
    def write(tensors, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ssdlm.train.checkpoints.save_tensors", write)
    with pytest.warns(UserWarning), pytest.raises(OSError, match="last checkpoint"):
        train(configure("tiny", SETTINGS), data=[store], out=tmp_path / "run")


def test_a_link_that_is_there_already_leaves_no_other_behind(tmp_path):
    (tmp_path / "a").write_text("a")
    for _ in range(2):
        checkpoint_folders.link(tmp_path / "a", tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_only_the_newest_checkpoints_are_kept(whole):
    assert list(checkpoint_folders.list_steps(whole)) == [12, 8]


def test_every_damage_to_the_settings_of_a_run_is_refused_in_one_line(tmp_path):
    asked = {"config": to_json(configure("tiny", SETTINGS)), "data": ["a digest"]}
    files.write_json(tmp_path / "run.json", {"asked": asked})
    main = SimpleNamespace(is_main_process=True, num_processes=1)
    read = partial(find_checkpoint, main, tmp_path, asked)
    assert check_reader(tmp_path / "run.json", read) > 300


def test_every_damage_to_the_state_of_a_run_is_refused_in_one_line(tmp_path):
    path, clock = tmp_path / "state.json", {"seconds": 2.5, "steps": 4, "end": 0}
    state = {"step": 4, "clock": clock, "groups": [{"steps": 4}], "ema_steps": 4, "scaler": {}}
    files.write_json(path, state)
    assert check_reader(path, lambda: files.read_checked(path, State)) > 30

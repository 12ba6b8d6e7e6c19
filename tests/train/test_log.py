"""The log of a run, and its line of progress."""

from __future__ import annotations

import errno
import json

import pytest
from matplotlib.figure import Figure
from tests.mutations import check_reader

from ssdlm.train import log as runlog
from ssdlm.train.log import RunLog, cut_log, flatten, read_log
from ssdlm.train.plot import draw_losses, draw_profile

RECORD = {"step": 3, "loss": 2.0, "tokens_per_s": 1234.5, "validation": {"bound": 1.5, "p": [1]}}


def open_log(out, step: int = 0) -> RunLog:
    return RunLog(out, step=step, steps=10)


def test_lines_past_a_step_are_cut_and_a_broken_one_too(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": i}) + "\n" for i in range(1, 5)) + '{"ste')
    cut_log(path, 2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_log_that_is_not_there_is_left_so(tmp_path):
    cut_log(tmp_path / "log.jsonl", 2)
    assert not list(tmp_path.iterdir())


def test_nested_numbers_have_paths():
    assert flatten(RECORD) == {"loss": 2.0, "tokens_per_s": 1234.5, "validation/bound": 1.5}


def test_lines_without_room_are_written_when_there_is(tmp_path, monkeypatch):
    log, write = open_log(tmp_path), runlog.append

    def full(path, records):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runlog, "append", full)
    with pytest.warns(UserWarning, match="no space left"):
        log.write(RECORD | {"step": 1})
    monkeypatch.setattr(runlog, "append", write)
    log.write(RECORD | {"step": 2})
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == [1, 2]


def test_progress_stands_beside_the_last_record(tmp_path, capsys):
    log = open_log(tmp_path)
    log.write(RECORD | {"step": 1})
    log.show_progress(8, 8)
    log.close()
    assert "step 8/8  loss 2.0000  1,234 tokens/s" in capsys.readouterr().err


def test_a_tracker_that_is_not_installed_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="pip install trackio"):
        runlog.open_tracker("trackio", tmp_path, {})


def test_every_damage_to_a_line_of_a_log_is_refused_in_one_line(tmp_path):
    path = tmp_path / "log.jsonl"
    validation = {"bound": 3.0, "next_token": 2.0, "profile": [[0.1, 1.0], [0.9, 4.0]]}
    path.write_text(json.dumps({"step": 1, "loss": 2.0, "lr": 1e-3, "validation": validation}))
    axes = Figure().subplots()

    def read() -> None:
        path.write_bytes(path.read_bytes().rstrip(b"\n") + b"\n")
        draw_losses(axes, read_log(path))
        draw_profile(axes, read_log(path))
        cut_log(path, 5)

    assert check_reader(path, read) > 40


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """A client of MLflow with a store in a folder."""
    module = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    return module.MlflowClient()


def test_mlflow_gets_the_figures_of_a_run_and_goes_on_with_it(mlflow, tmp_path):
    settings = {"train": {"lr": 0.5, "init": "x" * 900}}
    for step in (0, 2):
        tracker = runlog.open_tracker("mlflow", tmp_path / "run", settings, step)
        log = RunLog(tmp_path / "run", step=step, steps=10, tracker=tracker)
        (tmp_path / "run").mkdir(exist_ok=True)
        for number in (step + 1, step + 2):
            log.write(RECORD | {"step": number})
        log.close()
    experiment = mlflow.get_experiment_by_name("ssdlm").experiment_id
    (run,) = mlflow.search_runs([experiment])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert run.data.params["train.lr"] == "0.5"
    assert run.data.metrics["validation/bound"] == 1.5
    steps = [metric.step for metric in mlflow.get_metric_history(run.info.run_id, "loss")]
    assert steps == [1, 2, 3, 4]


def test_mlflow_that_fails_costs_its_figures_and_not_the_training(mlflow, tmp_path, monkeypatch):
    tracker = runlog.open_tracker("mlflow", tmp_path, {})
    log = RunLog(tmp_path, step=0, steps=9, tracker=tracker)

    def gone(*args, **kwargs):
        raise ConnectionError("nobody\nthere")

    monkeypatch.setattr(tracker.client, "log_metric", gone)
    with pytest.warns(UserWarning, match=r"does not take figures \(nobody\)"):
        log.write(RECORD | {"step": 1})
    log.write(RECORD | {"step": 2})  # said once
    log.close()
    assert len(read_log(tmp_path / "log.jsonl")) == 2


def test_a_store_that_mlflow_cannot_open_is_refused_in_one_line(mlflow, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "other").as_uri())
    with pytest.raises(ValueError, match=r"^train.tracker=mlflow cannot begin [^\n]*TRACKING_URI"):
        runlog.open_tracker("mlflow", tmp_path, {})

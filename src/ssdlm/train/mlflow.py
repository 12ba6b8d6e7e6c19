"""Figures of a run for MLflow.  [mlflow] -> log

MLFLOW_TRACKING_URI says where they go; the experiment is `ssdlm`, or what MLFLOW_EXPERIMENT_NAME
says. A run that is resumed goes on with its own run there, which is known by the folder.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from ssdlm.values import first_line

FOLDER = "ssdlm.out"
"""The tag that has the folder of a run."""
LONGEST = 500
"""Characters of a setting that MLflow keeps."""


class MlflowRun:
    """A run of MLflow; a server that does not answer costs its figures, and not the training."""

    def __init__(self, out: Path, settings: dict[str, Any], step: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mlflow import MlflowClient

        self.is_silent = False
        try:
            self.client = MlflowClient()
            experiment = find_experiment(self.client)
            folder = str(out.resolve())
            found = find_run(self.client, experiment, folder) if step > 0 else None
            if found is None:
                tags = {FOLDER: folder}
                run = self.client.create_run(experiment, tags=tags, run_name=out.name)
                found = run.info.run_id
                for name, value in named_settings(settings).items():
                    self.client.log_param(found, name, value)
            else:
                self.client.update_run(found, status="RUNNING")
            self.run_id = found
        except Exception as error:  # each kind of store fails in its own way
            raise ValueError(
                f"train.tracker=mlflow cannot begin a run ({first_line(error)}); "
                "check MLFLOW_TRACKING_URI, or use tracker=none"
            ) from error

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Send the figures of a step."""
        try:
            for name, value in numbers.items():
                self.client.log_metric(self.run_id, name, value, step=step)
        except Exception as error:
            if not self.is_silent:
                said = f"mlflow does not take figures ({first_line(error)}); training goes on"
                warnings.warn(said, stacklevel=2)
            self.is_silent = True

    def finish(self) -> None:
        """End the run."""
        try:
            self.client.set_terminated(self.run_id)
        except Exception as error:
            warnings.warn(f"mlflow does not end the run ({first_line(error)})", stacklevel=2)


def find_experiment(client: Any) -> str:
    """Return the id of the experiment, made where there is none of the name."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ssdlm")
    known = client.get_experiment_by_name(name)
    return known.experiment_id if known is not None else client.create_experiment(name)


def find_run(client: Any, experiment: str, folder: str) -> str | None:
    """Return the newest run of a folder, None without one."""
    for run in client.search_runs([experiment], order_by=["attributes.start_time DESC"]):
        if run.data.tags.get(FOLDER) == folder:
            return run.info.run_id
    return None


def named_settings(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return settings by their dotted names, as text."""
    named: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            named |= named_settings(value, f"{prefix}{name}.")
        else:
            named[prefix + name] = str(value)[:LONGEST]
    return named

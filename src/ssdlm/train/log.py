"""What a run says while it runs: log.jsonl, TensorBoard, a tracker, and a line of progress.

train -> [runlog] -> OUT/log.jsonl, OUT/tensorboard/, the terminal
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssdlm.progress import bar

Record = dict[str, Any]


class Silent:
    """Takes records and says nothing: what the processes beside the main one have."""

    def write(self, record: Record) -> None:
        """Take the record of a step."""

    def show(self, step: int, steps: int) -> None:
        """Take note that so many steps are done, of how many."""

    def close(self) -> None:
        """Let go of what is open."""


class Records(Silent):
    """Appends to log.jsonl, passes the numbers on to whoever else listens, and shows progress."""

    def __init__(
        self, out: Path, *, step: int, steps: int, settings: Record, tensorboard: bool, tracker: str
    ):
        self.path = out / "log.jsonl"
        cut_log(self.path, step)
        self.pending = ""
        self.board = open_board(out, step) if tensorboard else None
        self.tracker = open_tracker(tracker, out, settings)
        self.latest: Record = {}
        self.open = ExitStack()
        self.bar = self.open.enter_context(bar("step", steps, done=step))

    def write(self, record: Record) -> None:
        """Write one record; what finds no room on the disk waits for the next."""
        self.pending += json.dumps(record) + "\n"
        try:
            append(self.path, self.pending)
            self.pending = ""
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            warnings.warn(f"no space left for {self.path}; its lines are held back", stacklevel=2)
        numbers = flatten(record)
        if self.board is not None:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, record["step"])
        if self.tracker is not None:
            self.tracker.log(numbers, step=record["step"])
        self.latest = record

    def show(self, step: int, steps: int) -> None:
        self.bar(step, describe(self.latest), steps)

    def close(self) -> None:
        self.open.close()
        if self.board is not None:
            self.board.close()
        if self.tracker is not None:
            self.tracker.finish()


def append(path: Path, text: str) -> None:
    """Append whole lines to a file, or nothing."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        if path.exists():
            os.truncate(path, before)
        raise


def cut_log(path: Path, step: int) -> None:
    """Drop every line past a step, and a line that was not finished, in one move."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if step_of(line) <= step]
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    os.replace(temporary, path)


def step_of(line: str) -> float:
    """Return the step a log line is of; infinite when it was cut off in writing."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def flatten(record: Record, prefix: str = "") -> dict[str, float]:
    """Return the numbers of a record, nested ones under `outer/inner`."""
    flat: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and prefix + name != "step":
            flat[prefix + name] = float(value)
    return flat


def open_board(out: Path, step: int) -> Any:
    """Return a TensorBoard writer that forgets what came after a step, None if not installed."""
    if find_spec("tensorboard") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)


def open_tracker(name: str, out: Path, settings: Record) -> Any:
    """Return a started run of wandb or trackio, None for none."""
    if name == "none":
        return None
    if find_spec(name) is None:
        raise ValueError(f"train.tracker={name} is not installed; pip install {name}")
    module = __import__(name)
    return module.init(project="ssdlm", name=out.name, config=settings, resume="allow")


def describe(record: Record) -> str:
    """Return a record's loss and speed in a few words; nothing before the first."""
    if not record:
        return ""
    return f"loss {record['loss']:.4f}  {record['tokens_per_s']:,.0f} tokens/s"

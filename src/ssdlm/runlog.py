"""What a run says while it runs: log.jsonl, TensorBoard, a tracker, and a line of progress.

train -> [runlog] -> OUT/log.jsonl, OUT/tensorboard/, the terminal
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Silent:
    """Takes records and says nothing: what the processes beside the main one have."""

    def write(self, record: Record) -> None:
        """Take the record of a step."""

    def show(self, step: int) -> None:
        """Take note that a step is done."""

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
        self.bar = Progress(steps, done=step)

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
        self.bar.record = record

    def show(self, step: int) -> None:
        self.bar.update(step)

    def close(self) -> None:
        self.bar.close()
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


class Progress:
    """A bar on a terminal that has `rich`; elsewhere a plain line now and then."""

    def __init__(self, steps: int, *, done: int, every_s: float = 10.0):
        self.steps, self.done, self.every_s = steps, done, every_s
        self.began = self.spoke = time.monotonic()
        self.record: Record = {}
        self.bar = open_bar(steps, done) if sys.stderr.isatty() else None

    def update(self, step: int) -> None:
        """Show how far the run is, and how it does by its last record."""
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=step, said=describe(self.record))
            return
        now = time.monotonic()
        if step == self.steps or now - self.spoke >= self.every_s:
            self.spoke = now
            left = (now - self.began) / (step - self.done) * (self.steps - step)
            told = f"step {step}/{self.steps}  {describe(self.record)}  {left:.0f} s left"
            print(told, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.stop()


def describe(record: Record) -> str:
    """Return a record's loss and speed in a few words; nothing before the first."""
    if not record:
        return ""
    return f"loss {record['loss']:.4f}  {record['tokens_per_s']:,.0f} tokens/s"


def open_bar(total: int, done: int) -> Any:
    """Return a started rich bar with one task, None where rich is not installed."""
    if find_spec("rich") is None:
        return None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    bar = RichProgress(*columns, console=Console(stderr=True))
    bar.add_task("training", total=total, completed=done, said="")
    bar.start()
    return bar

"""The log of a run: log.jsonl, TensorBoard, a tracker, and a line of progress.

loop -> [log] -> OUT/log.jsonl, OUT/tensorboard/, the terminal
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssdlm.config import MOST_OF_ANY, Config
from ssdlm.extras import lacking
from ssdlm.progress import bar
from ssdlm.settings import read
from ssdlm.storage.files import about, parse_object, write_text
from ssdlm.storage.jsonl import Line, append_jsonl, parse_jsonl
from ssdlm.storage.lines import file_lines
from ssdlm.train.mlflow import MlflowRun
from ssdlm.values import require

LOG, RUN = "log.jsonl", "run.json"
NUMBERS = ("loss", "block", "next_token", "bound", "tokens", "tokens_per_s")
"""What a reader of a log makes use of, beside `step` and a validation's `profile`."""

Record = dict[str, Any]
"""The figures of one step: numbers, and those of a validation one level deeper."""


@dataclass(frozen=True)
class Asked:
    """What a run was asked for: it goes on with the same only."""

    config: Config
    data: tuple[str, ...]
    """The digests of the stores."""


@dataclass(frozen=True)
class RunFile:
    """`run.json`; the settings as resolved, which it has too, are for people to read."""

    later_fields = True
    asked: Asked


class NoLog:
    """A log that drops everything: that of the processes beside the main one."""

    def announce(self, what: str) -> None:
        """Say what is about to be done."""

    def write(self, record: Record) -> None:
        """Write the record of a step."""

    def show_progress(self, step: int, steps: int) -> None:
        """Show how many steps are done, of how many."""

    def close(self) -> None:
        """Close what is open."""


class RunLog(NoLog):
    """The log of the main process: log.jsonl, and whoever else receives the numbers."""

    def __init__(
        self, out: Path, *, step: int, steps: int, tensorboard: bool = False, tracker: Any = None
    ):
        self.path = out / LOG
        cut_log(self.path, step)
        self.pending: list[Record] = []
        """Records for which the disk had no room yet."""
        self.board = open_board(out, step) if tensorboard else None
        self.tracker = tracker
        self.latest: Record = {}
        self.open = ExitStack()
        self.bar = self.open.enter_context(bar("step", steps, done=step))

    def write(self, record: Record) -> None:
        self.latest = record
        self.pending.append(record)
        try:
            append(self.path, self.pending)
            self.pending = []
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

    def announce(self, what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    def show_progress(self, step: int, steps: int) -> None:
        words = ""
        if self.latest:
            speed = self.latest["tokens_per_s"]
            words = f"loss {self.latest['loss']:.4f}  {speed:,.0f} tokens/s"
        self.bar(step, words, steps)

    def close(self) -> None:
        self.open.close()
        if self.board is not None:
            self.board.close()
        if self.tracker is not None:
            self.tracker.finish()


def append(path: Path, records: list[Record]) -> None:
    """Append records to a log: all of them or nothing."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with about(path), open(path, "a", encoding="utf-8") as file:
            append_jsonl(file, records)
    except OSError:
        if path.exists():
            os.truncate(path, before)
        raise


def read_log(path: Path) -> list[Record]:
    """Return a log's records; a last line that is still being written is left out."""
    if not path.exists():
        raise ValueError(f"{path} does not exist; give the --out folder of `ssdlm train`")
    lines = (line for line in file_lines(path) if line.endswith(b"\n"))
    return [check_record(line) for line in parse_jsonl(lines, source=str(path))]


def check_record(line: Line) -> Record:
    """Return a line of a log, or raise where one of its figures is not a number."""
    step, validation = line.value.get("step"), line.value.get("validation", {})
    try:
        require(0 <= read(int, step, "step") <= MOST_OF_ANY, "step", step, "it counts from 1")
        figures = read(dict[str, Any], validation, "validation")
        for pair in read(tuple[tuple[float, ...], ...], figures.get("profile", ()), "profile"):
            require(len(pair) == 2, "profile", pair, "it should have pairs of numbers")
        for name, value in (*line.value.items(), *figures.items()):
            if name in NUMBERS:
                read(float, value, name)
    except ValueError as error:
        raise ValueError(f"{line.where}: {error}; correct or remove it") from None
    return line.value


def cut_log(path: Path, step: int) -> None:
    """Drop every line past a step, and any that a kill left unfinished; the rest stays as it is."""
    if not path.exists():
        return

    def is_kept(line: bytes) -> bool:
        try:
            number = parse_object(line, where="", remedy="").get("step")
            return float(read(int, number, "step")) <= step
        except (ValueError, OverflowError):
            return False

    kept = [line + b"\n" for line in path.read_bytes().splitlines() if is_kept(line)]
    write_text(path, b"".join(kept).decode("utf-8"))


def flatten(record: Record, prefix: str = "") -> dict[str, float]:
    """Return the numbers of a record, nested ones under `outer/inner`."""
    flat: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and prefix + name != "step":
            flat[prefix + name] = float(value)
    return flat


def open_board(out: Path, step: int = 0) -> Any:
    """Return a TensorBoard writer that drops what came after a step, None if not installed."""
    if find_spec("tensorboard") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)


def open_tracker(name: str, out: Path, settings: Record, step: int = 0) -> Any:
    """Return a started run of a service, which has `log` and `finish`; None for none."""
    if name == "none":
        return None
    if find_spec(name) is None:
        raise lacking(name, f"train.tracker={name}")
    if name == "mlflow":
        return MlflowRun(out, settings, step)
    module = __import__(name)
    return module.init(project="ssdlm", name=out.name, config=settings, resume="allow")

"""A file of prompts to a file of texts, line by line, resumable.  api -> [batch] -> cli

While it works, finished lines gather in `OUTPUT.part`, in order; the last step is its renaming.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import torch

from ssdlm.engine.requests import Generation
from ssdlm.progress import Show, bar, ignore
from ssdlm.storage.jsonl import append_jsonl, parse_jsonl

PROMPTS_AT_A_TIME = {"cpu": 4}
"""How many prompts are written between two saves; elsewhere more go together."""
MANY = 256


@runtime_checkable
class Writer(Protocol):
    """What continues prompts: an SSDLM, or an autoregressive model beside it."""

    @property
    def device(self) -> torch.device: ...

    def plan(self, prompts: Any, **options: Any) -> Any:
        """Refuse bad options."""

    def generate(self, prompts: Any, **options: Any) -> Any:
        """Return a `Generation` for each sample of each prompt, prompt by prompt."""


def generate_file(
    model: Writer,
    source: Path,
    target: Path,
    *,
    num_samples: int = 1,
    settings: dict[str, Any],
    batch_size: int = 32,
    is_shown: bool = False,
    observe: Show = ignore,
    **options: Any,
) -> int:
    """Continue every prompt of `source` into `target` and return how many texts it holds.

    `settings` is what, with the prompts, decides the texts: a file written under others is not
    continued. Fields of an input line other than its prompt are carried over. `observe` is told how
    many prompts are done.
    """
    lines = read_prompts(source)
    run = digest(lines, settings | {"num_samples": num_samples})
    if target.exists():
        return finished(target, run, len(lines) * num_samples)
    refuse_bad(model, source, lines, num_samples=num_samples, **options)
    part = target.with_name(target.name + ".part")
    size = PROMPTS_AT_A_TIME.get(model.device.type, MANY)
    with alone(part) as file:
        done = resume(part, run, num_samples)
        with bar("generate", len(lines), done=done, is_shown=is_shown) as show:
            for start in range(done, len(lines), size):
                chunk = lines[start : start + size]
                prompts = [line["prompt"] for line in chunk]
                written: list[Generation] = model.generate(
                    prompts, num_samples=num_samples, batch_size=batch_size, **options
                )
                rows = (
                    chunk[index // num_samples] | asdict(text) | {"run": run}
                    for index, text in enumerate(written)
                )
                append_jsonl(file, rows)
                file.flush()
                os.fsync(file.fileno())
                show(start + len(chunk), "prompts")
                observe(start + len(chunk), "prompts")
        os.replace(part, target)
    return len(lines) * num_samples


@contextmanager
def alone(part: Path) -> Iterator[IO[str]]:
    """Give an unfinished file to append to, if no other process does."""
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("a", encoding="utf-8") as file:
        if not (takes_lock(file) and is_at(part, file)):
            raise ValueError(f"{part} is being written by another process; wait for it or stop it")
        yield file


def takes_lock(file: IO[str]) -> bool:
    """Lock a file for this process, where files can be locked; tell whether it is not another's."""
    if find_spec("fcntl") is None:
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(path: Path, file: IO[str]) -> bool:
    """Tell whether an open file still has that name: another process may have finished it."""
    return path.exists() and os.path.samestat(os.stat(path), os.fstat(file.fileno()))


def refuse_bad(model: Writer, source: Path, lines: list[dict[str, Any]], **options: Any) -> None:
    """Raise on options, or on a prompt, that cannot be written to, before any file is begun."""
    model.plan([lines[0]["prompt"]], **options)
    try:
        model.plan([line["prompt"] for line in lines], **options)
    except ValueError:
        for number, line in enumerate(lines, start=1):
            try:
                model.plan([line["prompt"]], **options)
            except ValueError as error:
                raise ValueError(f"prompt {number} of {source}: {error}") from error
        raise


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON-lines file, each an object with a text under `prompt`."""
    lines = []
    for where, line in parse_jsonl(path.read_bytes().splitlines(), source=str(path)):
        if not isinstance(line.get("prompt"), str):
            raise ValueError(f'{where} has no text "prompt"; correct or remove it')
        lines.append(line)
    if not lines:
        raise ValueError(f'{path} has no prompts; write {{"prompt": "..."}} on each line')
    return lines


def digest(lines: list[dict[str, Any]], settings: dict[str, Any]) -> str:
    """Return a short name for a run: these prompts under these settings."""
    told = json.dumps([lines, settings], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def finished(target: Path, run: str, count: int) -> int:
    """Return the number of texts if the file is this run's, complete; refuse any other file."""
    lines = target.read_bytes().splitlines()
    if len(lines) == count and all(is_of(line, run) for line in lines):
        return count
    raise ValueError(
        f"{target} exists and was not written from these prompts with these settings; "
        "remove it or choose another name"
    )


def resume(part: Path, run: str, num_samples: int) -> int:
    """Cut an unfinished file after its last whole prompt and return how many prompts it keeps."""
    lines = part.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith(b"\n")]
    if not all(is_of(line, run) for line in kept):
        raise ValueError(
            f"{part} is the beginning of another run; remove it or choose another output"
        )
    done = len(kept) // num_samples
    with part.open("r+b") as file:
        file.truncate(sum(map(len, kept[: done * num_samples])))
    return done


def is_of(line: bytes, run: str) -> bool:
    """Tell whether a line of output was written by this run."""
    try:
        return json.loads(line).get("run") == run
    except (ValueError, AttributeError):
        return False

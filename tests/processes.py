"""Training, or a command, in processes of their own, to be killed or to work together.

They are forked from a server that has imported everything, so that one is there at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ssdlm.data.prepare import prepare
from tests.tiny import tokenizer

WORDS = ["the", "river", "had", "been", "quiet", "for", "years", "and", "nobody", "knew", "why"]
LIMIT = 900
"""Seconds after which a process hangs, on the slowest and busiest of machines."""
SMALL = ("D=16", "num_layers=1", "batch=4", "train.steps=12", "save_seconds=0", "save_every=4")
"""Overrides of `tiny` that make a step take milliseconds."""
PRELOADED = ["ssdlm.train.shards", "ssdlm.api", "accelerate", "torch.distributed.fsdp", "pytest"]


def make_store(folder: Path, *, documents: int = 60, turn: int = 0) -> Path:
    """Prepare a little text; `turn` makes it another one."""
    lines = [
        " ".join(WORDS[(i * j + i + turn) % len(WORDS)] for j in range(1, 30))
        for i in range(documents)
    ]
    source = folder.with_suffix(".txt")
    source.write_text("\n\n".join(lines), encoding="utf-8")
    prepare([source], tokenizer=tokenizer(), out=folder, holdout=0.05, deduplicate="none")
    return folder


def die_at_rename(point: int) -> None:
    """Let this process be killed before (odd point) or after (even) a file gets its final name."""
    real, calls = os.replace, 0

    def replace(old: Any, new: Any) -> None:
        nonlocal calls
        calls += 1
        if 2 * calls - 1 == point:
            os.kill(os.getpid(), signal.SIGKILL)
        real(old, new)
        if 2 * calls == point:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace


def end_at_rename(point: int, function: Callable[..., Any], *given: Any) -> int | None:
    """Call a function in a process that is killed at this point; return how the process ended."""
    process = server().Process(target=call_deadly, args=(point, function, given))
    process.start()
    process.join(LIMIT)
    return process.exitcode


def call_deadly(point: int, function: Callable[..., Any], given: Sequence[Any]) -> None:
    """Call a function until a rename kills the process; point 0 is none."""
    die_at_rename(point)
    function(*given)


def spawn(overrides: list[str], data: list[Path], out: Path, **options: Any) -> Any:
    """Start `tiny` with overrides in a process of its own."""
    process = server().Process(target=work, args=(overrides, data, out), kwargs=options)
    process.start()
    return process


def server() -> Any:
    """Return what forks processes that have imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def work(
    overrides: list[str],
    data: list[Path],
    out: Path,
    *,
    environment: dict[str, str] | None = None,
    bomb: tuple[str, int] | None = None,
) -> None:
    """Train; with a bomb, die by SIGKILL when a function is called for the n-th time."""
    os.environ.update(environment or {})
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    if bomb is not None:
        plant(*bomb)
    from ssdlm.train import configure, train

    train(configure("tiny", overrides), data=data, out=out)


def plant(place: str, count: int) -> None:
    """Make the count-th call of `module:function` be the process's last act."""
    import importlib

    module_name, _, name = place.partition(":")
    module = importlib.import_module(module_name)
    function: Callable[..., Any] = getattr(module, name)
    calls = 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    setattr(module, name, deadly)


def run_together(
    overrides: list[str], data: list[Path], out: Path, *, count: int, **options: Any
) -> None:
    """Train in several processes that talk through gloo, as a launcher would start them."""
    processes = [
        spawn(overrides, data, out, environment=environment, **options)
        for environment in environments(count)
    ]
    for process in processes:
        process.join(LIMIT)
        assert process.exitcode == (-signal.SIGKILL if options.get("bomb") else 0)


def environments(count: int) -> list[dict[str, str]]:
    """Return what a launcher of so many processes tells each of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    return [
        shared | {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": str(count)}
        for rank in map(str, range(count))
    ]


def start_together(
    function: Callable[..., None], *inputs: Any, count: int, **options: Any
) -> list[int | None]:
    """Run a function in several processes of a launcher; return how each ended."""
    processes = []
    for environment in environments(count):
        given = (environment, function, inputs, options)
        processes.append(server().Process(target=call, args=given))
        processes[-1].start()
    for process in processes:
        process.join(LIMIT)
    return [process.exitcode for process in processes]


def call(
    environment: dict[str, str],
    function: Callable[..., None],
    inputs: Sequence[Any],
    options: dict[str, Any],
) -> None:
    """Call a function as a launcher's process."""
    os.environ.update(environment)
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    function(*inputs, **options)

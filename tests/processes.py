"""Training in processes of their own, to be killed or to work together.

They are forked from a server that has imported everything, so that one is there at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssdlm.data.prepare import prepare
from tests.tiny import tokenizer

WORDS = ["the", "river", "had", "been", "quiet", "for", "years", "and", "nobody", "knew", "why"]
LIMIT = 900
"""Seconds after which a process hangs, on the slowest and busiest of machines."""
SMALL = ("D=16", "num_layers=1", "batch=4", "train.steps=12", "save_seconds=0", "save_every=4")
"""Overrides of `tiny` that make a step take milliseconds."""


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


def spawn(overrides: list[str], data: list[Path], out: Path, **options: Any) -> Any:
    """Start `tiny` with overrides in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ssdlm.train", "accelerate", "torch.distributed.fsdp"])
    process = context.Process(target=work, args=(overrides, data, out), kwargs=options)
    process.start()
    return process


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    processes = []
    for rank in map(str, range(count)):
        own = {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": str(count)}
        processes.append(spawn(overrides, data, out, environment=shared | own, **options))
    for process in processes:
        process.join(LIMIT)
        assert process.exitcode == (-signal.SIGKILL if options.get("bomb") else 0)

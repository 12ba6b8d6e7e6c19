"""From the command to its text on a CPU: where the time goes, and what a busy neighbour costs.

    python benchmarks/start.py [--model M] [--length 50] [--repeats 3] [--no-neighbour]

The first table is one process, part by part, in seconds of a clock and of a processor: on a machine
that others use, trust the second. The other runs `ssdlm generate` by turns alone and beside a loop
that keeps one core busy, with the threads that the command chooses and with all of them. Prints one
JSON line at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROMPT = "The movie was"
LOOP = "while True: pass"


class Clock:
    """Seconds of a clock and of a processor, part by part."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[float, float]] = {}
        self.last = time.perf_counter(), time.process_time()

    def mark(self, name: str) -> None:
        """End a part."""
        now = time.perf_counter(), time.process_time()
        self.parts[name] = now[0] - self.last[0], now[1] - self.last[1]
        self.last = now


def run_parts(model_name: str, length: int) -> dict[str, Any]:
    """Do what the command does, one part after another; return the seconds of each."""
    clock = Clock()
    from ssdlm.cli import starting

    with starting.without_collecting():
        import torch

        clock.mark("import torch")
        import ssdlm.api as api
        from ssdlm.storage import checkpoint
        from ssdlm.tokenizer import load_tokenizer

        clock.mark("import ssdlm")
        folder = checkpoint.find(model_name)
        tokenizer = load_tokenizer(folder)
        clock.mark("tokenizer")
        with starting.one_thread():
            denoiser = checkpoint.load_denoiser(folder, device="cpu", dtype="auto")
            clock.mark("weights")
            denoiser.store_for_cpu()
        clock.mark("layout for a CPU")
    model = api.SSDLM(denoiser, tokenizer, checkpoint.load_options(folder))
    requests = model.requests(PROMPT, {"length": length})
    starting.choose_threads(denoiser, requests[0].options)
    text = next(iter(model.engine.write(requests)))[1]
    clock.mark("text")
    passes = round(text.passes_per_token * len(text.tokens))
    return {"parts": clock.parts, "passes": passes, "threads": torch.get_num_threads()}


@contextmanager
def neighbour(core: int | None) -> Iterator[None]:
    """Keep a core busy, the one given where processes can be bound to one."""
    if core is None:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", LOOP])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {core})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def seconds(model_name: str, length: int, threads: int | None) -> float:
    """Return how long the whole command takes."""
    environment = dict(os.environ)
    environment.pop("OMP_NUM_THREADS", None)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "ssdlm", "generate", PROMPT, "--length", str(length)]
    command += ["--model", model_name, "--device", "cpu", "--seed", "1"]
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def run_neighbour(model_name: str, length: int, repeats: int) -> list[dict[str, Any]]:
    """Return the median seconds of the command alone and beside a busy core, taken by turns."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    rows = []
    for threads in (None, len(cores)):
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(repeats):
            for is_busy in times:
                with neighbour(cores[-1] if is_busy else None):
                    times[is_busy].append(seconds(model_name, length, threads))
        alone, beside = (statistics.median(times[is_busy]) for is_busy in times)
        rows.append({"threads": threads, "alone_s": alone, "beside_s": beside})
    return rows


def main() -> None:
    """Print both tables and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--model", default="builtin:mini")
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-neighbour", action="store_true")
    arguments = parser.parse_args()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found = run_parts(arguments.model, arguments.length)
    print(f"{'part':20}{'seconds':>10}{'of a processor':>18}")
    for name, (wall, used) in found["parts"].items():
        print(f"{name:20}{wall:10.2f}{used:18.2f}")
    rows = []
    if not arguments.no_neighbour:
        rows = run_neighbour(arguments.model, arguments.length, arguments.repeats)
        print(f"\n{'threads':20}{'alone, s':>10}{'beside a loop, s':>18}{'ratio':>8}")
        for row in rows:
            alone, beside = row["alone_s"], row["beside_s"]
            name = str(row["threads"] or "as chosen")
            print(f"{name:20}{alone:10.2f}{beside:18.2f}{beside / alone:8.2f}")
    print(json.dumps(found | {"rows": rows, "cores": os.cpu_count(), "load_before": load}))


if __name__ == "__main__":
    main()

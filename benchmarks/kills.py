"""What elastic restarts leave of a run.  python benchmarks/kills.py [--kills 20] [--processes 2]

Trains a tiny model in shards under torchrun, which starts all workers again when one dies, and
kills one of them by SIGKILL, any of them, at random moments: some while they start, some after a
few steps, whatever is being written then. The log must end with the losses of a run that nobody
disturbed. Prints a line a kill and, as its last line, JSON. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from runs import write_store

SETTINGS = ("D=16", "num_layers=1", "batch=4", "save_seconds=0", "save_every=3", "keep=2")
SETTINGS += ("ema=0.9", "sharding=fsdp", "log_every=1", "validate_sequences=0", "device=cpu")
STEPS_PER_KILL = 16
"""More than a run can gain before a kill, so that it does not end too soon."""
MOST_STEPS = 12
"""How many steps a run may take before the next kill."""
STARTING = 8.0
"""Seconds that workers take to start, about."""


def launch(out: Path, store: Path, settings: list[str], *, processes: int, restarts: int) -> Any:
    """Start torchrun with a training run, its output in a file beside OUT."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    command += ["--monitor-interval", "0.1", "-m", "ssdlm", "train", "--recipe", "tiny"]
    command += ["--data", str(store), "--out", str(out), *settings]
    with open(out.with_suffix(".err"), "w") as errors:
        return subprocess.Popen(
            command,
            stdout=errors,
            stderr=errors,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )


def workers(launcher: int) -> set[int]:
    """Return the processes that a launcher has started and that still run."""
    try:
        words = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        return {int(word) for word in words if is_worker(int(word))}
    except OSError:
        return set()


def is_worker(process: int) -> bool:
    """Tell whether a process has a rank, and has not ended."""
    try:
        is_dead = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        return not is_dead and b"\0RANK=" in Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False


def last_step(out: Path) -> int:
    """Return the last step in a run's log, 0 without one."""
    try:
        return int(json.loads((out / "log.jsonl").read_text().splitlines()[-1])["step"])
    except (OSError, IndexError, ValueError, KeyError):
        return 0


def disturb(run: Any, out: Path, *, kills: int, draw: random.Random, seconds: float) -> list[Any]:
    """Kill workers of a run at random moments; return when, and what the log had reached."""
    began, done = time.monotonic(), []
    known: set[int] = set()  # who was there at the kill before

    def wait(is_there: Callable[[], bool]) -> bool:
        """Return whether something came before the run ended or its time was over."""
        while run.poll() is None and time.monotonic() - began < seconds:
            if is_there():
                return True
            time.sleep(0.01)
        return False

    for number in range(kills):
        if not wait(lambda known=frozenset(known): bool(workers(run.pid) - known)):
            break
        first = last_step(out)
        if number % 3 == 2:  # while they start
            until = time.monotonic() + draw.uniform(0, STARTING)
            moment = wait(lambda until=until: time.monotonic() > until)
        else:
            target = first + draw.randint(1, MOST_STEPS)
            moment = wait(lambda first=target: last_step(out) >= first)
            time.sleep(draw.uniform(0, 0.1))
        running = workers(run.pid)
        if not moment or not running:
            break
        victim = draw.choice(sorted(running))
        os.kill(victim, signal.SIGKILL)
        known |= running
        done.append({"seconds": round(time.monotonic() - began, 2), "step": last_step(out)})
        print(
            f"kill {len(done)} after {done[-1]['seconds']} s, step {done[-1]['step']}", flush=True
        )
    wait(lambda: False)
    if run.poll() is None:
        stop(run)
    return done


def stop(run: Any) -> None:
    """End a run whose time is over, its workers first."""
    for process in workers(run.pid):
        os.kill(process, signal.SIGKILL)
    run.kill()
    run.wait()


def losses(out: Path) -> list[float]:
    """Return the losses of a log."""
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900.0, help="in all")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = np.random.default_rng(0).integers(64, size=20_000)
        store = write_store(folder / "store", tokens[:-100], tokens[-100:], V=64)
        settings = [*SETTINGS, f"train.steps={STEPS_PER_KILL * args.kills}"]
        given = {"processes": args.processes}
        calm = launch(folder / "calm", store, settings, restarts=0, **given)
        calm.wait(args.seconds)
        run = launch(folder / "run", store, settings, restarts=2 * args.kills, **given)
        draw = random.Random(args.seed)
        seconds = args.seconds
        done = disturb(run, folder / "run", kills=args.kills, draw=draw, seconds=seconds)
        if run.returncode != 0:
            print((folder / "run.err").read_text()[-3000:], file=sys.stderr)
        pairs = list(zip(losses(folder / "calm"), losses(folder / "run"), strict=False))
        found = {
            "kills": len(done),
            "status": run.returncode,
            "steps": [len(losses(folder / which)) for which in ("calm", "run")],
            "largest_difference": max(abs(one - other) for one, other in pairs),
            "moments": done,
        }
    print(json.dumps(found))
    is_alike = found["steps"][0] == found["steps"][1] and found["largest_difference"] < 1e-4
    sys.exit(not (is_alike and len(done) == args.kills and run.returncode == 0))


if __name__ == "__main__":
    main()

"""Tokens per second of two trees of this project, by turns on one machine: before a change, after.

    python benchmarks/trees.py BEFORE/src AFTER/src --rounds 5 [--device cuda] [--only "one,"]

A process of its own times all texts of a tree, each by the median of several calls after one that
gets everything ready and one that records; a row has the medians over the processes of each tree,
and the best. On a CPU seconds are the processor's, which other programs disturb little: give
OMP_NUM_THREADS=1. Both trees need the weights of builtin:mini.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

PROMPTS = ("The river had", "She was", "In the year", "It is a film")
REGEX = r"(( [a-z]+){3,8}\.){2,6}"
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "sliding window of 4": {"width": 4.0},
    "staggered": {"grid": "staggered", "T": 63, "width": 8.0},
    "uniform": {"grid": "uniform", "T": 25},
    "autoregressive": {"mode": "autoregressive"},
    "regular expression": {"regex": REGEX},
    "guided": {"control": "sentiment=positive"},
}
TOGETHER = ("default", "autoregressive", "regular expression", "guided")
"""What is also timed for several texts at once."""
Figures = dict[str, list[float]]


def cases(together: int) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return how many texts there are of each row, and their options."""
    found = {f"one, {name}": (1, own) for name, own in WAYS.items()}
    return found | {f"{together}, {name}": (together, WAYS[name]) for name in TOGETHER}


def time_tree(device: str, length: int, calls: int, together: int, only: str) -> None:
    """Print tokens per second of every row, in the tree that Python finds."""
    from ssdlm import SSDLM

    clock = time.process_time if device == "cpu" else time.perf_counter
    model = SSDLM.from_pretrained("builtin:mini", device=device)
    for name, (count, options) in cases(together).items():
        if not any(part in name for part in only.split("|")):
            continue
        prompts = [f"{PROMPTS[at % len(PROMPTS)]} {at}" for at in range(count)]
        took = []
        for seed in range(calls + 2):
            began = clock()
            model.generate(prompts, length=length, seed=seed, batch_size=count, **options)
            took.append(clock() - began)
        print(json.dumps([name, count * length / median(took[2:])]), flush=True)


def table(before: Figures, after: Figures) -> list[str]:
    """Return the rows: medians over processes and the best, of both trees, and their ratios."""
    lines = ["| texts | before | after | ratio | best before | best after | ratio |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for name in before:
        cells = []
        for pick in (median, max):
            old, new = (pick(figures[name]) for figures in (before, after))
            cells += [f"{old:,.0f}", f"{new:,.0f}", f"{new / old:.2f}"]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs="*", metavar="FOLDER", help="before and after")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each tree")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--together", type=int, default=32, help="texts at once")
    parser.add_argument("--only", default="", help="rows whose names contain this, or this|that")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(argv)
    how = (given.device, given.length, given.calls, given.together, given.only)
    if not given.trees:
        time_tree(*how)
        return
    if len(given.trees) != 2:
        parser.error(f"{len(given.trees)} trees; give two folders, before and after")
    names = "--device", "--length", "--calls", "--together", "--only"
    flags = zip(names, map(str, how), strict=True)
    command = [sys.executable, __file__, *(word for pair in flags for word in pair)]
    found: list[Figures] = [{}, {}]
    for _ in range(given.rounds):
        for tree, figures in zip(given.trees, found, strict=True):
            env = os.environ | {"PYTHONPATH": tree}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{tree}: {done.stderr.strip().rpartition(chr(10))[2]}")
            for name, rate in map(json.loads, done.stdout.splitlines()):
                figures.setdefault(name, []).append(rate)
            print(tree, done.stdout.replace("\n", " "), file=sys.stderr, flush=True)
    print("\n".join(table(*found)))


if __name__ == "__main__":
    main()

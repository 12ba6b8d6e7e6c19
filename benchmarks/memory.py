"""Whether `ssdlm estimate` knows the memory.  python benchmarks/memory.py [--seconds 170] [--tiny]

Takes three optimiser steps of several models on one GPU and compares the peak of allocated memory
with what `ssdlm.train.costs` counts. Prints a table and, as its last line, JSON. A case begins only
while there is time left for it; the compiled ones, which take longest, come last. Each is as in a
process of its own: torch forgets what it compiled, as after eight shapes it would fuse no more, and
cuDNN's attention is on again, which the paper's recipe turns off.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runs import free, make_run, write_store

from ssdlm.config import Config
from ssdlm.settings import override
from ssdlm.train.costs import memory_of
from ssdlm.train.loop import read_examples, train_step
from ssdlm.train.run import Run
from train import Case, config_of

STEPS = 3
LONGEST_CASE = {True: 45.0, False: 15.0}
"""Seconds that a case may take, compiled or not."""


@dataclass(frozen=True)
class Trial:
    """A model, and how it is trained."""

    case: Case
    settings: tuple[str, ...] = ()
    is_compiled: bool = False

    @property
    def name(self) -> str:
        words = [f"D={self.case.D}", f"layers={self.case.num_layers}", f"V={self.case.V}"]
        words += [f"micro_batch={self.case.micro_batch}", *self.settings]
        return " ".join([self.case.name, *words, *["compiled"] * self.is_compiled])


def block(V: int, D: int, num_layers: int, share: int) -> Case:
    return Case("blocks", "all blocks", V, D, num_layers, max(1, D // 64), share, share)


def paper(V: int, D: int, num_layers: int, share: int) -> Case:
    return Case("paper", "one block", V, D, num_layers, max(1, D // 64), share, share)


TRIALS = (
    Trial(block(8192, 512, 8, 128)),
    Trial(block(50265, 768, 12, 64)),
    Trial(paper(50265, 768, 12, 64)),
    Trial(paper(50265, 1024, 24, 128)),
    Trial(block(8192, 512, 8, 128), ("recompute=true",)),
    Trial(paper(50265, 1024, 24, 256), ("recompute=true",)),
    Trial(block(8192, 512, 8, 64), ("precision=fp32",)),
    Trial(paper(50265, 768, 12, 64), ("precision=fp32",)),
    Trial(block(50265, 1536, 24, 16), ("recompute=true",)),
    Trial(block(8192, 512, 8, 256), is_compiled=True),
    Trial(paper(50265, 768, 12, 128), is_compiled=True),
    Trial(block(50265, 1024, 24, 96), is_compiled=True),
)


def measure(trial: Trial, folder: Path) -> dict[str, Any]:
    """Take some steps of one model; return the peak of memory and what was expected."""
    case = trial.case
    config = override(config_of(case, is_compiled=trial.is_compiled), trial.settings)
    tokens = np.random.default_rng(0).integers(case.V, size=100_000)
    store = write_store(folder, tokens[:-1000], tokens[-1000:], V=case.V)
    is_cuda = torch.cuda.is_available()
    torch.backends.cuda.enable_cudnn_sdp(True)
    free()
    run = make_run(config, store)
    run.step = longest_step(run)
    for _ in range(STEPS):
        train_step(run)  # the same step each time, so that a context is as long as it may be
    peak = torch.cuda.max_memory_allocated() if is_cuda else 0
    expected = memory_of(resolved(run), num_gpus=1)
    return {
        "peak_gib": peak / 2**30,
        "expected_gib": expected.total / 2**30,
        "ratio": expected.total / peak if peak else None,
        "moment": expected.moment,
        "parts": expected.parts,
    }


def longest_step(run: Run) -> int:
    """Return a step whose contexts are about as long as they may be; 0 where all are alike."""
    if run.config.train.objective == "all_blocks":
        return 0
    first, longest = np.arange(1), {}
    for run.step in range(200):
        examples = read_examples(run, first)
        longest[run.step] = int(run.objective.draw_splits(examples).max())  # pyright: ignore
    return max(longest, key=longest.__getitem__)


def resolved(run: Run) -> Config:
    """Return the config with the sizes that the run's network has."""
    return Config(run.denoiser.config, run.config.data, run.config.train)


def shrunk(trial: Trial) -> Trial:
    """Return a trial small enough for a CPU and a test."""
    make = block if trial.case.name == "blocks" else paper
    return Trial(make(211, 64, 2, 2), trial.settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=170.0, help="in all")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    args = parser.parse_args()
    began, rows = time.monotonic(), []
    for trial in TRIALS[:3] if args.tiny else TRIALS:
        left = args.seconds - (time.monotonic() - began)
        if left < LONGEST_CASE[trial.is_compiled]:
            rows.append({"name": trial.name, "error": "no time left"})
            continue
        trial = shrunk(trial) if args.tiny else trial
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(trial, Path(folder))
        except torch.OutOfMemoryError as error:
            found = {"error": str(error).splitlines()[0]}
        rows.append({"name": trial.name, **found})
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "parts"}), flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(json.dumps({"device": device, "torch": torch.__version__, "results": rows}))


if __name__ == "__main__":
    main()

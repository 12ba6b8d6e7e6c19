"""How fast training is.  python benchmarks/train.py [--cases mini,paper,blocks] [--seconds 8]

Times the library's own optimiser step (reading windows, drawing noise, forward, backward, clipping,
update, moving average) on random tokens, on one GPU, after compiling. Prints a table and, as its
last line, JSON. Each case runs in a process of its own; where memory runs out the batch is halved,
and where compiling fails the case is timed without.

FLOPs are what the mathematics needs, as `ssdlm.train.costs` counts them. MFU is over 989 TFLOP/s,
dense bf16.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runs import Pace, count_parameters, make_run, write_store

from ssdlm.config import BlockConfig, Config, EncoderConfig
from ssdlm.settings import override
from ssdlm.train.costs import block_flops, encoder_flops
from ssdlm.train.loop import read_examples, train_step
from ssdlm.train.recipes import mini, paper_large
from ssdlm.train.run import Run

PEAK = 989e12
WARM_UP, LEAST_STEPS = 6, 20
"""Optimiser steps before and while the clock runs; a CPU takes two at least."""
ROBERTA = {"model_type": "roberta", "type_vocab_size": 1, "layer_norm_eps": 1e-5}
ROBERTA |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
QUIET = ("validate_sequences=0", "tensorboard=false", "context_share=0")


@dataclass(frozen=True)
class Case:
    """A model, its vocabulary and how it is trained."""

    name: str
    what: str
    V: int
    D: int
    num_layers: int
    num_heads: int
    batch: int
    micro_batch: int
    max_len: int = 200


CASES = {
    case.name: case
    for case in (
        Case("mini", "recipe mini", 8192, 512, 8, 8, 256, 256),
        Case("paper", "RoBERTa-large size, recipe of the paper", 50265, 1024, 24, 16, 512, 256),
        Case("blocks", "RoBERTa-large size, all blocks", 50265, 1024, 24, 16, 384, 192),
    )
}


def config_of(case: Case, *, is_compiled: bool) -> Config:
    """Return the whole config of a case; a CPU has no bf16 units."""
    settings = [*QUIET, f"batch={case.batch}", f"micro_batch={case.micro_batch}"]
    settings += [f"compile={str(is_compiled).lower()}", f"max_len={case.max_len}"]
    settings += [f"precision={'bf16' if torch.cuda.is_available() else 'fp32'}"]
    sizes = {"num_layers": case.num_layers, "num_heads": case.num_heads, "D": case.D}
    if case.name != "paper":
        return override(mini(), [*settings, *(f"{key}={size}" for key, size in sizes.items())])
    backbone = ROBERTA | {
        "vocab_size": case.V,
        "hidden_size": case.D,
        "num_hidden_layers": case.num_layers,
        "num_attention_heads": case.num_heads,
        "intermediate_size": 4 * case.D,
        "max_position_embeddings": 514,
    }
    config = override(paper_large(), [*settings, "init=", f"share_c={case.micro_batch}"])
    return Config(EncoderConfig(backbone=backbone), config.data, config.train)


def flops_of_step(run: Run) -> float:
    """Return the FLOPs of the current step, with the context lengths that it draws."""
    model, train = run.config.model, run.config.train
    if isinstance(model, BlockConfig):
        return train.batch * block_flops(model, run.config.data.max_len)
    lengths = run.objective.draw_splits(read_examples(run, np.arange(train.batch)))
    return sum(encoder_flops(model.backbone, model.B, c) for c in lengths.tolist())


def measure(case: Case, *, seconds: float, is_compiled: bool, folder: Path) -> dict[str, Any]:
    """Train one case for a while; return its figures."""
    tokens = np.random.default_rng(0).integers(case.V, size=400_000)
    store = write_store(folder, tokens[:-1000], tokens[-1000:], V=case.V)
    run = make_run(config_of(case, is_compiled=is_compiled), store)
    pace, train = Pace(run.accelerator.device), run.config.train
    began = time.perf_counter()
    take(run, pace, count=WARM_UP if pace.is_cuda else 1)
    warmed = time.perf_counter()
    first, flops, least = run.step, 0.0, LEAST_STEPS if pace.is_cuda else 2
    while run.step - first < least or time.perf_counter() - warmed < seconds:
        flops += flops_of_step(run)
        take(run, pace, count=1)
    pace.finish()
    elapsed, steps = time.perf_counter() - warmed, run.step - first
    is_block = isinstance(run.config.model, BlockConfig)
    supervised = run.config.data.max_len if is_block else run.config.model.B
    sequences = steps * train.batch / elapsed
    memory = torch.cuda.max_memory_allocated() if pace.is_cuda else 0
    return asdict(case) | {
        "parameters": count_parameters(run.denoiser),
        "supervised_tokens_per_s": sequences * supervised,
        "sequences_per_s": sequences,
        "tflops_per_s": flops / elapsed / 1e12,
        "mfu": flops / elapsed / PEAK,
        "peak_memory_gib": memory / 2**30,
        "steps": steps,
        "ms_per_step": 1000 * elapsed / steps,
        "warm_up_s": warmed - began,
        "is_compiled": is_compiled,
    }


def take(run: Run, pace: Pace, *, count: int) -> None:
    """Take some optimiser steps; when there are many, wait until they are done."""
    for _ in range(count):
        train_step(run)
        run.step += 1
        pace.step()
    if count > 1:
        pace.finish()


def shrunk(case: Case) -> Case:
    """Return a case small enough for a CPU and a test."""
    return Case(case.name, case.what, min(case.V, 517), 32, 2, 2, 4, 2, 50)


def run_apart(args: argparse.Namespace, case: Case) -> dict[str, Any]:
    """Measure a case in another process, with less where it fails; return figures or the error."""
    batch, is_compiled, error = case.micro_batch, not args.no_compile, ""
    while batch >= max(1, case.micro_batch // 4):
        command = [sys.executable, __file__, "--one", case.name, "--seconds", str(args.seconds)]
        command += ["--micro-batch", str(batch)]
        command += ["--tiny"] * args.tiny + ["--no-compile"] * (not is_compiled)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        error = done.stderr[-3000:]
        print(f"{case.name}: failed with micro-batch {batch}\n{error}", file=sys.stderr, flush=True)
        if "OutOfMemoryError" in error:
            batch //= 2
        elif is_compiled:
            is_compiled = False
        else:
            break
    return {"name": case.name, "error": error.strip().splitlines()[-1:]}


def show(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    if "error" in row:
        return f"{row['name']:8} failed: {row['error']}"
    return (
        f"{row['name']:8}{row['parameters'] / 1e6:>9.1f}{row['supervised_tokens_per_s']:>14,.0f}"
        f"{row['sequences_per_s']:>10,.0f}{row['mfu']:>8.1%}{row['peak_memory_gib']:>9.1f}"
        f"{row['ms_per_step']:>10.1f}{row['warm_up_s']:>9.1f}  {row['what']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES), help="which, with commas")
    parser.add_argument("--seconds", type=float, default=8.0, help="of timing, each case")
    parser.add_argument("--no-compile", action="store_true", help="time it without torch.compile")
    parser.add_argument("--micro-batch", type=int, default=0, help="instead of a case's own")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = [args.one] if args.one else args.cases.split(",")
    cases = [shrunk(CASES[name]) if args.tiny else CASES[name] for name in names]
    if args.micro_batch:
        many = [args.micro_batch * (case.batch // case.micro_batch) for case in cases]
        sizes = [{"batch": batch, "micro_batch": args.micro_batch} for batch in many]
        cases = [Case(**(asdict(case) | size)) for case, size in zip(cases, sizes, strict=True)]
    if args.one:
        is_compiled = torch.cuda.is_available() and not args.no_compile
        with tempfile.TemporaryDirectory() as folder:
            found = measure(
                cases[0], seconds=args.seconds, is_compiled=is_compiled, folder=Path(folder)
            )
        print(json.dumps(found))
        return
    print(f"{'case':8}{'M params':>9}{'sup. tok/s':>14}{'seq/s':>10}{'MFU':>8}", end="")
    print(f"{'GiB':>9}{'ms/step':>10}{'warm s':>9}")
    rows = []
    for case in cases:
        rows.append(run_apart(args, case))
        print(show(rows[-1]), flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(json.dumps({"device": device, "torch": torch.__version__, "results": rows}))


if __name__ == "__main__":
    main()

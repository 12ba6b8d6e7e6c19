"""What held-out text costs a model: the context stream's exact loss, and the diffusion's bound.

Windows of 200 tokens from the hold-outs of token stores, in nats per token and bits per byte; the
bound is taken along the path on which all positions share a level and, with --width, along the path
of a window that moves through the blocks, by --points random times (that one needs hundreds).

    python benchmarks/likelihood.py builtin:mini --data data/reviews data/books data/articles
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np
import torch

from ssdlm.data.shards import TokenStore
from ssdlm.data.windows import example_seeds, held_out
from ssdlm.diffusion import likelihood
from ssdlm.storage import checkpoint
from ssdlm.train import levels, validation

LENGTH = 200
POINTS = 16


def window_bound(denoiser: Any, args: argparse.Namespace, rows: torch.Tensor) -> float:
    """Return the bound along the path of a window, in nats per token."""
    B, num_noised = denoiser.config.B, LENGTH - denoiser.num_given
    blocks = levels.block_index(num_noised, B=B)
    path = likelihood.staggered(levels.place_in_block(blocks), B=B, width=args.width)
    total, generator = 0.0, torch.Generator().manual_seed(0)
    for start in range(0, len(rows), args.batch):
        some = rows[start : start + args.batch]
        seeds = example_seeds(1, 2, np.arange(start, start + len(some))).to(denoiser.device)
        draw = validation.noise_of(denoiser, seeds, num_noised)
        ask = likelihood.all_blocks(denoiser, some, blocks, draw)
        rule = likelihood.stratified(torch.rand(args.points, generator=generator))
        total += likelihood.bound(ask, path, rule).sum().item()
    return total / (len(rows) * num_noised)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder, Hub id or builtin:mini")
    parser.add_argument("--data", nargs="+", required=True, help="folders that prepare wrote")
    parser.add_argument("--windows", type=int, default=100, help="for the exact loss")
    parser.add_argument("--bound-windows", type=int, default=20, help="for the bound")
    parser.add_argument("--width", type=float, default=0.0, help="of the moving window, if any")
    parser.add_argument("--points", type=int, default=400, help="times on the window's path")
    parser.add_argument("--batch", type=int, default=10, help="windows at a time")
    args = parser.parse_args()
    denoiser = checkpoint.load_denoiser(checkpoint.find(args.model))
    print("| held out | exact | bound, all at once | bound, window | bytes per token |")
    print("|---|---|---|---|---|", flush=True)
    for folder in args.data:
        began, store = time.perf_counter(), TokenStore.open(folder, "holdout")
        size = store.num_bytes / len(store)
        rows = held_out([store], LENGTH, args.windows).to(denoiser.device)
        few = rows[:: max(1, len(rows) // args.bound_windows)][: args.bound_windows]
        with torch.no_grad():
            parts = rows.split(args.batch)
            exact = torch.cat([likelihood.next_token_nll(denoiser, part) for part in parts])
            seeds = example_seeds(1, 2, np.arange(len(few))).to(denoiser.device)
            sums = validation.measure(denoiser, few, seeds, points=POINTS)
            found = [exact.double().mean().item(), (sums[1] / sums[0]).item()]
            found += [window_bound(denoiser, args, few)] if args.width else []
        cells = [f"{nats:.2f} ({nats / math.log(2) / size:.2f})" for nats in found]
        cells += [""] * (3 - len(cells))
        print(f"| {folder} | {' | '.join(cells)} | {size:.2f} |", flush=True)
        print(f"  {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""The kernel that draws decoding's normals on a GPU, beside the plain operations.

    python benchmarks/normals.py [--repeats 10]

Prints one line per shape (rows, positions, milliseconds of the kernel and of the plain operations,
their ratio, the largest difference between the two) and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ssdlm.diffusion import noise

V = 8192
SHAPES = ((640, 25), (640, 1), (2500, 2))
"""Rows and positions: a whole block of the paper's sampler, and windows of ours."""


def milliseconds(draw: Callable[[int], Tensor], repeats: int) -> float:
    """Return the time of one draw, after one that compiles."""
    draw(0)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for step in range(repeats):
        draw(step)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1000


def compare(N: int, B: int, repeats: int) -> dict[str, Any]:
    """Return the figures of one shape."""
    seeds = torch.arange(N, device="cuda")
    rows = noise.RowNoise(seeds)

    def kernel(step: int) -> Tensor:
        return rows.normal(block=0, step=step, B=B, V=V)

    def plain(step: int) -> Tensor:
        return noise.normal(seeds, block=0, step=step, B=B, V=V)

    ours, theirs = milliseconds(kernel, repeats), milliseconds(plain, repeats)
    worst = (kernel(1) - plain(1)).abs().max().item()
    times = {"kernel_ms": ours, "plain_ms": theirs, "ratio": theirs / ours}
    return {"N": N, "B": B, "V": V, **times, "difference": worst}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    if not (torch.cuda.is_available() and noise.has_triton()):
        print("error: no GPU with Triton here; the kernel runs on nothing else", file=sys.stderr)
        return 1
    print("rows   B  kernel ms  plain ms  ratio  difference")
    lines = []
    for N, B in SHAPES:
        lines.append(line := compare(N, B, args.repeats))
        print(
            "{N:4} {B:3}  {kernel_ms:9.3f} {plain_ms:9.3f} {ratio:6.0f}  {difference:.1e}".format(
                **line
            )
        )
    print(json.dumps({"device": torch.cuda.get_device_name(), "shapes": lines}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The machine: its clock, its memory, and what it can do at best.  [machine] -> decode"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

TRIES = 10
"""Of a copy or a product; the fastest is what the machine can do."""


@dataclass(frozen=True)
class Measured:
    """One figure, several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> list[float]:
        """The least and the greatest."""
        return [min(self.values), max(self.values)]


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Return how long some work takes, until the device has done it."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fastest(work: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of the fastest of a few tries, after two that do not count."""
    return min([seconds_of(work, device) for _ in range(TRIES + 2)][2:])


def bandwidth(device: torch.device, dtype: torch.dtype) -> float:
    """Return bytes per second, read and written, of a large copy."""
    num_bytes = 2**30 if device.type == "cuda" else 2**26
    source = torch.ones(num_bytes // dtype.itemsize, device=device, dtype=dtype)
    target = torch.empty_like(source)
    return 2 * num_bytes / fastest(lambda: target.copy_(source), device)


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return FLOPs per second of a large matrix product."""
    width = 8192 if device.type == "cuda" else 512
    factor = torch.full((width, width), 1 / width, device=device, dtype=dtype)
    target = torch.empty_like(factor)
    return 2 * width**3 / fastest(lambda: torch.mm(factor, factor, out=target), device)


def forget_peak(device: torch.device) -> None:
    """Give back what a GPU keeps in reserve, and count its peak from here on."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes in use so far: allocated on a GPU, else resident in the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # getrusage also counts what the process was before it became this program.
    for line in lines_of("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def machine_name(device: torch.device) -> str:
    """Return what the device is called."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    parts = [line.partition(":") for line in lines_of("/proc/cpuinfo")]
    models = [value.strip() for name, _, value in parts if name.strip() == "model name"]
    return next(iter(models), platform.processor() or platform.machine())


def lines_of(path: str) -> list[str]:
    """Return the lines in which Linux tells about itself; none elsewhere."""
    about = Path(path)
    return about.read_text(encoding="utf-8").splitlines() if about.is_file() else []

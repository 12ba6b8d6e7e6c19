"""How a command starts on a CPU: soon, and without getting in the way of others.

imports without garbage collection -> one thread while a model is opened -> as many as it needs
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ssdlm.storage.builtin import WEIGHTS

if TYPE_CHECKING:
    from ssdlm.denoiser import Denoiser
    from ssdlm.options import GenerateOptions

FEW_PRODUCTS = 250_000_000
"""Multiplications in a pass of the network that one core does as fast as several, or nearly."""


@contextmanager
def without_collecting() -> Iterator[None]:
    """Leave garbage alone while much is made that stays, as imports do."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one core for a while, unless the user has said how many; torch must be imported."""
    import torch

    number = torch.get_num_threads()
    if not is_chosen():
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)


def choose_threads(denoiser: Denoiser, options: GenerateOptions) -> None:
    """Let one core do passes that are small, unless the user has said how many should.

    Threads that share out a product of a few rows wait for each other more than they work, and
    they wait busily: beside other programs they were two to five times slower than one.
    """
    import torch

    if denoiser.device.type == "cpu" and not is_chosen() and is_small(denoiser, options):
        torch.set_num_threads(1)


def is_chosen() -> bool:
    """Tell whether the user has said how many threads to use."""
    return any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))


def is_small(denoiser: Denoiser, options: GenerateOptions) -> bool:
    """Tell whether a pass of the network and of its guides costs few multiplications."""
    from ssdlm.denoiser.block import BlockDenoiser

    if not isinstance(denoiser, BlockDenoiser):
        return False
    rows = options.B[0] + 1
    if options.mode != "diffusion":
        rows = 1
    elif options.grid == "sliding":
        rows = round(options.width) + 1
    weights = sum(weight.numel() for weight in denoiser.parameters())
    weights += sum(map(guide_weights, options.control))
    return rows * weights <= FEW_PRODUCTS


def guide_weights(control: str) -> float:
    """Return how many weights a control's classifier has at the most; inf if it is not here."""
    from ssdlm.guidance.grammar import find_guide, parse_control, split_labels

    home, _ = split_labels(find_guide(parse_control(control).name))
    file = Path(home).expanduser() / WEIGHTS
    return file.stat().st_size / 2 if file.is_file() else math.inf  # two bytes each, or four

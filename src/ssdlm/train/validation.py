"""Validation: how good a denoiser is on held-out text.  likelihood, run -> [validation] -> loop

One set of noise levels serves both figures: the loss at each of them is the profile, which the log
keeps and `ssdlm plot` draws, and the squared errors add up to the bound on the likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ssdlm.data.windows import example_seeds
from ssdlm.denoiser import DenoiserModule, RowDenoiser
from ssdlm.diffusion import likelihood, noise
from ssdlm.diffusion.loss import split_rows
from ssdlm.diffusion.schedule import progress_of_snr
from ssdlm.shapes import Seeds, Tensor, Tokens
from ssdlm.train import distributed, levels
from ssdlm.train.run import EXAMPLES, HELD_OUT, Run

CHUNK = 2**26
"""V-wide numbers that one pass may have in memory."""


def is_validated(run: Run) -> bool:
    """Return whether the step just taken is followed by a validation."""
    every = run.config.train.validate_every
    is_regular = every > 0 and run.step % every == 0
    return len(run.validation_rows) > 0 and (is_regular or run.step == run.steps)


def validate(run: Run) -> dict[str, Any]:
    """Return the figures of the hold-out, the profile among them."""
    accelerator, train = run.accelerator, run.config.train
    mine = slice(accelerator.process_index, None, accelerator.num_processes)
    numbers = np.arange(len(run.validation_rows))
    seeds = example_seeds(train.seed, EXAMPLES + HELD_OUT, numbers)[mine].to(accelerator.device)
    rows = run.validation_rows[mine].to(accelerator.device)
    run.denoiser.eval()
    with run.averaged(), distributed.unsharded(run.module), accelerator.autocast():
        sums = measure(run.denoiser, rows, seeds, points=train.validate_points)
    run.denoiser.train()
    return report(accelerator.reduce(sums, "sum"), bytes_per_token=run.bytes_per_token)


def measure(denoiser: DenoiserModule, rows: Tokens, seeds: Seeds, *, points: int) -> Tensor:
    """Return sums over rows, of which there may be none, to be added up over processes.

    They are: tokens, bound, tokens with a next-token loss, that loss, and the loss at each level.
    """
    total = torch.zeros(4 + 1 + points, dtype=torch.float64, device=denoiser.device)
    size = max(1, CHUNK // (rows.shape[1] * denoiser.V))
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        if denoiser.denoises_blocks:
            for measure_at, tokens in measures(denoiser, rows[part], seeds[part]):
                total += sum_up(measure_at, tokens.numel(), points)
        if isinstance(denoiser, RowDenoiser):
            # Kernels of rows have one precision: that of the weights.
            with torch.autocast(rows.device.type, enabled=False):
                exact = likelihood.next_token_nll(denoiser, rows[part])
            total[2:4] += torch.stack((torch.ones_like(exact), exact)).double().sum((1, 2))
    return total


def measures(
    denoiser: DenoiserModule, rows: Tokens, seeds: Seeds
) -> Iterator[tuple[likelihood.Measure, Tensor]]:
    """Yield how rows are measured, and the tokens that are: all of them, or a block of each."""
    B, length = denoiser.B, rows.shape[1]
    if isinstance(denoiser, RowDenoiser):
        noised = rows[:, denoiser.num_given :]
        blocks = levels.block_index(noised.shape[1], B=B)
        draw = noise_of(denoiser, seeds, noised.shape[1])
        yield likelihood.all_blocks(denoiser, rows, blocks, draw), noised
        return
    c = 1 + seeds % max(1, length - B)
    for group, context, block in split_rows(rows, c, B=B):
        draw = noise_of(denoiser, seeds[group], block.shape[1])
        yield likelihood.one_block(denoiser, context, block, draw), block


def sum_up(measure_at: likelihood.Measure, count: int, points: int) -> Tensor:
    """Return the sums of one measurement: the bound along `rising`, and the loss on the way."""
    nll: list[Tensor] = []

    def record_nll(progress: Tensor, k: int) -> likelihood.Errors:
        errors = measure_at(progress, k)
        nll.append(errors.nll.double().sum())
        return errors

    bound = likelihood.bound(record_nll, rising, likelihood.gauss_legendre(points)).sum()
    return torch.cat(
        (torch.tensor([count]).to(bound), bound.view(1), bound.new_zeros(2), torch.stack(nll))
    )


def rising(time: Tensor) -> Tensor:
    """Return the path of levels; it rises as a cube, so that the levels that decide are covered."""
    return (likelihood.MAX_SNR * time**3).reshape(1)


def noise_of(denoiser: DenoiserModule, seeds: Seeds, count: int) -> Any:
    """Return the noise of each measurement by its number."""
    return lambda k: noise.normal(seeds, block=0, step=k, B=count, V=denoiser.V)


def level_progress(points: int) -> list[float]:
    """Return the progress of each level, in the order of the sums: the path's end comes first."""
    times = (torch.ones((), dtype=torch.float64), *likelihood.gauss_legendre(points).points)
    return [float(progress_of_snr(rising(time))) for time in times]


def report(sums: Tensor, *, bytes_per_token: float) -> dict[str, Any]:
    """Return the figures of `measure`, in nats per token and bits per byte."""
    tokens, bound, next_tokens, next_nll, *nll = sums.tolist()
    progress = level_progress(len(nll) - 1)
    to_bits = 1 / (math.log(2) * bytes_per_token)
    figures: dict[str, Any] = {"tokens": int(tokens)}
    if tokens:
        figures["bound"] = bound / tokens
        figures["bound_bits_per_byte"] = bound / tokens * to_bits
    if next_tokens:
        figures["next_token"] = next_nll / next_tokens
        figures["next_token_bits_per_byte"] = next_nll / next_tokens * to_bits
    losses = [total / tokens for total in nll] if tokens else []
    profile = sorted(zip(progress, losses, strict=bool(tokens)))
    return figures | {"profile": [list(point) for point in profile]}

"""The training loop: from token stores to a checkpoint.  windows, objective -> [train] -> OUT

    OUT/log.jsonl              one object a logged step
    OUT/checkpoints/step-N/    all that a run needs to go on, and a model's folder in itself
    OUT/config.json, model.safetensors, tokenizer.json, generation_config.json, profile.json
                               the newest weights (their moving average, where one is kept)
    OUT/run.json               the settings, as asked for and as resolved, and the data's digests

A step is a function of the weights before it, the seed and its number, so a run that was killed and
started again, or was cut into other micro-batches, does what it would have done. Where the clock is
to end it (`train.seconds`), the learning rate and the number of steps depend on the machine too.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssdlm.config import Config
from ssdlm.data.windows import keys
from ssdlm.diffusion.noise import mix
from ssdlm.settings import override, to_json
from ssdlm.shapes import Seeds, Tensor
from ssdlm.storage import checkpoint
from ssdlm.train import distributed, validation
from ssdlm.train import log as runlog
from ssdlm.train.objective import Examples, Parts
from ssdlm.train.recipes import recipe
from ssdlm.train.run import DROPOUT, HELD_OUT, STEP, Run, averaged, save, start
from ssdlm.train.updates import lr_scale
from ssdlm.train.weights import folder_of

__all__ = ["TrainReport", "configure", "train"]

EXAMPLES = 2**32
"""The use of the seed that gives examples theirs; the small numbers order the windows."""


@dataclass(frozen=True)
class TrainReport:
    """How a run ended."""

    out: Path
    step: int
    resumed: int
    """The step it was continued from; 0 when it began at the beginning."""
    seconds: float
    loss: float | None
    """The last one logged; None when there was nothing left to do."""
    validation: dict[str, Any] | None
    """The figures of the last validation."""


def configure(name: str, overrides: Sequence[str] = ()) -> Config:
    """Return a recipe with `key=value` applied; a checkpoint that is `init` brings its model."""
    named = [text for text in overrides if text.startswith(("init=", "train.init="))]
    config = override(recipe(name), named)
    folder = folder_of(config.train.init)
    if config.train.init and checkpoint.is_ours(folder):
        model = checkpoint.read_config(folder)
        config = replace(config, model=model)
    return override(config, overrides)


def train(
    config: Config, *, data: Sequence[str | Path], out: str | Path, fresh: bool = False
) -> TrainReport:
    """Train as `config` says on the stores in `data`, or go on with the run that is in `out`."""
    began = time.monotonic()
    run = start(config, [Path(folder) for folder in data], Path(out), fresh=fresh)
    resumed = run.step
    with closing(open_records(run)) as records:
        last = loop(run, records)
    run.accelerator.end_training()
    seconds = time.monotonic() - began
    return TrainReport(
        run.out, run.step, resumed, seconds, last.get("loss"), last.get("validation")
    )


def loop(run: Run, records: runlog.Silent) -> runlog.Record:
    """Take the steps that are left; return the last record."""
    record: runlog.Record = {}
    saved = time.monotonic()
    clock, since = saved, run.step
    first, was_alone = run.step + 1, None
    while run.step < run.plan.steps:
        if (is_alone := is_context_alone(run)) is not was_alone:
            first, was_alone = run.step + 1, is_alone
        sums, norm = optimise(run)
        run.step += 1
        if is_logged(run) or (since >= first and is_over(run, time.monotonic() - clock)):
            record = describe_step(run, sums, norm)
            steps, seconds = run.step - since, time.monotonic() - clock
            record |= speed(run, steps, seconds)
            if since >= first:
                keep_time(run, steps, seconds)
            record |= validate_if_due(run)
            records.write(record)
            clock, since = time.monotonic(), run.step
        elif run.step == first:  # it was compiled in this one
            clock, since = time.monotonic(), run.step
        records.show(run.step, run.plan.steps)
        if is_save_due(run, saved):
            run.clock = run.clock.after(run.step - since, time.monotonic() - clock)
            save_or_tell(run)
            saved = time.monotonic()
            clock, since = saved, run.step
    return record


def keep_time(run: Run, steps: int, seconds: float) -> None:
    """Add the time of some steps to the clock, and let it say anew where the run ends.

    Several processes must agree on that, so the main one's clock is everyone's.
    """
    clock = run.clock.after(steps, seconds).ending(run.step, run.config.train)
    run.clock = distributed.told(run.accelerator, clock) if run.config.train.seconds else clock


def optimise(run: Run) -> tuple[Parts, Tensor]:
    """Take one optimiser step; return this process's mean losses and the gradient's norm."""
    train, accelerator = run.plan, run.accelerator
    scale = lr_scale(run.step, train, warmup=train.warmup)
    for group in run.optimizer.param_groups:
        group["lr"] = group["peak"] * scale
    run.optimizer.zero_grad(set_to_none=True)
    sums = accumulate(run)
    scaler = accelerator.scaler
    if scaler is not None:
        scaler.unscale_(run.optimizer)
    limit = train.clip if train.clip > 0 else math.inf
    norm = torch.nn.utils.clip_grad_norm_(run.denoiser.parameters(), limit)
    if scaler is not None:
        scaler.step(run.optimizer)
        scaler.update()
    else:
        run.optimizer.step()
    if run.ema is not None:
        run.ema.update(run.denoiser)
    return sums, distributed.gathered(norm)


def accumulate(run: Run) -> Parts:
    """Run this process's share of the batch forward and back; return its mean losses."""
    train, accelerator = run.config.train, run.accelerator
    share = train.batch // accelerator.num_processes
    places = np.arange(share) + share * accelerator.process_index
    size = train.micro_batch or share
    sums = torch.zeros(len(Parts._fields), device=accelerator.device)
    for first in range(0, share, size):
        part = places[first : first + size]
        torch.manual_seed(mix(train.seed, DROPOUT, run.step, int(part[0])))
        with distributed.unsynced(run.module, is_last=first + size >= share):
            with accelerator.autocast():
                parts = run.module(examples(run, part))
            weight = len(part) / share
            accelerator.backward(parts.total * weight)
        sums += torch.stack([loss.detach().float() for loss in parts]) * weight
    return Parts(*sums)


def examples(run: Run, places: np.ndarray) -> Examples:
    """Return the examples at some places of the current step's batch."""
    train = run.config.train
    numbers = run.step * train.batch + places
    return Examples(
        run.windows.batch(numbers),
        row_seeds(train.seed, EXAMPLES, numbers),
        torch.from_numpy(places),
        mix(train.seed, STEP, run.step),
        is_context_alone(run),
    )


def is_context_alone(run: Run) -> bool:
    """Say whether the coming step trains the context stream alone."""
    return run.step < run.turn


def row_seeds(seed: int, use: int, numbers: np.ndarray) -> Seeds:
    """Return a seed for each number, for one use of the run's seed."""
    return torch.from_numpy((keys(seed, use, numbers) >> np.uint64(1)).astype(np.int64))


def is_logged(run: Run) -> bool:
    """Say whether the step just taken gets a line: now and then, and the first and the last."""
    train = run.plan
    is_regular = run.step % train.log_every == 0 or run.step in (1, run.turn, train.steps)
    return is_regular or is_validated(run)


def is_over(run: Run, seconds: float) -> bool:
    """Say whether `train.seconds` are over, so many seconds after what the clock has counted.

    Several processes ask only after a logged step: they would have to wait for each other.
    """
    limit = run.config.train.seconds
    return run.accelerator.num_processes == 1 and 0 < limit <= run.clock.seconds + seconds


def is_validated(run: Run) -> bool:
    """Say whether the step just taken is followed by a validation."""
    train = run.plan
    is_regular = train.validate_every > 0 and run.step % train.validate_every == 0
    return len(run.held) > 0 and (is_regular or run.step == train.steps)


def describe_step(run: Run, sums: Parts, norm: Tensor) -> runlog.Record:
    """Return the record of the step just taken, its losses those of the whole batch."""
    train = run.plan
    losses = run.accelerator.reduce(torch.stack(sums), "mean")
    total, block, next_token = losses.tolist()
    if not math.isfinite(total):
        raise ValueError(f"the loss of step {run.step} is {total}; lower train.lr, or use --fresh")
    record = {
        "step": run.step,
        "loss": total,
        "lr": train.lr * lr_scale(run.step - 1, train, warmup=train.warmup),
        "tokens": run.step * train.batch * run.config.data.max_len,
        "grad_norm": float(norm),
    }
    parts = {"block": block, "next_token": next_token}
    return record | (parts if train.objective == "all_blocks" else {})


def speed(run: Run, steps: int, seconds: float) -> runlog.Record:
    """Return how fast the last steps were."""
    config = run.config
    tokens = steps * config.train.batch * config.data.max_len
    return {"tokens_per_s": tokens / max(seconds, 1e-9)}


def validate_if_due(run: Run) -> runlog.Record:
    """Return the hold-out's figures, if it is time for them, and keep the profile."""
    if not is_validated(run):
        return {}
    accelerator, train = run.accelerator, run.config.train
    mine = slice(accelerator.process_index, None, accelerator.num_processes)
    seeds = row_seeds(train.seed, EXAMPLES + HELD_OUT, np.arange(len(run.held)))
    rows, seeds = run.held[mine].to(accelerator.device), seeds[mine].to(accelerator.device)
    run.denoiser.eval()
    with averaged(run), distributed.whole(run.module), accelerator.autocast():
        sums = validation.measure(run.denoiser, rows, seeds, points=train.validate_points)
    run.denoiser.train()
    sums = accelerator.reduce(sums, "sum")
    figures = validation.report(sums, bytes_per_token=run.bytes_per_token)
    run.profile = figures["profile"]
    return {"validation": figures}


def is_save_due(run: Run, saved: float) -> bool:
    """Say whether it is time for a checkpoint.

    Where the clock decides, it is the main process's, and several processes ask it only after a
    logged step: to ask is to wait for each other.
    """
    train = run.plan
    if run.step == train.steps or (train.save_every > 0 and run.step % train.save_every == 0):
        return True
    if train.save_seconds == 0 or (run.accelerator.num_processes > 1 and not is_logged(run)):
        return False
    return distributed.told(run.accelerator, time.monotonic() - saved >= train.save_seconds)


def save_or_tell(run: Run) -> None:
    """Write a checkpoint; only the last one must not fail for want of space."""
    folder = save(run)
    is_last = run.step == run.plan.steps
    if folder is None and is_last and run.accelerator.is_main_process:
        raise OSError(errno.ENOSPC, "no space left for the last checkpoint", str(run.out))


def open_records(run: Run) -> runlog.Silent:
    """Return where the main process writes; the others say nothing."""
    train = run.config.train
    if not run.accelerator.is_main_process:
        return runlog.Silent()
    return runlog.Records(
        run.out,
        step=run.step,
        steps=train.steps,
        settings=to_json(run.config),
        tensorboard=train.tensorboard,
        tracker=train.tracker,
    )

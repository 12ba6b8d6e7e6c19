"""The training loop: from token stores to a checkpoint.  windows, objective -> [loop] -> OUT

    OUT/log.jsonl              one object per logged step
    OUT/checkpoints/step-N/    all that a run needs to go on, and a model's folder in itself
    OUT/config.json, model.safetensors, tokenizer.json, generation_config.json
                               the newest weights (their moving average, where one is kept)
    OUT/run.json               the settings, as given and as resolved, and the data's digests

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
from typing import Any, NamedTuple

import numpy as np
import torch

from ssdlm.config import AdapterConfig, Config
from ssdlm.data.windows import example_seeds
from ssdlm.diffusion.loss import Losses
from ssdlm.diffusion.noise import mix
from ssdlm.settings import override
from ssdlm.shapes import Tensor
from ssdlm.storage import checkpoint
from ssdlm.storage.files import named_path
from ssdlm.train import distributed
from ssdlm.train.checkpoints import begin_save
from ssdlm.train.examples import Examples
from ssdlm.train.initial_weights import find_init
from ssdlm.train.learning_rate import lr_scale
from ssdlm.train.log import NoLog, Record, RunLog
from ssdlm.train.recipes import recipe
from ssdlm.train.resume import alone, start
from ssdlm.train.run import DROPOUT, EXAMPLES, STEP, Run, is_compiled
from ssdlm.train.stopping import is_usual, require_finite
from ssdlm.train.validation import is_validated, validate

__all__ = ["TrainReport", "configure", "train"]


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
    folder = find_init(config.train.init)
    if config.train.init and checkpoint.is_ours(folder):
        config = replace(config, model=checkpoint.read_config(folder))
    elif isinstance(config.model, AdapterConfig):
        config = replace(config, model=replace(config.model, base=config.train.init))
    return override(config, overrides)


def train(
    config: Config, *, data: Sequence[str | Path], out: str | Path, fresh: bool = False
) -> TrainReport:
    """Train as `config` says on the stores in `data`, or go on with the run that is in `out`."""
    began = time.monotonic()
    folder, stores = named_path(out, "out"), [named_path(name, "data") for name in data]
    with alone(folder):
        run = start(config, stores, folder, fresh=fresh)
        resumed = run.step
        with closing(run.writing), closing(open_log(run)) as log:
            log.announce(describe(run))
            last = take_steps(run, log)
    run.accelerator.wait_for_everyone()  # the main process may still have been writing
    run.accelerator.end_training()
    seconds = time.monotonic() - began
    return TrainReport(
        run.out, run.step, resumed, seconds, last.get("loss"), last.get("validation")
    )


def describe(run: Run) -> str:
    """Return what is about to be done, in one line."""
    number = sum(weight.numel() for weight in run.denoiser.parameters()) / 1e6
    device, precision = run.accelerator.device, run.config.train.precision
    what = f"training {number:.1f}M parameters on {device} in {precision}, "
    what += f"from step {run.step:,} to {run.steps:,}"
    if is_compiled(run.config, run.denoiser, device):
        what += "; the first step compiles the network, which takes a while"
    return what


def open_log(run: Run) -> NoLog:
    """Return the run's log in the main process, and one that drops everything elsewhere."""
    settings = run.config.train
    if not run.accelerator.is_main_process:
        return NoLog()
    return RunLog(
        run.out,
        step=run.step,
        steps=settings.steps,
        tensorboard=settings.tensorboard,
        tracker=run.tracker,
    )


class StepResult(NamedTuple):
    """What an optimiser step leaves to be logged."""

    losses: Losses
    """Means over this process's share of the batch."""
    grad_norm: Tensor
    """Before clipping, over all processes."""


def train_step(run: Run) -> StepResult:
    """Take one optimiser step: Algorithm 1 on a batch, of which each process does its share."""
    train, accelerator = run.config.train, run.accelerator
    share = train.batch // accelerator.num_processes
    indices = np.arange(share) + share * accelerator.process_index
    size = train.micro_batch or share
    run.optimizer.zero_grad(set_to_none=True)
    sums = torch.zeros(len(Losses._fields), device=accelerator.device)
    for first in range(0, share, size):
        part = indices[first : first + size]
        # Dropout alone draws from torch's generator; every other draw has a seed of its own.
        torch.manual_seed(mix(train.seed, DROPOUT, run.step, int(part[0])))
        examples = read_examples(run, part)  # windows of text, each with a seed
        # Gradients travel between processes once per step, after its last micro-batch.
        with distributed.accumulate(run.module, is_last=first + size >= share):
            with accelerator.autocast():
                draws = run.objective.draw(examples)  # blocks, noise levels t/T, noise z
                losses = run.module(draws)  # noise the blocks, denoise them, -log p(tokens)
                del draws  # z is V-wide; the backward pass keeps what it needs
            weight = len(part) / share
            accelerator.backward(losses.total * weight)
        sums += torch.stack([loss.detach().float() for loss in losses]) * weight

    scale = lr_scale(run.step, train, steps=run.steps)
    for group in run.optimizer.param_groups:
        group["lr"] = group["peak"] * scale
    scaler = accelerator.scaler  # of the loss, in fp16 alone
    if scaler is not None:
        scaler.unscale_(run.optimizer)
    limit = train.clip if train.clip > 0 else math.inf
    norm = distributed.gather_tensor(
        torch.nn.utils.clip_grad_norm_(run.denoiser.parameters(), limit)
    )
    is_taken = is_usual(run, norm)  # else it is a spike, and skipped
    if is_taken and scaler is not None:
        scaler.step(run.optimizer)
    elif is_taken:
        run.optimizer.step()
    if scaler is not None:
        scaler.update()
    if is_taken and run.ema is not None:
        run.ema.update(run.denoiser)
    return StepResult(Losses(*sums), norm)


def read_examples(run: Run, indices: np.ndarray) -> Examples:
    """Return the examples at some indices of the current step's batch."""
    train = run.config.train
    numbers = run.step * train.batch + indices
    return Examples(
        run.windows.batch(numbers),
        example_seeds(train.seed, EXAMPLES, numbers),
        torch.from_numpy(indices),
        mix(train.seed, STEP, run.step),
        run.is_context_only,
    )


def take_steps(run: Run, log: NoLog) -> Record:
    """Take the steps that are left; return the last record."""
    train, record = run.config.train, Record()
    # `start` and `since` say when, and after which step, the interval now being timed began.
    last_save = start = time.monotonic()
    since, compiling, was_context_only = run.step, run.step + 1, None
    while run.step < run.steps:
        if run.is_context_only is not was_context_only:
            # A network is compiled in the first step of each kind, whose time does not count.
            compiling, was_context_only = run.step + 1, run.is_context_only
        result = train_step(run)
        run.step += 1
        is_timed = since >= compiling
        if is_logged(run) or (is_timed and is_over(run, time.monotonic() - start)):
            record = describe_step(run, result)  # waits for a GPU, so the time is read after it
            steps, seconds = run.step - since, time.monotonic() - start
            record["tokens_per_s"] = steps * run.tokens_per_step / max(seconds, 1e-9)
            if is_timed:
                clock = run.clock.add(steps, seconds).estimate_end(run.step, train)
                # Processes must agree on where the run ends: the main one's clock is everyone's.
                run.clock = (
                    distributed.broadcast(run.accelerator, clock) if train.seconds else clock
                )
            if is_validated(run):
                record["validation"] = validate(run)
            log.write(record)
            start, since = time.monotonic(), run.step
        elif run.step == compiling:
            start, since = time.monotonic(), run.step
        log.show_progress(run.step, run.steps)
        if is_save_due(run, last_save):
            require_finite(run, float(run.accelerator.reduce(result.losses.total, "mean")))
            run.clock = run.clock.add(run.step - since, time.monotonic() - start)
            begin_save(run)
            last_save = start = time.monotonic()
            since = run.step
    # On a full disk a run goes on without a checkpoint, but not without the last one.
    is_written = run.writing.pending is not None
    if is_written and run.writing.end() is None and run.accelerator.is_main_process:
        raise OSError(errno.ENOSPC, "no space left for the last checkpoint", str(run.out))
    return record


def is_logged(run: Run) -> bool:
    """Return whether the step just taken gets a line: now and then, and the first and the last."""
    is_regular = run.step % run.config.train.log_every == 0
    return is_regular or run.step in (1, run.context_steps, run.steps) or is_validated(run)


def is_over(run: Run, seconds: float) -> bool:
    """Return whether `train.seconds` are over, so many seconds after what the clock has counted.

    Several processes ask only after a logged step: they would have to wait for each other.
    """
    limit = run.config.train.seconds
    return run.accelerator.num_processes == 1 and 0 < limit <= run.clock.seconds + seconds


def is_save_due(run: Run, last_save: float) -> bool:
    """Return whether it is time for a checkpoint.

    Where the clock decides, it is the main process's, and several processes ask it only after a
    logged step: to ask is to wait for each other.
    """
    train = run.config.train
    if run.step == run.steps or (train.save_every > 0 and run.step % train.save_every == 0):
        return True
    if train.save_seconds == 0 or (run.accelerator.num_processes > 1 and not is_logged(run)):
        return False
    is_due = time.monotonic() - last_save >= train.save_seconds
    return distributed.broadcast(run.accelerator, is_due)


def describe_step(run: Run, result: StepResult) -> Record:
    """Return the record of the step just taken, its losses those of the whole batch."""
    train = run.config.train
    losses = run.accelerator.reduce(torch.stack(result.losses), "mean")
    total, block, next_token = losses.tolist()
    require_finite(run, total)
    record = {
        "step": run.step,
        "loss": total,
        "lr": train.lr * lr_scale(run.step - 1, train, steps=run.steps),
        "tokens": run.step * run.tokens_per_step,
        "grad_norm": float(result.grad_norm),
    }
    if train.spike > 0:
        record["skipped"] = run.spikes.skipped
    if train.objective == "all_blocks" and not isinstance(run.config.model, AdapterConfig):
        record |= {"block": block, "next_token": next_token}
    return record

"""A run from its settings: begun, or taken up where its newest checkpoint left it.

weights, windows, objective -> [run] -> train
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from ssdlm.config import BlockConfig, Config, DecodeConfig, EncoderConfig, TrainConfig
from ssdlm.data.shards import TokenStore
from ssdlm.data.windows import Windows, held_out
from ssdlm.denoiser import DenoiserModule
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.diffusion.noise import mix
from ssdlm.settings import differences, from_json, to_json
from ssdlm.shapes import Tensor, Tokens
from ssdlm.storage import checkpoint
from ssdlm.storage.files import read_json, write_json
from ssdlm.train import distributed
from ssdlm.train import state as trainstate
from ssdlm.train.objective import AllBlocks, Levels, OneBlock
from ssdlm.train.optimizer import Ema, MuonAdamW
from ssdlm.train.updates import optimizer_of
from ssdlm.train.weights import EMA, build, first_denoiser, folder_of, is_warm

RUN, SETTINGS, STATE, PROFILE = "run.json", "train.json", "state.json", "profile.json"
OPTIMIZER = "optimizer.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
MODEL = (checkpoint.CONFIG, checkpoint.DECODING, PROFILE, *TOKENIZER)
"""Files of a checkpoint that OUT has too, beside the weights."""
WRITTEN = ("checkpoints", "log.jsonl", "tensorboard", checkpoint.WEIGHTS, *MODEL, RUN)
"""All that a run writes into OUT, in the order in which it is removed."""

WEIGHTS, STEP, DROPOUT, HELD_OUT = range(4)
"""What a run's seed is used for."""


@dataclass(frozen=True)
class Clock:
    """How long a run has trained, over all its processes' lives, and when it is to end."""

    seconds: float = 0.0
    """Of training alone: without compiling, validations and checkpoints."""
    steps: int = 0
    """The steps they took."""
    end: int = 0
    """The step after which `train.seconds` will be over; 0: not known, or not asked for."""

    def after(self, steps: int, seconds: float) -> Clock:
        """Return the clock some steps later."""
        return Clock(self.seconds + seconds, self.steps + steps, self.end)

    def ending(self, step: int, train: TrainConfig) -> Clock:
        """Return the clock with the end that the speed so far leads to, seen from a step."""
        if train.seconds == 0 or self.seconds == 0:
            return self
        left = (train.seconds - self.seconds) * self.steps / self.seconds
        return replace(self, end=min(train.steps, step + max(0, round(left))))


@dataclass
class Run:
    """All that a run holds while it goes on."""

    config: Config
    accelerator: Any
    out: Path
    stores: list[TokenStore]
    denoiser: DenoiserModule
    module: Any
    """The objective around the denoiser, as every process calls it."""
    optimizer: MuonAdamW
    ema: Ema | None
    windows: Windows
    held: Tokens
    """Rows of the hold-out; there may be none."""
    bytes_per_token: float
    """Of the hold-out."""
    step: int = 0
    """Optimiser steps done."""
    profile: list[list[float]] = field(default_factory=list)
    """[progress, loss] of the last validation."""
    clock: Clock = field(default_factory=Clock)

    @property
    def plan(self) -> TrainConfig:
        """The settings of training, their steps as many as the clock leaves."""
        train = self.config.train
        return replace(train, steps=self.clock.end) if self.clock.end else train

    @property
    def turn(self) -> int:
        """How many steps train the context stream alone, before the others."""
        return round(self.plan.context_share * self.plan.steps)


def start(config: Config, folders: list[Path], out: Path, *, fresh: bool) -> Run:
    """Return a run at its beginning, or as its newest checkpoint has it."""
    stores = [TokenStore.open(folder) for folder in folders]
    asked = {"config": to_json(config), "data": [store.digest for store in stores]}
    is_sharded = config.train.sharding == "fsdp" or distributed.is_sharding_asked()
    accelerator = distributed.join(precision=config.train.precision, device=config.train.device)
    newest = None if fresh else earlier_state(accelerator, out, asked)
    torch.manual_seed(mix(config.train.seed, WEIGHTS))
    if newest is None:
        config = resolve(config, stores)
        denoiser = first_denoiser(config, stores)
        config = replace(config, model=denoiser.config)
    else:
        config = from_json(Config, read_json(newest / SETTINGS))
        denoiser = build(config.model)
    run = assemble(config, accelerator, out, stores, denoiser, is_sharded=is_sharded)
    if newest is not None:
        restore(run, newest)
    if accelerator.is_main_process and newest is not None:
        export(newest, out)  # it may have been killed between the two
    elif accelerator.is_main_process:
        clear(out)
        write_json(out / RUN, {"asked": asked, "config": to_json(config)})
    accelerator.wait_for_everyone()
    return run


def earlier_state(accelerator: Any, out: Path, asked: dict[str, Any]) -> Path | None:
    """Return the checkpoint to go on from, None if there is none; refuse to mix two runs."""
    if (out / RUN).exists():
        known = read_json(out / RUN)
        if changed := differences(known["asked"], asked):
            told = ", ".join(change.removeprefix("config.") for change in changed)
            raise ValueError(
                f"{out} holds a run with other settings ({told}); "
                "give the same settings, another --out, or --fresh to start over"
            )
    elif any(trainstate.steps(out)):
        raise ValueError(f"{out} has checkpoints but no {RUN}; use another --out, or --fresh")
    newest = None
    if accelerator.is_main_process:
        trainstate.sweep(out)
        newest = trainstate.newest(out)
    return distributed.told(accelerator, newest)


def clear(out: Path) -> None:
    """Make OUT ready for a new run: what an earlier one wrote goes, the rest stays."""
    out.mkdir(parents=True, exist_ok=True)
    for path in (out / name for name in WRITTEN):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def resolve(config: Config, stores: list[TokenStore]) -> Config:
    """Return the config with what the data and `init` decide; refuse what cannot be trained."""
    model, train = config.model, config.train
    sizes = sorted({store.V for store in stores})
    if len(sizes) != 1:
        raise ValueError(f"the data folders have vocabularies of {sizes}; prepare them alike")
    is_block = isinstance(model, BlockConfig)
    if not is_block and (train.objective, train.optimizer) != ("one_block", "adamw"):
        raise ValueError(
            f"train.objective={train.objective} with train.optimizer={train.optimizer} needs a "
            "BlockDenoiser; an encoder has one_block and adamw"
        )
    if train.objective == "one_block" and config.data.max_len <= model.B:
        raise ValueError(
            f"data.max_len={config.data.max_len} has no room for a context and a block of "
            f"model.B={model.B}; raise data.max_len"
        )
    if train.objective == "one_block" and train.context_share > 0:
        raise ValueError(
            f"train.context_share={train.context_share:g} is of objective=all_blocks; "
            "with one_block use 0"
        )
    if is_block and model.V == 0:
        model = replace(model, V=sizes[0])
    if isinstance(model, EncoderConfig) and model.backbone.get("vocab_size") == 0:
        model = replace(model, backbone=model.backbone | {"vocab_size": sizes[0]})
    if is_warm(folder_of(train.init)):
        train = replace(train, warmup=train.rewarmup)
    return replace(config, model=model, train=train)


def assemble(
    config: Config,
    accelerator: Any,
    out: Path,
    stores: list[TokenStore],
    denoiser: DenoiserModule,
    *,
    is_sharded: bool,
) -> Run:
    """Return a run around a denoiser: objective, processes, optimiser, average, data."""
    train, data = config.train, config.data
    if train.batch % accelerator.num_processes:
        raise ValueError(
            f"train.batch={train.batch} does not divide by {accelerator.num_processes} processes"
        )
    windows = Windows(stores, data.max_len, train.seed, data.weights, data.shift)
    module = distributed.share(
        accelerator,
        objective_of(config, denoiser),
        sharding="fsdp" if is_sharded else "ddp",
        layers=denoiser.transformer_layers(),
    )
    holdouts = [TokenStore.open(store.dir, "holdout") for store in stores]
    return Run(
        config=config,
        accelerator=accelerator,
        out=out,
        stores=stores,
        denoiser=denoiser,
        module=module,
        optimizer=optimizer_of(denoiser, train),
        ema=Ema(denoiser, decay=train.ema) if train.ema > 0 else None,
        windows=windows,
        held=held_rows(config, holdouts),
        bytes_per_token=sum(s.num_bytes for s in holdouts) / max(1, sum(map(len, holdouts))),
    )


def objective_of(config: Config, denoiser: DenoiserModule) -> nn.Module:
    """Return what is minimised, around a denoiser that is made fast or small as asked."""
    train = config.train
    if train.recompute:
        for layer in denoiser.transformer_layers():
            layer.forward = partial(recomputed, layer.forward, use_reentrant=False)
    # Single blocks come after contexts of many lengths, which fail in a compiled BlockDenoiser.
    if train.compile and (train.objective == "all_blocks" or not denoiser.has_all_blocks):
        denoiser.compile_layers()
    draws = Levels.of(train, config.model.T)
    if train.objective == "all_blocks":
        denoiser = cast(BlockDenoiser, denoiser)  # `resolve` refuses this objective for others
        return AllBlocks(denoiser, draws, loss=train.loss, block_lengths=train.block_lengths)
    # For every length of context cuDNN would plan its attention anew, a tenth of a second each.
    torch.backends.cuda.enable_cudnn_sdp(False)
    settings = {"share_c": train.share_c, "reduction": train.reduction, "loss": train.loss}
    return OneBlock(denoiser, draws, **settings)


def held_rows(config: Config, holdouts: list[TokenStore]) -> Tokens:
    """Return the rows a validation reads: shorter ones where the hold-out is short, or none."""
    least = 2 if isinstance(config.model, BlockConfig) else config.model.B + 1
    length = min(config.data.max_len, max(map(len, holdouts)))
    count = config.train.validate_sequences if length >= least else 0
    return held_out(holdouts, max(length, 1), count)


def save(run: Run) -> Path | None:
    """Write a checkpoint and let OUT show its weights; None when the disk is full."""
    weights = trainstate.gather(trainstate.unique_tensors(run.denoiser))
    means = trainstate.gather(trainstate.optimizer_state(run.optimizer, run.denoiser))
    average = trainstate.gather(
        {name: run.ema.mean[name] for name in weights} if run.ema is not None else {}
    )
    folder = None
    if run.accelerator.is_main_process:

        def fill(folder: Path) -> None:
            checkpoint.save_denoiser(run.denoiser, folder, weights)
            save_file(means, folder / OPTIMIZER)
            if average:
                save_file(average, folder / EMA, {"format": "pt"})
            describe(run, folder)

        folder = trainstate.save(run.out, run.step, fill, keep=run.config.train.keep)
        if folder is not None:
            export(folder, run.out)
    run.accelerator.wait_for_everyone()
    return folder


def describe(run: Run, folder: Path) -> None:
    """Write what a checkpoint has beside tensors."""
    config, scaler = run.config, run.accelerator.scaler
    write_json(folder / SETTINGS, to_json(config))
    state = {
        "step": run.step,
        "clock": asdict(run.clock),
        "groups": [{"steps": group.get("steps", 0)} for group in run.optimizer.param_groups],
        "ema_steps": run.ema.steps if run.ema is not None else 0,
        "scaler": scaler.state_dict() if scaler is not None else {},
    }
    write_json(folder / STATE, state)
    write_json(folder / PROFILE, run.profile)
    decoding = DecodeConfig(B=(config.model.B,), T=config.train.decode_T)
    checkpoint.save_decoding(decoding, folder)
    for source in (run.stores[0].dir / name for name in TOKENIZER):
        if source.exists():
            shutil.copyfile(source, folder / source.name)


def export(folder: Path, out: Path) -> None:
    """Let OUT be a model's folder with a checkpoint's weights, averaged where they are."""
    best = folder / EMA
    weights = best if best.exists() else folder / checkpoint.WEIGHTS
    trainstate.link(weights, out / checkpoint.WEIGHTS)
    for source in (folder / name for name in MODEL):
        if source.exists():
            trainstate.link(source, out / source.name)


def restore(run: Run, folder: Path) -> None:
    """Take a run to where a checkpoint left it; every process reads the files."""
    state = read_json(folder / STATE)
    run.step = state["step"]
    run.clock = Clock(**state.get("clock", {}))
    run.profile = json.loads((folder / PROFILE).read_text(encoding="utf-8"))
    weights = load_file(folder / checkpoint.WEIGHTS)
    for name, value in trainstate.unique_tensors(run.denoiser).items():
        distributed.put(value, weights[name])
    means = load_file(folder / OPTIMIZER)
    trainstate.put_optimizer_state(run.optimizer, run.denoiser, means)
    for group, known in zip(run.optimizer.param_groups, state["groups"], strict=True):
        group.update(known)
    if run.ema is not None:
        restore_average(run.ema, run.denoiser, load_file(folder / EMA), state["ema_steps"])
    if run.accelerator.scaler is not None:
        run.accelerator.scaler.load_state_dict(state["scaler"])


def restore_average(ema: Ema, denoiser: nn.Module, known: dict[str, Tensor], steps: int) -> None:
    """Give a moving average its values back; a tied tensor was stored under its first name."""
    first = {id(value): name for name, value in trainstate.unique_tensors(denoiser).items()}
    ema.steps = steps
    for name, value in denoiser.state_dict(keep_vars=True).items():
        distributed.put(ema.mean[name], known[first[id(value)]])


@contextmanager
def averaged(run: Run) -> Iterator[None]:
    """Let the denoiser have the averaged weights for a while, where an average is kept."""
    if run.ema is None:
        yield
        return
    own = {name: value.detach().clone() for name, value in run.denoiser.state_dict().items()}
    run.ema.copy_to(run.denoiser)
    try:
        yield
    finally:
        run.denoiser.load_state_dict(own)

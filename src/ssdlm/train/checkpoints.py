"""Checkpoints of a run: all that it needs to go on, and a model's folder in itself.

Nothing is pickled: tensors are safetensors, the rest is JSON. They are written beside the run, from
copies. Of a run in shards every process writes its own part; the weights are then joined, one
tensor at a time, the moments stay in shards. Either way it may go on in any number of processes.
run -> [checkpoints] -> resume, loop
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ssdlm.config import AdapterConfig, ranged, require_ranges, required
from ssdlm.options import GenerateOptions
from ssdlm.settings import to_json
from ssdlm.shapes import Tensor
from ssdlm.storage import checkpoint
from ssdlm.storage.files import read_checked, write_json
from ssdlm.storage.tensors import names_in, save_tensors, unique_tensors
from ssdlm.train import distributed
from ssdlm.train.checkpoint_folders import EMA, NewFolder, link
from ssdlm.train.learning_rate import Clock
from ssdlm.train.run import Run
from ssdlm.train.spikes import Spikes

SETTINGS, STATE = "train.json", "state.json"
OPTIMIZER = "optimizer.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
NARROW = {"grid": "sliding", "width": 4.0, "returns": "w_0", "top_p": 0.9, "nucleus": "network"}
NARROW |= {"gradient": "words", "stop_at_end": True}
"""How a language model with an adapter writes: four positions open, two passes a token."""
MODEL_FILES = (checkpoint.CONFIG, checkpoint.DECODING, *TOKENIZER)
"""Files of a checkpoint that OUT has too, beside the weights."""


@dataclass(frozen=True)
class State:
    """`state.json`: what a checkpoint has beside tensors and settings."""

    step: int = ranged(MISSING, least=0)
    groups: tuple[dict[str, int], ...] = required()
    """Of the optimiser."""
    clock: Clock = field(default_factory=Clock)
    ema_steps: int = ranged(0, least=0)
    scaler: dict[str, Any] = field(default_factory=dict)
    spikes: Spikes = field(default_factory=Spikes)

    def __post_init__(self) -> None:
        require_ranges(self)


def begin_save(run: Run) -> None:
    """Copy what a checkpoint keeps and begin to write it; one that is under way is waited for."""
    run.writing.end()
    train = run.config.train
    folder = NewFolder(run.out, run.step, train.keep, train.keep_every)
    is_main = run.accelerator.is_main_process
    if run.group is not None:
        work = sharded_work(run, folder)
    elif is_main:
        work = whole_work(run, folder)
    else:
        return
    run.writing.begin(lambda: folder.write(work, warns=is_main), is_waited_for=not train.async_save)


def whole_work(run: Run, folder: NewFolder) -> Callable[[], None]:
    """Return what writes a checkpoint of a process that has all tensors whole."""
    weights, average, moments = (copied(run, tensors) for tensors in tensors_of(run))
    write_rest = rest_of(run)

    def work() -> None:
        folder.prepare()
        checkpoint.save_denoiser(run.denoiser, folder.temporary, weights)
        save_tensors(moments, folder.temporary / OPTIMIZER)
        if average:
            save_tensors(average, folder.temporary / EMA)
        write_rest(folder.temporary)
        folder.finish()
        export(folder.path, run.out)

    return work


def sharded_work(run: Run, folder: NewFolder) -> Callable[[], None]:
    """Return what writes a process's part of a checkpoint, and in the main one makes it whole."""
    from ssdlm.train import shards

    weights, average, moments = tensors_of(run)
    own = {
        f"{kind}/{name}": value
        for kind, tensors in zip(shards.KINDS, (weights, average, moments), strict=True)
        for name, value in tensors.items()
    }
    copies, write_rest = copied(run, own), rest_of(run)

    def finish() -> None:
        shards.join(folder.temporary, "weights", weights, checkpoint.WEIGHTS)
        if average:
            shards.join(folder.temporary, "average", average, EMA)
        checkpoint.save_config(run.denoiser, folder.temporary)
        write_rest(folder.temporary)
        folder.finish()
        export(folder.path, run.out)

    def work() -> None:
        writer = shards.FolderWriter(folder.temporary, own, folder.prepare, finish)
        shards.write_shards(writer, copies, run.group)

    return work


def tensors_of(run: Run) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return weights, their moving average and the optimiser's moments by name, not copied."""
    weights = unique_tensors(run.denoiser)
    average = {name: run.ema.mean[name] for name in weights} if run.ema is not None else {}
    moments = {
        f"{name}/{field}": value
        for name, weight in run.denoiser.named_parameters()
        for field, value in run.optimizer.state.get(weight, {}).items()
    }
    return weights, average, moments


def copied(run: Run, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in main memory, copies where training goes on with the tensors themselves."""
    copy = run.config.train.async_save
    return {k: v.detach().to("cpu", copy=copy).contiguous() for k, v in tensors.items()}


def rest_of(run: Run) -> Callable[[Path], None]:
    """Return what writes a checkpoint's other files, as the run is now."""
    config, scaler = run.config, run.accelerator.scaler
    state = {
        "step": run.step,
        "clock": asdict(run.clock),
        "groups": [{"steps": group.get("steps", 0)} for group in run.optimizer.param_groups],
        "ema_steps": run.ema.steps if run.ema is not None else 0,
        "scaler": scaler.state_dict() if scaler is not None else {},
        "spikes": asdict(run.spikes),
    }

    def write(folder: Path) -> None:
        write_json(folder / SETTINGS, to_json(config))
        write_json(folder / STATE, state)
        options = GenerateOptions(B=(config.model.B,), T=config.train.decode_T)
        if isinstance(config.model, AdapterConfig):
            options = options.change(**NARROW)
        checkpoint.save_options(options, folder)
        for source in (run.stores[0].dir / name for name in TOKENIZER):
            if source.exists():
                shutil.copyfile(source, folder / source.name)

    return write


def export(folder: Path, out: Path) -> None:
    """Make OUT a model's folder with a checkpoint's weights: their average, where there is one."""
    average = folder / EMA
    weights = average if average.exists() else folder / checkpoint.WEIGHTS
    link(weights, out / checkpoint.WEIGHTS)
    for source in (folder / name for name in MODEL_FILES):
        if source.exists():
            link(source, out / source.name)


def restore(run: Run, folder: Path) -> None:
    """Take a run to where a checkpoint left it; every process reads its own part of the tensors."""
    state = read_checked(folder / STATE, State)
    run.step, run.clock, run.spikes = state.step, state.clock, state.spikes
    weights = unique_tensors(run.denoiser)
    distributed.read_into(weights, folder / checkpoint.WEIGHTS)
    restore_moments(run, folder)
    for group, known in zip(run.optimizer.param_groups, state.groups, strict=True):
        group.update(known)
    if run.ema is not None:
        run.ema.steps = state.ema_steps
        distributed.read_into({name: run.ema.mean[name] for name in weights}, folder / EMA)
        # A tied tensor was stored once, under the first of its names.
        first_name = {id(value): name for name, value in weights.items()}
        for name, value in run.denoiser.state_dict(keep_vars=True).items():
            run.ema.mean[name].copy_(run.ema.mean[first_name[id(value)]])
    if run.accelerator.scaler is not None:
        run.accelerator.scaler.load_state_dict(state.scaler)


def restore_moments(run: Run, folder: Path) -> None:
    """Give the optimiser the moments of a checkpoint: of one file, or of shards."""
    parameters = dict(run.denoiser.named_parameters())

    def make(names: Iterable[str]) -> dict[str, Tensor]:
        made = {}
        for key in names:
            name, _, field = key.rpartition("/")
            weight = parameters[name]
            run.optimizer.state[weight][field] = made[key] = torch.zeros_like(weight)
        return made

    if (folder / OPTIMIZER).exists():
        distributed.read_into(make(names_in(folder / OPTIMIZER)), folder / OPTIMIZER)
        return
    from ssdlm.train import shards

    prefix = "moments/"
    names = sorted(name.removeprefix(prefix) for name in shards.names(folder, "moments"))
    shards.read_shards(folder, {prefix + name: value for name, value in make(names).items()})

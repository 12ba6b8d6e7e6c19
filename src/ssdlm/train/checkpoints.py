"""Checkpoints of a run: all that it needs to go on, and a model's folder in itself.

Nothing is pickled: tensors are safetensors, the rest is JSON. However a run was split over
processes, its checkpoints have whole tensors, so it may go on in another number of them.
run -> [checkpoints] -> resume, loop
"""

from __future__ import annotations

import shutil
from dataclasses import MISSING, asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from ssdlm.config import ranged, require_ranges, required
from ssdlm.options import GenerateOptions
from ssdlm.settings import to_json
from ssdlm.shapes import Tensor
from ssdlm.storage import checkpoint
from ssdlm.storage.files import read_checked, write_json
from ssdlm.storage.tensors import save_tensors
from ssdlm.train import distributed
from ssdlm.train.checkpoint_folders import EMA, link, write_folder
from ssdlm.train.learning_rate import Clock
from ssdlm.train.run import Run
from ssdlm.train.spikes import Spikes

SETTINGS, STATE = "train.json", "state.json"
OPTIMIZER = "optimizer.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
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


def save(run: Run) -> Path | None:
    """Write a checkpoint and let OUT have its weights; return None when the disk is full."""
    # All processes take part in gathering; one writes.
    weights = gather(unique_tensors(run.denoiser))
    moments = gather(
        {
            f"{name}/{field}": value
            for name, weight in run.denoiser.named_parameters()
            for field, value in run.optimizer.state.get(weight, {}).items()
        }
    )
    average = gather({name: run.ema.mean[name] for name in weights} if run.ema is not None else {})
    folder = None
    if run.accelerator.is_main_process:

        def fill(folder: Path) -> None:
            checkpoint.save_denoiser(run.denoiser, folder, weights)
            save_tensors(moments, folder / OPTIMIZER)
            if average:
                save_tensors(average, folder / EMA)
            write_state(run, folder)

        train = run.config.train
        folder = write_folder(run.out, run.step, fill, keep=train.keep, keep_every=train.keep_every)
        if folder is not None:
            export(folder, run.out)
    run.accelerator.wait_for_everyone()
    return folder


def write_state(run: Run, folder: Path) -> None:
    """Write what a checkpoint has beside tensors."""
    config, scaler = run.config, run.accelerator.scaler
    write_json(folder / SETTINGS, to_json(config))
    state = {
        "step": run.step,
        "clock": asdict(run.clock),
        "groups": [{"steps": group.get("steps", 0)} for group in run.optimizer.param_groups],
        "ema_steps": run.ema.steps if run.ema is not None else 0,
        "scaler": scaler.state_dict() if scaler is not None else {},
        "spikes": asdict(run.spikes),
    }
    write_json(folder / STATE, state)
    options = GenerateOptions(B=(config.model.B,), T=config.train.decode_T)
    checkpoint.save_options(options, folder)
    for source in (run.stores[0].dir / name for name in TOKENIZER):
        if source.exists():
            shutil.copyfile(source, folder / source.name)


def export(folder: Path, out: Path) -> None:
    """Make OUT a model's folder with a checkpoint's weights: their average, where there is one."""
    average = folder / EMA
    weights = average if average.exists() else folder / checkpoint.WEIGHTS
    link(weights, out / checkpoint.WEIGHTS)
    for source in (folder / name for name in MODEL_FILES):
        if source.exists():
            link(source, out / source.name)


def restore(run: Run, folder: Path) -> None:
    """Take a run to where a checkpoint left it; every process reads the files."""
    state = read_checked(folder / STATE, State)
    run.step, run.clock, run.spikes = state.step, state.clock, state.spikes
    weights, names = load_file(folder / checkpoint.WEIGHTS), unique_tensors(run.denoiser)
    for name, value in names.items():
        distributed.copy_tensor(value, weights[name])
    parameters = dict(run.denoiser.named_parameters())
    for key, value in load_file(folder / OPTIMIZER).items():
        name, _, field = key.rpartition("/")
        weight = parameters[name]
        run.optimizer.state[weight][field] = distributed.shard_like(weight, value)
    for group, known in zip(run.optimizer.param_groups, state.groups, strict=True):
        group.update(known)
    if run.ema is not None:
        average, run.ema.steps = load_file(folder / EMA), state.ema_steps
        # A tied tensor was stored once, under the first of its names.
        first_name = {id(value): name for name, value in names.items()}
        for name, value in run.denoiser.state_dict(keep_vars=True).items():
            distributed.copy_tensor(run.ema.mean[name], average[first_name[id(value)]])
    if run.accelerator.scaler is not None:
        run.accelerator.scaler.load_state_dict(state.scaler)


def unique_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's weights and buffers by name, themselves and not copies; tied ones once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        found.setdefault(id(value), (name, value))
    return dict(found.values())


def gather(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors whole and ready to be written; all processes must take part."""
    return {
        name: distributed.gather_tensor(value).cpu().contiguous() for name, value in tensors.items()
    }

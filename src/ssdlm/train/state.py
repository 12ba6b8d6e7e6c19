"""Checkpoints of a run, as folders that are whole or not there at all.  train -> [trainstate]

    OUT/checkpoints/step-N/    what `fill` wrote, and manifest.json with a digest of every file

A folder is filled under a temporary name and then renamed, so that a run killed at any moment
leaves only whole ones. On the way back in, digests are compared; a damaged folder is passed over.
Nothing is pickled: tensors are safetensors, the rest is JSON.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from ssdlm.shapes import Tensor
from ssdlm.storage.files import sha256, write_json
from ssdlm.train import distributed

MANIFEST = "manifest.json"
PARTIAL = ".partial-"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def save(out: Path, step: int, fill: Callable[[Path], None], *, keep: int) -> Path | None:
    """Write one checkpoint and drop the oldest; None, and a warning, when the disk is full."""
    folder = out / "checkpoints"
    temporary = folder / f"{PARTIAL}{step}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove(temporary)
        temporary.mkdir()
        fill(temporary)
        write_json(temporary / MANIFEST, {"step": step, "files": digests(temporary)})
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not is_disk_full(error):
            raise
        warnings.warn(
            f"no space left for checkpoint {step} in {folder}; going on, the one before is kept",
            stacklevel=2,
        )
        return None
    target = folder / f"step-{step}"
    remove(target)
    os.rename(temporary, target)
    for old in list(steps(out))[keep:]:
        remove(folder / f"step-{old}")
    return target


def newest(out: Path) -> Path | None:
    """Return the newest whole checkpoint; warn about each damaged one that is passed over."""
    for step in steps(out):
        folder = out / "checkpoints" / f"step-{step}"
        damage = find_damage(folder)
        if not damage:
            return folder
        warnings.warn(
            f"checkpoint {folder} is damaged ({damage}); falling back to the one before",
            stacklevel=2,
        )
    return None


def steps(out: Path) -> Iterator[int]:
    """Yield the steps that have a checkpoint, newest first."""
    names = (path.name.removeprefix("step-") for path in (out / "checkpoints").glob("step-*"))
    yield from sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def sweep(out: Path) -> None:
    """Remove what a killed run left half written or half removed."""
    for path in (out / "checkpoints").glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a folder if it is there; a kill in between leaves no half checkpoint."""
    if folder.exists():
        doomed = folder.with_name(f"{PARTIAL}old-{folder.name.lstrip('.')}")
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def is_disk_full(error: Exception) -> bool:
    """Say whether a write failed for want of space; safetensors tells only in its message."""
    if isinstance(error, OSError):
        return error.errno in DISK_FULL
    return any(f"os error {number})" in str(error) for number in DISK_FULL)


def digests(folder: Path) -> dict[str, Any]:
    """Return size and SHA-256 of every file in a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}


def find_damage(folder: Path) -> str:
    """Return what is wrong with a checkpoint in a few words; empty when it is whole."""
    try:
        expected = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, facts in expected.items():
            if (folder / name).stat().st_size != facts["bytes"]:
                return f"{name} has the wrong size"
            if sha256(folder / name) != facts["sha256"]:
                return f"{name} has the wrong digest"
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    return ""


def unique_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's weights and buffers by name, themselves and not copies; tied ones once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        found.setdefault(id(value), (name, value))
    return dict(found.values())


def gather(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors whole and ready to be written; all processes must take part."""
    return {name: distributed.gathered(value).cpu().contiguous() for name, value in tensors.items()}


def optimizer_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """Return an optimiser's running means as `weight/field` -> tensor."""
    return {
        f"{name}/{field}": value
        for name, weight in module.named_parameters()
        for field, value in optimizer.state.get(weight, {}).items()
    }


def put_optimizer_state(
    optimizer: torch.optim.Optimizer, module: nn.Module, state: dict[str, Tensor]
) -> None:
    """Give an optimiser the running means that `optimizer_state` returned, gathered."""
    weights = dict(module.named_parameters())
    for key, value in state.items():
        name, _, field = key.rpartition("/")
        optimizer.state[weights[name]][field] = distributed.like(weights[name], value)


def link(source: Path, target: Path) -> None:
    """Let `target` be the same file as `source`, or a copy where that cannot be, in one move."""
    temporary = target.with_name(f".{target.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)

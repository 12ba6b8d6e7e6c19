"""A run begun, or taken up where its newest checkpoint left it.  run, checkpoints -> [resume]"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ssdlm.config import Config
from ssdlm.data.shards import TokenStore
from ssdlm.diffusion.noise import mix
from ssdlm.settings import differences, to_json
from ssdlm.storage import checkpoint
from ssdlm.storage.files import locked, partial_name, read_checked, write_json
from ssdlm.train import checkpoint_folders, distributed
from ssdlm.train.checkpoints import MODEL_FILES, SETTINGS, export, restore
from ssdlm.train.initial_weights import build, find_init
from ssdlm.train.log import LOG, RUN, RunFile, open_tracker
from ssdlm.train.run import WEIGHTS, Run, assemble, resolve
from ssdlm.train.sharded_weights import begin, outline

WRITTEN = ("checkpoints", LOG, "tensorboard", checkpoint.WEIGHTS, *MODEL_FILES)
"""All that a run writes into OUT beside its settings."""


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Make the folder of a run and keep a second run out of it; left empty, it is removed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{out} is, or lies in, a file; give the name of a folder") from None
    if os.environ.get("RANK", "0") != "0":  # of several processes of one run, the first one locks
        yield
        return
    with locked(out, f"another `ssdlm train` is writing to {out}; wait for it"):
        try:
            yield
        finally:
            with suppress(OSError):
                out.rmdir()


def start(config: Config, folders: list[Path], out: Path, *, fresh: bool) -> Run:
    """Return a run at its beginning, or as its newest checkpoint has it."""
    refuse_other_folder(out)
    stores = [TokenStore.open(folder) for folder in folders]
    asked = {"config": to_json(config), "data": [store.digest for store in stores]}
    is_sharded = config.train.sharding == "fsdp" or distributed.is_sharding_asked()
    accelerator = distributed.make_accelerator(
        precision=config.train.precision, device=config.train.device
    )
    is_sharded = is_sharded and accelerator.num_processes > 1
    newest = None if fresh else find_checkpoint(accelerator, out, asked)
    torch.manual_seed(mix(config.train.seed, WEIGHTS))
    fill = None
    if newest is None:
        refuse_own_weights(config.train.init, out)
        config = resolve(config, stores)
        denoiser, fill = begin(config, stores, is_sharded=is_sharded)
        config = replace(config, model=denoiser.config)
    else:
        config = read_checked(newest / SETTINGS, Config)
        denoiser = (outline if is_sharded else build)(config.model)
    run = assemble(config, accelerator, out, stores, denoiser, is_sharded=is_sharded, fill=fill)
    if newest is not None:
        restore(run, newest)
    if accelerator.is_main_process:
        # Before anything is written: a service that is missing or silent leaves OUT as it was.
        run.tracker = open_tracker(config.train.tracker, out, to_json(config), run.step)
    if accelerator.is_main_process and newest is not None:
        # The run may have been killed between a checkpoint and what comes after it.
        export(newest, out)
        checkpoint_folders.remove_old(out, run.step, config.train.keep, config.train.keep_every)
    elif accelerator.is_main_process:
        clear(out)
        # Replaced at once and not removed: without it, the folder would be nobody's.
        write_json(out / RUN, {"asked": asked, "config": to_json(config)})
    accelerator.wait_for_everyone()
    return run


def find_checkpoint(accelerator: Any, out: Path, asked: dict[str, Any]) -> Path | None:
    """Return the checkpoint to go on from, None if there is none; refuse to mix two runs."""
    if (out / RUN).exists():
        file = read_checked(out / RUN, RunFile, remedy="use another --out, or --fresh")
        # Read and written again, a config of an earlier version has the fields of this one.
        known = {"config": to_json(file.asked.config), "data": list(file.asked.data)}
        if changed := differences(known, asked):
            words = ", ".join(change.removeprefix("config.") for change in changed)
            raise ValueError(
                f"{out} contains a run with other settings ({words}); "
                "give the same settings, another --out, or --fresh to start over"
            )
    newest = None
    if accelerator.is_main_process:
        checkpoint_folders.remove_partial(out)
        newest = checkpoint_folders.find_newest(out)
    return distributed.broadcast(accelerator, newest)


def refuse_other_folder(out: Path) -> None:
    """Raise where OUT has something in it that no run wrote, and that a run would overwrite."""
    if (out / RUN).exists():
        return
    # A run killed before it wrote its settings leaves the temporary file.
    found = sorted(path.name for path in out.iterdir() if path != partial_name(out / RUN))
    if found:
        raise ValueError(
            f"{out} is not empty ({found[0]} is there) and not the folder of a run; "
            "give --out a new folder"
        )


def refuse_own_weights(init: str, out: Path) -> None:
    """Raise where a run that starts over would remove the weights that it starts from."""
    if init and find_init(init).resolve().is_relative_to(out.resolve()):
        raise ValueError(f"train.init={init} is in --out {out}, which is cleared; give another")


def clear(out: Path) -> None:
    """Make OUT ready for a new run: what an earlier one wrote goes, the rest stays."""
    for path in (out / name for name in WRITTEN):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

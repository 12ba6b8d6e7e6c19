"""A run begun, or taken up where its newest checkpoint left it.  run, checkpoints -> [resume]"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ssdlm.config import Config
from ssdlm.data.shards import TokenStore
from ssdlm.diffusion.noise import mix
from ssdlm.settings import differences, from_json, to_json
from ssdlm.storage import checkpoint
from ssdlm.storage.files import read_json, write_json
from ssdlm.train import checkpoint_folders, distributed
from ssdlm.train.checkpoints import MODEL_FILES, SETTINGS, export, restore
from ssdlm.train.initial_weights import build, make_denoiser
from ssdlm.train.log import LOG
from ssdlm.train.run import WEIGHTS, Run, assemble, resolve

RUN = "run.json"
WRITTEN = ("checkpoints", LOG, "tensorboard", checkpoint.WEIGHTS, *MODEL_FILES, RUN)
"""All that a run writes into OUT, in the order in which it is removed."""


def start(config: Config, folders: list[Path], out: Path, *, fresh: bool) -> Run:
    """Return a run at its beginning, or as its newest checkpoint has it."""
    stores = [TokenStore.open(folder) for folder in folders]
    asked = {"config": to_json(config), "data": [store.digest for store in stores]}
    is_sharded = config.train.sharding == "fsdp" or distributed.is_sharding_asked()
    accelerator = distributed.make_accelerator(
        precision=config.train.precision, device=config.train.device
    )
    newest = None if fresh else find_checkpoint(accelerator, out, asked)
    torch.manual_seed(mix(config.train.seed, WEIGHTS))
    if newest is None:
        config = resolve(config, stores)
        denoiser = make_denoiser(config, stores)
        config = replace(config, model=denoiser.config)
    else:
        config = from_json(Config, read_json(newest / SETTINGS))
        denoiser = build(config.model)
    run = assemble(config, accelerator, out, stores, denoiser, is_sharded=is_sharded)
    if newest is not None:
        restore(run, newest)
    if accelerator.is_main_process and newest is not None:
        export(newest, out)  # the run may have been killed between checkpoint and export
    elif accelerator.is_main_process:
        clear(out)
        write_json(out / RUN, {"asked": asked, "config": to_json(config)})
    accelerator.wait_for_everyone()
    return run


def find_checkpoint(accelerator: Any, out: Path, asked: dict[str, Any]) -> Path | None:
    """Return the checkpoint to go on from, None if there is none; refuse to mix two runs."""
    if (out / RUN).exists():
        known = read_json(out / RUN)["asked"]
        # Read and written again, a config of an earlier version has the fields of this one.
        known["config"] = to_json(from_json(Config, known["config"]))
        if changed := differences(known, asked):
            words = ", ".join(change.removeprefix("config.") for change in changed)
            raise ValueError(
                f"{out} contains a run with other settings ({words}); "
                "give the same settings, another --out, or --fresh to start over"
            )
    elif any(checkpoint_folders.list_steps(out)):
        raise ValueError(f"{out} has checkpoints but no {RUN}; use another --out, or --fresh")
    newest = None
    if accelerator.is_main_process:
        checkpoint_folders.remove_partial(out)
        newest = checkpoint_folders.find_newest(out)
    return distributed.broadcast(accelerator, newest)


def clear(out: Path) -> None:
    """Make OUT ready for a new run: what an earlier one wrote goes, the rest stays."""
    out.mkdir(parents=True, exist_ok=True)
    for path in (out / name for name in WRITTEN):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

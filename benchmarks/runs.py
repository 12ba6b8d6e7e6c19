"""Training runs from arrays of tokens, as the library assembles them.  [runs] -> train, ablation"""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssdlm.config import Config
from ssdlm.data.shards import FORMAT, INDEX, TokenStore, token_dtype
from ssdlm.diffusion.noise import mix
from ssdlm.storage.files import sha256, write_json
from ssdlm.train import distributed
from ssdlm.train.initial_weights import make_denoiser
from ssdlm.train.run import Run, assemble, resolve


def write_store(folder: Path, train: np.ndarray, holdout: np.ndarray, *, V: int) -> Path:
    """Write a token store of two splits, one shard each; document ends are not marked."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {}
    for name, tokens in (("train", train), ("holdout", holdout)):
        path = folder / f"{name}-00000.bin"
        tokens.astype(token_dtype(V)).tofile(path)
        counts = {"documents": 1, "tokens": len(tokens), "bytes": len(tokens)}
        shard = {"name": path.name, "sha256": sha256(path)} | counts
        splits[name] = counts | {"shards": [shard]}
    digest = splits["train"]["shards"][0]["sha256"]
    index = {"format": FORMAT, "digest": digest, "V": V, "end_of_text": V - 1, "splits": splits}
    write_json(folder / INDEX, index)
    return folder


def make_run(config: Config, folder: Path) -> Run:
    """Return a run at its first step, as `ssdlm train` would begin it; nothing is written."""
    stores = [TokenStore.open(folder)]
    accelerator = distributed.make_accelerator(
        precision=config.train.precision, device=config.train.device
    )
    torch.manual_seed(mix(config.train.seed, 0))
    config = resolve(config, stores)
    denoiser = make_denoiser(config, stores)
    config = replace(config, model=denoiser.config)
    return assemble(config, accelerator, folder, stores, denoiser, is_sharded=False)


def count_parameters(module: torch.nn.Module) -> int:
    """Return how many numbers are trained; tied weights count once."""
    return sum(weight.numel() for weight in module.parameters())


class Pace:
    """Keeps the CPU from running far ahead of a GPU, without ever letting the GPU wait."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self.events: list[Any] = []

    def step(self) -> None:
        """Mark a step as sent; return when the one before the last is done."""
        if not self.is_cuda:
            return
        self.events.append(torch.cuda.Event())
        self.events[-1].record()
        if len(self.events) > 2:
            self.events.pop(0).synchronize()

    def finish(self) -> None:
        """Return when everything is done."""
        if self.is_cuda:
            torch.cuda.synchronize()


def free() -> None:
    """Give memory back, and forget what was compiled for other shapes."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

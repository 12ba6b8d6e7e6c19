"""Training runs from arrays of tokens, as the library assembles them.

[runs] -> train, ablation, levers, diffusion_lm
"""

from __future__ import annotations

import argparse
import gc
import lzma
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssdlm.config import Config
from ssdlm.data.shards import FORMAT, INDEX, TokenStore, token_dtype
from ssdlm.data.windows import example_seeds
from ssdlm.diffusion.noise import mix
from ssdlm.shapes import Tensor, Tokens
from ssdlm.storage.files import read_json, sha256, write_json
from ssdlm.train import distributed
from ssdlm.train.examples import normals
from ssdlm.train.initial_weights import make_denoiser
from ssdlm.train.loop import train_step
from ssdlm.train.run import Run, assemble, resolve

WARM_UP = 6
"""Steps before the clock starts: the first ones compile."""


def add_arguments(parser: argparse.ArgumentParser, *, seconds: float, out: str) -> None:
    """Add what a benchmark of several training runs, one per row of its table, takes."""
    parser.add_argument("--data", nargs="+", required=True, help="token files or stores")
    parser.add_argument("--V", type=int, default=8192, help="vocabulary size of the tokens")
    parser.add_argument("--tokens", type=int, default=0, help="read no more than this; 0: all")
    parser.add_argument("--seconds", type=float, default=seconds, help="of training, each row")
    parser.add_argument("--out", default=out, help="where each row leaves its JSON")
    parser.add_argument("--sequences", type=int, default=64, help="held-out ones")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")


@contextmanager
def store_of(args: argparse.Namespace) -> Iterator[tuple[Path, int]]:
    """Give a token store of --data whose last sequences are held out, and the number of tokens."""
    tokens = load_tokens(args.data, args.tokens)
    num_held_out = args.sequences * (40 if args.tiny else 200)
    with tempfile.TemporaryDirectory() as folder:
        parts = tokens[:-num_held_out], tokens[-num_held_out:]
        yield write_store(Path(folder), *parts, V=args.V), len(tokens)


def kept_result(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result in a file, or compute it, and keep it there if it is no error."""
    if path.exists():
        return read_json(path)
    result = compute()
    if "error" not in result:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
    return result


def load_tokens(paths: list[str], limit: int) -> np.ndarray:
    """Return the tokens of files and stores, one after the other."""
    parts = []
    for path in map(Path, paths):
        if path.is_dir():
            store = TokenStore.open(path)
            parts.append(store.read(0, len(store)))
        else:
            raw = path.read_bytes()
            raw = lzma.decompress(raw) if path.suffix == ".xz" else raw
            parts.append(np.frombuffer(raw, "<u2"))
    return np.concatenate(parts)[: limit or None]


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
    index |= {"settings": {}, "files": []}
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


def train_for(run: Run, seconds: float) -> float:
    """Train by the clock; return the seconds that it took, compiling left out."""
    pace, config = Pace(run.accelerator.device), run.config
    endless = replace(config, train=replace(config.train, steps=10**9))
    run.config = endless
    for _ in range(WARM_UP if pace.is_cuda else 1):
        advance(run, pace)
    pace.finish()
    began, first = time.perf_counter(), run.step
    while (gone := time.perf_counter() - began) < seconds:
        if gone > 0.05 * seconds:  # by then the speed is known
            steps = max(run.step + 1, first + round((run.step - first) * seconds / gone))
            run.config = replace(config, train=replace(config.train, steps=steps))
        advance(run, pace)
    pace.finish()
    return time.perf_counter() - began


def advance(run: Run, pace: Pace) -> None:
    """Take one optimiser step."""
    train_step(run)
    run.step += 1
    pace.step()


def noise_after(c: int, count: int, run: Run) -> Any:
    """Return the noise of each measurement of the blocks after c tokens, alike for all models."""
    V, B, device = run.denoiser.V, run.config.model.B, run.accelerator.device

    def draw(k: int) -> Tensor:
        seeds = example_seeds(c, k, np.arange(count)).to(device)
        return normals(seeds, B, V)[..., :V].float()

    return draw


def holdout_rows(store: Path, max_len: int) -> Tokens:
    """Return the held-out sequences, the same for every row."""
    holdout = TokenStore.open(store, "holdout")
    tokens = holdout.read(0, len(holdout) // max_len * max_len)
    return torch.from_numpy(tokens.astype(np.int64)).view(-1, max_len)


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

"""What a large model takes in shards.  python benchmarks/sharded.py create|step [--recipe large]

create: makes the model in several processes on a CPU, without optimiser, and prints what each took:
its own parts of the weights, and the peak of its memory over what it had before. `paper_large`
starts from a file of RoBERTa-large's sizes with random weights, which is written first.
step: takes two optimiser steps in one process, a GPU's where there is one, through the same code as
several would; with --save it writes a checkpoint in shards and reads it again.
The last line of either is JSON. --tiny is small enough for a test.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runs import count_parameters, write_store

from ssdlm.config import Config
from ssdlm.data.shards import TokenStore
from ssdlm.diffusion.noise import mix
from ssdlm.settings import override
from ssdlm.storage.tensors import unique_tensors, write_one_by_one
from ssdlm.train import distributed
from ssdlm.train.checkpoint_folders import find_newest
from ssdlm.train.checkpoints import begin_save, restore
from ssdlm.train.costs import memory_of
from ssdlm.train.loop import train_step
from ssdlm.train.recipes import recipe
from ssdlm.train.run import Run, assemble, resolve
from ssdlm.train.sharded_weights import begin
from train import ROBERTA

V = 50265
"""RoBERTa's vocabulary."""
SIZES = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
TINY_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY = ("D=32", "num_layers=2", "num_heads=2", "max_len=60", "micro_batch=2")


def run_of(config: Config, folder: Path) -> Run:
    """Return a run in shards at its first step; a process may be alone with all of them."""
    stores = [TokenStore.open(folder)]
    train = config.train
    accelerator = distributed.make_accelerator(precision=train.precision, device=train.device)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(mix(train.seed, 0))
    config = resolve(config, stores)
    denoiser, fill = begin(config, stores, is_sharded=True)
    config = replace(config, model=denoiser.config)
    return assemble(config, accelerator, folder, stores, denoiser, is_sharded=True, fill=fill)


def memory(kind: str) -> float:
    """Return what Linux says of this process's memory in GiB: VmRSS now, VmHWM at the most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 2**20


def create(environment: dict[str, str], config: Config, folder: Path, results: Any) -> None:
    """Make a model's shards in one of several processes; report its memory."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    before, began = memory("VmRSS"), time.monotonic()
    run = run_of(config, folder)
    own = sum(distributed.own_part(weight)[0].nbytes for weight in run.denoiser.parameters())
    row = {
        "process": int(environment["RANK"]),
        "parameters": count_parameters(run.denoiser),
        "own_gib": own / 2**30,
        "peak_gib": memory("VmHWM") - before,
        "before_gib": before,
        "seconds": time.monotonic() - began,
    }
    results.put(row)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def create_all(config: Config, folder: Path, count: int) -> list[dict[str, Any]]:
    """Return what each of several processes took."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    shared["LOCAL_WORLD_SIZE"] = str(count)
    processes = []
    for rank in map(str, range(count)):
        environment = shared | {"RANK": rank, "LOCAL_RANK": rank}
        given = (environment, config, folder, results)
        processes.append(context.Process(target=create, args=given))
        processes[-1].start()
    rows = [results.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return sorted(rows, key=lambda row: row["process"])


def step(config: Config, folder: Path, *, is_saved: bool) -> dict[str, Any]:
    """Take two optimiser steps in this process alone; return the second's time, and memory."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611"})
    began = time.monotonic()
    run = run_of(config, folder)
    found: dict[str, Any] = {
        "device": str(run.accelerator.device),
        "parameters": count_parameters(run.denoiser),
        "creation_s": time.monotonic() - began,
    }
    for _ in range(2):
        began = time.monotonic()
        result = train_step(run)
        run.step += 1
        found["loss"] = float(result.losses.total)  # waits for a GPU
        found["step_s"] = time.monotonic() - began
    if torch.cuda.is_available():
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    found["expected_gib"] = memory_of(run.config, num_gpus=1, is_sharded=True).total / 2**30
    if is_saved:
        found["saving"] = save_and_restore(run)
    torch.distributed.destroy_process_group()
    return found


def save_and_restore(run: Run) -> dict[str, Any]:
    """Write a checkpoint in shards beside a step, go back to it; return what that took."""
    began = time.monotonic()
    begin_save(run)
    held_up = time.monotonic() - began
    loss = float(train_step(run).losses.total)
    folder = run.writing.end()
    seconds = time.monotonic() - began
    assert folder is not None and folder == find_newest(run.out)
    restore(run, folder)
    again = float(train_step(run).losses.total)
    return {"held_up_s": held_up, "seconds": seconds, "loss": loss, "loss_again": again}


def write_masked_lm(folder: Path, sizes: dict[str, int], vocabulary: int) -> Path:
    """Write a RoBERTa of some size with random weights, one tensor at a time."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForMaskedLM

    settings = ROBERTA | sizes | {"vocab_size": vocabulary, "max_position_embeddings": 514}
    config = AutoConfig.for_model(**settings, intermediate_size=4 * sizes["hidden_size"])
    with init_empty_weights():
        backbone = AutoModelForMaskedLM.from_config(config)
    backbone.tie_weights()
    like = unique_tensors(backbone)
    folder.mkdir()
    write_one_by_one(
        folder / "model.safetensors", like, lambda n: 0.02 * torch.randn(like[n].shape)
    )
    config.save_pretrained(folder)
    return folder


def config_of(args: argparse.Namespace, folder: Path) -> Config:
    """Return what is measured: a recipe, a single micro-batch a step, and no moving average.

    Blocks are noised from the first step on, which takes more memory than the context alone.
    """
    config = recipe(args.recipe)
    settings = ["ema=0", "compile=false", "tensorboard=false", "context_share=0", *args.settings]
    if args.what == "create" or not torch.cuda.is_available():
        settings += ["device=cpu", "precision=fp32"]
    elif config.train.precision == "fp16":
        settings += ["precision=bf16"]
    if args.recipe.startswith("paper"):
        sizes, size = (TINY_SIZES, 211) if args.tiny else (SIZES, V)
        settings += [f"init={write_masked_lm(folder / 'lm', sizes, size)}"]
        settings += ["share_c=2", "micro_batch=2"] if args.tiny else []
    elif args.tiny:
        settings += TINY
    config = override(config, settings)
    count = args.processes if args.what == "create" else 1
    return override(config, [f"batch={max(1, config.train.micro_batch) * count}"])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("create", "step"))
    parser.add_argument("--recipe", default="large")
    parser.add_argument("--processes", type=int, default=4, help="of create")
    parser.add_argument("--save", action="store_true", help="also write a checkpoint, and read it")
    parser.add_argument("--tiny", action="store_true", help="small enough for a test")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        vocabulary = 211 if args.tiny else V
        tokens = np.random.default_rng(0).integers(vocabulary, size=100_000)
        store = write_store(Path(name) / "store", tokens[:-2000], tokens[-2000:], V=vocabulary)
        config = config_of(args, Path(name))
        if args.what == "create":
            found: dict[str, Any] = {"results": create_all(config, store, args.processes)}
            for row in found["results"]:
                print(" ".join(f"{key}={value:.4g}" for key, value in row.items()))
        else:
            found = step(config, store, is_saved=args.save)
    print(json.dumps({"recipe": args.recipe, "torch": torch.__version__, **found}))


if __name__ == "__main__":
    main()

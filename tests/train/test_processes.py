"""One process, two or four, replicated or in shards: the same losses, within rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests import causal, tiny
from tests.processes import make_store, start_together

from ssdlm.config import Config, EncoderConfig
from ssdlm.train import configure, train
from ssdlm.train.initial_weights import build

SMALL = ["D=16", "num_layers=1", "batch=8", "micro_batch=1", "train.steps=2", "save_seconds=0"]
SMALL += ["save_every=0", "log_every=1", "eps=1e-4"]
BACKBONE = {"model_type": "roberta", "vocab_size": tiny.V, "max_position_embeddings": 66}
BACKBONE |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} | tiny.SIZES
CASES = {
    "blocks": ["ema=0.9", "own_share=0.3", "context_share=0.34"],
    "muon": ["optimizer=muon", "has_tied_simplex=false", "is_shifted=false"],
    "bf16": ["precision=bf16", "batch=4"],
    "tuned": ["init=@/model"],
    "encoder": ["objective=one_block", "share_c=2"],
    "masked LM": ["objective=one_block", "init=@/lm", "decay_rule=authors"],
    "adapter": ["init=@/base", "data.max_len=33", "model.rank=2", "precision=fp32"],
}
"""Settings by name; @ is where the weights are that a run begins with."""


def config_of(name: str, folder: Path, *settings: str) -> Config:
    """Return a case's config."""
    given = [text.replace("@", str(folder)) for text in CASES[name]]
    is_fixed = name in ("tuned", "adapter")  # its sizes come with the model
    own = [text for text in SMALL if not (is_fixed and text.startswith(("D=", "num_")))]
    config = configure("adapt" if name == "adapter" else "tiny", [*own, *given, *settings])
    if name == "encoder":
        return replace(config, model=EncoderConfig(backbone=BACKBONE, B=6))
    return replace(config, model=EncoderConfig(B=6)) if name == "masked LM" else config


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Data, a model of ours, a masked LM, and what one process makes of each case."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    folder = tmp_path_factory.mktemp("processes")
    make_store(folder / "store")
    AutoModelForMaskedLM.from_config(AutoConfig.for_model(**BACKBONE)).save_pretrained(
        folder / "lm"
    )
    causal.save(folder / "base", "llama-tied")
    train(config_of("blocks", folder), data=[folder / "store"], out=folder / "model")
    train_all(folder, "one", CASES)
    return folder


def train_all(folder: Path, name: str, cases: Iterable[str], *settings: str) -> None:
    """Train some cases, one after the other."""
    import warnings

    warnings.filterwarnings("ignore", "mkldnn_matmul")  # a CPU without bf16 says so
    for case in cases:
        config = config_of(case, folder, *settings)
        train(config, data=[folder / "store"], out=folder / f"{name} {case}")


def train_in_groups(folder: Path, name: str, cases: Iterable[str]) -> None:
    """Train cases as one of several processes, replicated and in shards."""
    from accelerate import Accelerator

    Accelerator.end_training = lambda self: None  # the processes stay together
    for sharding in ("ddp", "fsdp"):
        train_all(folder, f"{name} {sharding}", cases, f"sharding={sharding}")
    torch.distributed.destroy_process_group()


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    figures = [line["loss"] for line in lines]
    return [*figures, *(v for v in lines[-1]["validation"].values() if isinstance(v, float))]


@pytest.mark.parametrize(
    ("count", "cases"),
    [
        (2, list(CASES)),
        # By day four processes share a run in test_shards.
        pytest.param(4, ["blocks", "encoder"], marks=pytest.mark.nightly),
    ],
)
def test_several_processes_give_the_losses_and_weights_of_one(count, cases, folder):
    assert start_together(train_in_groups, folder, str(count), cases, count=count) == [0] * count
    for case in cases:
        one = folder / f"one {case}"
        limit = 0.02 if case == "bf16" else 1e-4
        for sharding in ("ddp", "fsdp"):
            several = folder / f"{count} {sharding} {case}"
            assert losses(several) == pytest.approx(losses(one), abs=limit), several.name
            own, other = (load_file(out / "model.safetensors") for out in (one, several))
            assert own.keys() == other.keys()
            close = [torch.allclose(own[key], other[key], atol=10 * limit) for key in own]
            assert all(close), several.name


@pytest.mark.nightly
def test_an_adapter_s_run_in_two_processes_resumes_to_the_bit(folder):
    assert start_together(train_whole_and_cut, folder, count=2) == [0] * 2
    for sharding in ("ddp", "fsdp"):
        whole, cut = (folder / f"{kind} {sharding}" for kind in ("whole", "cut"))
        assert losses(cut) == losses(whole)
        own, other = (load_file(out / "model.safetensors") for out in (whole, cut))
        assert all(torch.equal(own[name], other[name]) for name in own)


def train_whole_and_cut(folder: Path) -> None:
    """Train an adapter for four steps, and once more with its last checkpoint taken away."""
    from accelerate import Accelerator

    Accelerator.end_training = lambda self: None  # the processes stay together
    for sharding in ("ddp", "fsdp"):
        for kind, turns in {"whole": 1, "cut": 2}.items():
            out = folder / f"{kind} {sharding}"
            settings = ["train.steps=4", "save_every=2", f"sharding={sharding}", "micro_batch=4"]
            config = config_of("adapter", folder, *settings)
            for turn in range(turns):
                report = train(config, data=[folder / "store"], out=out)
                assert report.resumed == 2 * turn
                torch.distributed.barrier()
                if turn + 1 < turns and os.environ["RANK"] == "0":
                    (out / "checkpoints" / "step-4").rename(out / "away")
                torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_a_model_made_in_shards_has_the_weights_of_a_whole_one_to_the_bit(folder, tmp_path):
    cases = ["blocks", "muon", "tuned", "masked LM"]
    assert start_together(compare_shards, folder, cases, tmp_path, count=3) == [0] * 3


def compare_shards(folder: Path, cases: list[str], out: Path) -> None:
    """Make each case's denoiser in shards and whole; every part must be that of the whole."""
    from ssdlm.data.shards import TokenStore
    from ssdlm.train import distributed
    from ssdlm.train.initial_weights import make_denoiser
    from ssdlm.train.run import assemble, resolve
    from ssdlm.train.sharded_weights import begin

    accelerator = distributed.make_accelerator(precision="fp32", device="cpu")
    stores = [TokenStore.open(folder / "store")]
    for case in cases:
        config = resolve(config_of(case, folder, "batch=6"), stores)
        torch.manual_seed(7)
        whole = make_denoiser(config, stores).state_dict()
        torch.manual_seed(7)
        denoiser, fill = begin(config, stores, is_sharded=True)
        assert all(weight.is_meta for weight in denoiser.parameters())
        run = assemble(config, accelerator, out, stores, denoiser, is_sharded=True, fill=fill)
        sizes = []
        for name, value in run.denoiser.state_dict().items():
            own, place = distributed.own_part(value)
            assert torch.equal(own, whole[name][place]), (case, name)
            sizes.append((own.numel(), value.numel()))
        kept, total = map(sum, zip(*sizes, strict=True))
        assert kept < 0.5 * total, case
    torch.distributed.destroy_process_group()


def test_a_random_block_denoiser_is_what_it_yields(folder):
    model = replace(config_of("muon", folder).model, V=7)
    torch.manual_seed(3)
    expected = build(model)
    torch.manual_seed(3)
    for name, value in expected.initial_values():
        assert torch.equal(expected.get_parameter(name), value)


@pytest.mark.nightly
@pytest.mark.slow
def test_accelerate_launch_starts_processes_that_share_the_work(folder, tmp_path):
    """In shards, as `--use_fsdp` asks for; torchrun is tried in test_elastic.py."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--use_fsdp"]
    launch += ["--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    launch += ["--dynamo_backend", "no", "--main_process_port", "0", "-m", "ssdlm", "train"]
    settings = [*SMALL, *CASES["blocks"], "device=cpu"]
    command = [*launch, "--recipe", "tiny", "--data", str(folder / "store")]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run"), *settings],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert losses(tmp_path / "run") == pytest.approx(losses(folder / "one blocks"), abs=1e-4)
    assert list((tmp_path / "run" / "checkpoints" / "step-2" / "shards").iterdir())

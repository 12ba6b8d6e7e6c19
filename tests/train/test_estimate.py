"""What a run would take, against what networks, optimisers and measured runs are."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import tiny
from torch.overrides import TorchFunctionMode

from ssdlm import cli
from ssdlm.config import BlockConfig, Config, EncoderConfig
from ssdlm.settings import override
from ssdlm.storage.checkpoint import build
from ssdlm.train.costs import layer_bytes, memory_of, moments_of
from ssdlm.train.estimate import BACKBONES, GPUS, Gpu, estimate, find_gpu, with_sizes
from ssdlm.train.examples import Examples
from ssdlm.train.levels import LevelSampler
from ssdlm.train.objective import AllBlocks
from ssdlm.train.optimizer import Ema, make_optimizer
from ssdlm.train.recipes import large, mini, paper_large, recipe

GIB = 2**30
H200 = GPUS["h200"]
LARGE = ("D=1024", "num_layers=24", "num_heads=16", "V=50265")
COMPILED = ("compile=true", "precision=bf16")
PLAIN = ("compile=false", "precision=bf16", "context_share=0")
MEASURED = [
    (mini, ("batch=256", "context_share=0"), 17.9, 3660),
    (mini, ("batch=384", "micro_batch=192", "context_share=0", *LARGE), 85.2, 455),
    (paper_large, ("batch=512", "micro_batch=256", *COMPILED), 54.2, 1523),
]
"""Runs on one H200 (docs/training.md): recipe, settings, peak in GiB, sequences a second."""
PEAKS = [
    (mini, (*PLAIN, "batch=128"), 18.44),
    (mini, (*PLAIN, "batch=64", "D=768", "num_layers=12", "num_heads=12", "V=50265"), 26.94),
    (paper_large, (*PLAIN, "batch=64", "micro_batch=64", "init=roberta-base"), 7.73),
    (paper_large, (*PLAIN, "batch=128", "micro_batch=128"), 31.57),
    (mini, (*PLAIN, "batch=128", "recompute=true"), 4.74),
    (paper_large, (*PLAIN, "batch=256", "micro_batch=256", "recompute=true"), 13.20),
    (mini, (*PLAIN, "batch=64", "precision=fp32"), 9.48),
    (
        paper_large,
        (*PLAIN, "batch=64", "micro_batch=64", "init=roberta-base", "precision=fp32"),
        10.62,
    ),
    (
        mini,
        (*PLAIN, *LARGE, "batch=16", "D=1536", "num_heads=24", "recompute=true"),
        16.21,
    ),
    (mini, ("batch=256", "context_share=0"), 16.32),
    (paper_large, (*COMPILED, "batch=128", "micro_batch=128", "init=roberta-base"), 12.03),
    (mini, (*LARGE, "batch=96", "context_share=0"), 47.47),
]
"""Peaks in GiB of `benchmarks/memory.py` on one H200, torch 2.11 (docs/scale.md)."""
CONTEXT = ("ema=0", "compile=false", "context_share=1", "V=50265")
SHARDED_PEAKS = [
    (large, (*CONTEXT, "batch=8"), 18.41),
    (mini, (*CONTEXT, "batch=1"), 1.38),
    # The longest context that those two steps drew was of 125 tokens.
    (paper_large, ("batch=24", "precision=bf16", "max_len=150"), 9.31),
]
"""Peaks of `benchmarks/sharded.py step` there: shards in one process, no noised block yet."""


@pytest.mark.parametrize(("make", "settings", "peak", "speed"), MEASURED)
def test_runs_that_were_measured_are_estimated_within_a_twentieth(make, settings, peak, speed):
    found = estimate(override(make(), settings), num_gpus=1, gpu=H200)
    assert found.memory.total / GIB == pytest.approx(peak, rel=0.05)
    assert found.sequences_per_s == pytest.approx(speed, rel=0.05)


@pytest.mark.parametrize(("make", "settings", "peak"), PEAKS)
def test_peaks_that_were_measured_are_estimated_within_a_tenth(make, settings, peak):
    config = with_sizes(override(make(), settings))
    assert memory_of(config, num_gpus=1).total / GIB == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize(("make", "settings", "peak"), SHARDED_PEAKS)
def test_peaks_of_shards_are_estimated_within_a_tenth(make, settings, peak):
    config = with_sizes(override(make(), settings))
    found = memory_of(config, num_gpus=1, is_sharded=True)
    assert found.total / GIB == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("name", BACKBONES)
def test_sizes_of_known_masked_lms_are_right(name):
    config = with_sizes(override(paper_large(), [f"init={name}"]))
    with torch.device("meta"):
        denoiser = build(config.model)
    published = {"roberta-base": 125, "roberta-large": 355}
    published |= {"bert-base-uncased": 110, "bert-large-uncased": 336}
    simplex = denoiser.simplex_embed.weight.numel()
    number = sum(weight.numel() for weight in denoiser.parameters()) - simplex
    assert number / 1e6 == pytest.approx(published[name], rel=0.01)


def small(kind: str) -> Config:
    if kind == "encoder":
        config = override(paper_large(), ["init=", "ema=0.9", "precision=fp32"])
        return Config(EncoderConfig(tiny.encoder().config.backbone), config.data, config.train)
    config = override(mini(), ["precision=fp32", "compile=false"])
    return replace(config, model=BlockConfig(V=64, D=32, num_layers=2, num_heads=2))


def num_bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("kind", ["block", "encoder"])
def test_weights_gradients_moments_and_average_are_those_of_a_real_step(kind):
    config = small(kind)
    denoiser = build(config.model)
    optimizer, ema = make_optimizer(denoiser, config.train), Ema(denoiser, decay=0.9)
    for weight in denoiser.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    memory = moments_of(config, num_gpus=1)[-1]  # when the optimiser steps
    assert memory.weights == num_bytes([*denoiser.parameters(), *denoiser.buffers()])
    assert memory.gradients == num_bytes(weight.grad for weight in denoiser.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert memory.moments == num_bytes(states)
    assert memory.average == num_bytes(ema.mean.values())
    loss, *_, step = moments_of(override(config, ["sharding=fsdp"]), num_gpus=2)
    assert step.moments == memory.moments / 2 and step.gradients == memory.gradients / 2
    assert loss.weights > step.weights


def test_gradients_are_there_early_where_they_add_up_or_have_a_place_of_their_own():
    config = override(small("block"), ["batch=8", "micro_batch=4"])
    begin = [moments_of(config, num_gpus=number)[1] for number in (1, 2)]
    whole = begin[0].gradients
    assert whole > 0 and begin[1].gradients == whole  # two micro-batches; then two replicas
    assert moments_of(override(config, ["batch=4"]), num_gpus=1)[1].gradients == 0
    shards = override(config, ["sharding=fsdp"])
    assert moments_of(shards, num_gpus=2)[1].gradients == 0
    assert moments_of(override(shards, ["batch=16"]), num_gpus=2)[1].gradients == whole


def test_the_peak_is_the_greatest_of_the_moments_and_its_parts_are_printed():
    found = estimate(mini(), num_gpus=1, gpu=H200)
    moments = moments_of(with_sizes(mini()), num_gpus=1)
    assert found.memory == max(moments, key=lambda memory: memory.total)
    line, *_ = str(found).splitlines()
    printed = [float(part.split()[-1]) for part in line.partition("(")[2].rstrip(")").split(",")]
    assert found.memory.moment in line
    assert sum(printed) == pytest.approx(found.memory.total / GIB, abs=0.05 * len(printed))


class GpuAutocast(TorchFunctionMode):
    """Lets squares be taken in float32, as autocast does on a GPU and not on a CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.square and torch.is_autocast_enabled("cpu"):
            args = [args[0].float()]
        return func(*args, **(kwargs or {}))


def saved_bytes(config: Config, share: int) -> int:
    """Return what autograd keeps of one pass, weights left out."""
    denoiser = build(config.model)
    sampler = LevelSampler.of(config.train, config.model.T)
    objective = AllBlocks(denoiser, sampler, loss=config.train.loss)
    own = {weight.untyped_storage().data_ptr() for weight in denoiser.state_dict().values()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in own:
            kept[place] = tensor
        return tensor

    indices = torch.arange(share)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(64, size=(share, 64)))
    examples = Examples(tokens, indices, indices, 0, False)
    half = config.train.precision == "bf16"
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=half),
        GpuAutocast(),
    ):
        objective(objective.draw(examples))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_keep_what_autograd_saves(precision):
    config = override(small("block"), [f"precision={precision}", "max_len=64", "D=64"])
    deep = override(config, ["num_layers=6"])
    own = saved_bytes(deep, 4) - saved_bytes(config, 4)
    counted = layer_bytes(deep, 4).kept - layer_bytes(config, 4).kept
    assert counted == pytest.approx(own, rel=0.05)
    less = layer_bytes(override(deep, ["recompute=true"]), 4)
    assert less.kept + less.again < layer_bytes(deep, 4).kept / 3


def test_days_and_money_follow_from_the_speed():
    config = recipe("paper_large")
    found = estimate(config, num_gpus=32, gpu=H200, price_per_gpu_hour=2.0)
    one = estimate(config, num_gpus=1, gpu=H200)
    assert found.sequences_per_s == pytest.approx(32 * one.sequences_per_s)
    assert found.days == pytest.approx(100_000 * 6144 / found.sequences_per_s / 86400)
    assert found.cost == pytest.approx(found.days * 24 * 32 * 2.0)
    assert "cost" in str(found) and "cost" not in str(one) and one.cost is None
    again = estimate(override(config, ["recompute=true"]), num_gpus=32, gpu=H200)
    assert again.sequences_per_s == pytest.approx(0.75 * found.sequences_per_s)


def test_what_does_not_fit_and_what_was_not_measured_is_said():
    found = estimate(override(mini(), [*LARGE, "batch=1024"]), num_gpus=1, gpu=GPUS["t4"])
    assert not found.fits and "it does not fit: use a smaller micro_batch" in str(found)
    in_float = estimate(override(mini(), ["precision=fp32"]), num_gpus=1, gpu=H200)
    assert math.isnan(in_float.days) and "speed: not known in fp32" in str(in_float)
    assert "measured on one H200 with recipe mini" in str(estimate(mini(), num_gpus=1, gpu=H200))


def test_a_gpu_is_known_by_name_or_by_what_it_has():
    assert find_gpu("H200", None, None) == H200
    assert find_gpu(None, 48.0, 300.0) == Gpu(48e9, 300e12)
    assert find_gpu("h200", 48.0, None) == Gpu(48e9, H200.flops)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpu x9000", "gpu=x9000 is unknown; choose one of t4, v100"),
        ("", "no GPU is given; use --gpu with one of"),
        ("--gpu-memory 40", "both --gpu-memory (GB) and --gpu-tflops"),
        ("--gpu h200 --gpu-memory -1", "use numbers above 0"),
        ("--gpu h200 --gpus 7", "train.batch=6144 does not divide by 7 GPUs"),
        ("--gpu h200 --gpus 0", "gpus=0 is out of range"),
        ("--gpu h200 --gpus 2000000", "gpus=2000000 is out of range; use 1 to 1000000"),
        ("--gpu h200 --price-per-gpu-hour nan", "price_per_gpu_hour=nan is out of range"),
        ("--gpu h200 init=some/model", "some/model"),
        ("--gpu h200 init=other", "train.init='other': its sizes are not known here"),
        ("--gpu h200 steps=0", "steps=0"),
    ],
)
def test_what_cannot_be_estimated_is_refused_in_one_line(words, said, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cli.main(["estimate", "--recipe", "paper_large", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_command_prints_it(capsys):
    words = "estimate --recipe paper_large --gpus 32 --gpu h200 --price-per-gpu-hour 3 steps=10"
    assert cli.main(words.split()) == 0
    said = capsys.readouterr().out
    assert "on each of 32 GPUs" in said and "days for 10 steps of 6,144" in said and "cost:" in said

"""What training needs, counted: FLOPs of a sequence, bytes on a GPU.  config -> [costs] -> estimate

FLOPs are what the mathematics needs: 2 m n k per matrix product, times 3 for forward and backward,
over all positions of both streams, attention between positions that see each other, and the output
head where there is a target; the soft embedding counts times 2, as its input has no gradient. Work
done twice, padding and the optimiser are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from ssdlm.config import BlockConfig, Config
from ssdlm.denoiser import DenoiserModule
from ssdlm.train.initial_weights import build
from ssdlm.train.optimizer import make_optimizer

FLOAT, HALF = 4.0, 2.0
"""Bytes of a number."""
LAYER_BYTES = {"compiled": 39.0, "block": 69.0, "encoder": 46.0}
"""What a layer keeps for the backward pass, in bytes per position and unit of width, in 16 bits.

Compiled: fitted, with `VOCABULARY_BYTES`, to the peaks of three runs on an H200 (docs/training.md).
Not compiled: counted, for our denoiser by what autograd saves on a CPU.
"""
FLOAT_LAYER_BYTES = {"compiled": 69.0, "block": 77.0, "encoder": 78.0}
"""The same in float32; counted alone."""
VOCABULARY_BYTES = 5.2
"""Per noised position and token of the vocabulary: noise, simplex, a chunk of logits."""


def block_flops(model: BlockConfig, length: int, *, has_blocks: bool = True) -> float:
    """Return the FLOPs of one sequence, all blocks at once, or of the context stream alone."""
    D, B, streams = model.D, model.B, 1 + has_blocks
    layer = 2 * streams * length * (4 + 2 * model.expansion) * D**2
    seen = length * (length + 1) / 2
    seen += has_blocks * (length * (length - B) / 2 + length * B)
    head = 2 * (streams * length - 1) * model.V * D
    soft = has_blocks * 2 * length * model.V * D
    return 3 * (model.num_layers * (layer + 4 * D * seen) + head) + 2 * soft


def encoder_flops(backbone: dict[str, Any], B: int, c: int) -> float:
    """Return the FLOPs of one sequence with c context tokens and one block."""
    D, V, S = backbone["hidden_size"], backbone["vocab_size"], c + B
    layer = 2 * S * (4 * D**2 + 2 * D * backbone["intermediate_size"])
    attention = 4 * D * S**2
    head, soft = 2 * B * (V * D + D**2), 2 * B * V * D
    return 3.0 * (backbone["num_hidden_layers"] * (layer + attention) + head) + 2 * soft


def sequence_flops(config: Config) -> float:
    """Return the FLOPs of a sequence, on average over a run."""
    model, length = config.model, config.data.max_len
    if isinstance(model, BlockConfig):
        share = config.train.context_share if model.block_weight > 0 else 1.0
        alone = block_flops(model, length, has_blocks=False)
        return share * alone + (1 - share) * block_flops(model, length)
    contexts = range(1, length - model.B + 1)
    return sum(encoder_flops(model.backbone, model.B, c) for c in contexts) / len(contexts)


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU at the peak of a step."""

    weights: float
    gradients: float
    moments: float
    """The optimiser's running means: one of each weight that Muon moves, two of the others."""
    average: float
    """The weights' moving average."""
    copies: float
    """Weights in 16 bits, where the network computes in them."""
    activations: float
    """What the layers keep for the backward pass of one micro-batch."""
    vocabulary: float
    """What is as wide as the vocabulary."""

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))


def memory_of(config: Config, *, num_gpus: int) -> Memory:
    """Return what a run needs on each of its GPUs; the config must know its vocabulary."""
    train = config.train
    with torch.device("meta"):  # sizes without numbers
        denoiser = build(config.model)
    number = count(denoiser)
    optimizer = make_optimizer(denoiser, train)
    moved = {has: 0 for has in (True, False)}
    for group in optimizer.param_groups:
        moved[group["has_muon"]] += sum(weight.numel() for weight in group["params"])
    is_sharded = train.sharding == "fsdp" and num_gpus > 1
    shards = num_gpus if is_sharded else 1
    whole = whole_weights(denoiser) if is_sharded else 0
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in denoiser.buffers())
    averaged = sum(value.numel() for value in denoiser.state_dict().values())  # tied ones twice
    share = train.micro_batch or max(1, train.batch // num_gpus)
    activations, vocabulary = activation_bytes(config, share)
    return Memory(
        weights=FLOAT * (number / shards + whole) + buffers,
        gradients=FLOAT * (number / shards + whole),
        moments=FLOAT * (moved[True] + 2 * moved[False]) / shards,
        average=FLOAT * averaged / shards if train.ema > 0 else 0.0,
        copies=0.0 if train.precision == "fp32" else HALF * number,
        activations=activations,
        vocabulary=vocabulary,
    )


def activation_bytes(config: Config, share: int) -> tuple[float, float]:
    """Return what a micro-batch of so many sequences keeps: the layers', and what is V wide."""
    model, train, length = config.model, config.train, config.data.max_len
    is_block = isinstance(model, BlockConfig)
    if is_block:
        D, V, num_layers = model.D, model.V, model.num_layers
        noised = length if model.block_weight > 0 else 0
        positions = length + noised
    else:
        D, V = model.backbone["hidden_size"], model.backbone["vocab_size"]
        num_layers = model.backbone["num_hidden_layers"]
        noised, positions = model.B, length  # where the context is as long as it may be
    is_float = train.precision == "fp32"
    kinds = FLOAT_LAYER_BYTES if is_float else LAYER_BYTES
    layer = kinds["compiled" if train.compile else "block" if is_block else "encoder"]
    kept = num_layers * layer
    if train.recompute:  # each layer's input, and all of the layer that is run again
        kept = num_layers * (HALF if is_block and not is_float else FLOAT) + layer
    wide = VOCABULARY_BYTES * (2 if is_float else 1)
    return share * positions * D * kept, share * noised * V * wide


def count(denoiser: DenoiserModule) -> int:
    """Return how many numbers are trained; tied weights count once."""
    return sum(weight.numel() for weight in denoiser.parameters())


def whole_weights(denoiser: DenoiserModule) -> int:
    """Return how many sharded weights a process has whole at a time: two layers, and the rest."""
    layers = [sum(w.numel() for w in layer.parameters()) for layer in denoiser.transformer_layers()]
    return count(denoiser) - sum(layers) + 2 * max(layers)

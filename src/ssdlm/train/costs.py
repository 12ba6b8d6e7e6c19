"""What training needs, counted: FLOPs of a sequence, bytes on a GPU.  config -> [costs] -> estimate

FLOPs are what the mathematics needs: 2 m n k per matrix product, times 3 for forward and backward,
over all positions of both streams, attention between positions that see each other, and the output
head where there is a target; the soft embedding counts times 2, as its input has no gradient. Work
done twice, padding and the optimiser are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, cast

import torch

from ssdlm.config import AdapterConfig, BlockConfig, CausalConfig, Config, EncoderConfig
from ssdlm.denoiser import DenoiserModule
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.ops.soft_embedding import CHUNK
from ssdlm.train.initial_weights import build
from ssdlm.train.optimizer import MuonAdamW, make_optimizer

FLOAT, HALF = 4.0, 2.0
"""Bytes of a number."""
LAYER_BYTES = {"block": 82.0, "encoder": 44.0}
"""What a layer keeps for the backward pass, in bytes per position and unit of width, in 16 bits.

Counted, by what autograd saves. A GPU's autocast takes squares and norms in float32, and keeps
their inputs so: the 16 bits of ours are more than float32.
"""
FLOAT_LAYER_BYTES = {"block": 76.0, "encoder": 66.0}
"""The same in float32."""
COMPILED_LAYER_BYTES = {"block": 38.0, "encoder": 40.0}
"""The same, compiled, in 16 bits: each fitted to two peaks on an H200 (docs/log.md, 2026-11-16)."""
COMPILED_FLOAT_LAYER_BYTES = {"block": 68.0, "encoder": 66.0}
"""The same in float32: counted, and never measured."""
AROUND_BYTES = {"block": 13.0, "encoder": 7.0}
"""What is kept before the first layer and after the last; counted."""
PASSING = {"block": 0.6, "encoder": 0.3}
"""What gradients take on their way through a layer, as a share of what it keeps; counted."""
MUON_BYTES = 14.5
"""What Muon computes with, per weight of the shape that has most: it moves those together."""


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


def adapter_flops(model: CausalConfig, rank: int, B: int, length: int) -> float:
    """Return the FLOPs of one sequence: words once, noisy rows twice, no weight gradients."""
    D, queries = model.D, model.num_heads * model.head_size
    sides = 2 * queries + 2 * model.num_kv_heads * model.head_size, 3 * model.hidden
    inner = D * (3 + 1 + 2 + 1) + sum(sides)  # what low-rank products read and write
    seen = length * (length + 1) / 2 + 2 * (length * (length - B) / 2 + length * B)
    layer = 3 * 2 * length * D * sum(sides) + 3 * 2 * length * rank * inner
    return model.num_layers * (layer + 4 * queries * seen) + 3 * 2 * length * model.V * D


@cache
def language_model(model: AdapterConfig) -> CausalConfig:
    """Return the sizes of the language model under an adapter."""
    return cast(AdaptedDenoiser, build(model)).model.config


def sequence_flops(config: Config) -> float:
    """Return the FLOPs of a sequence, on average over a run."""
    model, length = config.model, config.data.max_len
    if isinstance(model, BlockConfig):
        share = config.train.context_share if model.block_weight > 0 else 1.0
        alone = block_flops(model, length, has_blocks=False)
        return share * alone + (1 - share) * block_flops(model, length)
    if isinstance(model, AdapterConfig):
        return adapter_flops(language_model(model), model.rank, model.B, length - 1)
    contexts = range(1, length - model.B + 1)
    return sum(encoder_flops(model.backbone, model.B, c) for c in contexts) / len(contexts)


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU at a moment of a step."""

    moment: str
    """When that is."""
    weights: float
    moments: float
    """The optimiser's running means: one of each weight that Muon moves, two of the others."""
    average: float
    """The weights' moving average."""
    gradients: float
    copies: float = 0.0
    """Weights in 16 bits, where the network computes in them."""
    activations: float = 0.0
    """What the layers keep for the backward pass of one micro-batch, and what passes them."""
    vocabulary: float = 0.0
    """What is as wide as the vocabulary."""
    update: float = 0.0
    """What the optimiser computes with."""

    @property
    def parts(self) -> dict[str, float]:
        """What takes the memory, by name."""
        names = [field.name for field in fields(self) if field.name != "moment"]
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def memory_of(config: Config, *, num_gpus: int, is_sharded: bool | None = None) -> Memory:
    """Return what a run needs on each of its GPUs at the peak; the config must know its vocabulary.

    Several GPUs share the weights where the config says so, and one where `is_sharded` says so.
    """
    moments = moments_of(config, num_gpus=num_gpus, is_sharded=is_sharded)
    return max(moments, key=lambda memory: memory.total)


def moments_of(
    config: Config, *, num_gpus: int, is_sharded: bool | None = None
) -> tuple[Memory, ...]:
    """Return the memory at the four moments of a step of which one is the peak."""
    train = config.train
    with torch.device("meta"):  # sizes without numbers
        denoiser = build(config.model)
    if is_sharded is None:
        is_sharded = train.sharding == "fsdp" and num_gpus > 1
    shards = num_gpus if is_sharded else 1
    whole = FLOAT * whole_weights(denoiser) if is_sharded else 0.0
    number = count(denoiser)
    own = FLOAT * number / shards
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in denoiser.buffers())
    if isinstance(denoiser, AdaptedDenoiser):
        buffers += FLOAT * sum(weight.numel() for weight in denoiser.model.parameters())
    optimizer = make_optimizer(denoiser, train)
    moved = moved_weights(optimizer)
    averaged = sum(value.numel() for value in denoiser.state_dict().values())  # tied ones twice
    share = train.micro_batch or max(1, train.batch // num_gpus)
    is_cut = share * num_gpus < train.batch  # into several micro-batches, whose gradients add up
    # Shards are added up whole, and sent once a step; replicas have room for gradients always.
    gradients = FLOAT * number if is_sharded and is_cut else own + whole
    is_kept = is_cut or (num_gpus > 1 and not is_sharded)
    states = {
        "moments": FLOAT * (moved[True] + 2 * moved[False]) / shards,
        "average": FLOAT * averaged / shards if train.ema > 0 else 0.0,
    }
    passes = {"weights": own + whole + buffers, **states}
    copies = 0.0 if train.precision == "fp32" else HALF * number
    layers, wide = layer_bytes(config, share), vocabulary_bytes(config, share)
    return (
        Memory(
            "when the loss is computed",
            **passes,
            gradients=gradients if is_kept else 0.0,
            copies=copies,
            activations=layers.kept,
            vocabulary=sum(wide),
        ),
        Memory(
            "when the backward pass begins",
            **passes,
            gradients=gradients if is_kept else 0.0,
            copies=0.0 if train.recompute else copies,
            activations=layers.kept + layers.again + layers.passing,
            vocabulary=wide.noise + wide.head,
        ),
        Memory(
            "when the backward pass ends",
            **passes,
            gradients=gradients,
            activations=layers.last + layers.passing,
            vocabulary=wide.noise,
        ),
        Memory(
            "when the optimiser steps",
            weights=own + buffers,
            **states,
            gradients=own,
            update=update_bytes(optimizer, shards, is_sharded=is_sharded),
        ),
    )


def moved_weights(optimizer: MuonAdamW) -> dict[bool, int]:
    """Return how many weights Muon moves, and how many AdamW."""
    moved = {has: 0 for has in (True, False)}
    for group in optimizer.param_groups:
        moved[group["has_muon"]] += sum(weight.numel() for weight in group["params"])
    return moved


def update_bytes(optimizer: MuonAdamW, shards: int, *, is_sharded: bool) -> float:
    """Return what an optimiser computes with: AdamW on a group, Muon on matrices of one shape."""
    most = 0.0
    for group in optimizer.param_groups:
        sizes: dict[torch.Size, int] = {}
        for weight in group["params"]:
            # Matrices in shards are made whole one by one.
            before = 0 if group["has_muon"] and is_sharded else sizes.get(weight.shape, 0)
            sizes[weight.shape] = before + weight.numel()
        together = max(sizes.values()) * MUON_BYTES
        most = max(most, together if group["has_muon"] else sum(sizes.values()) * FLOAT / shards)
    return most


class Pass(NamedTuple):
    """What goes through a network in a micro-batch."""

    D: int
    V: int
    num_layers: int
    positions: int
    """Of all sequences."""
    noised: int
    """How many of them are noised."""


def pass_of(config: Config, share: int) -> Pass:
    """Return what goes through the network in a micro-batch of so many sequences, at the most."""
    model, train, length = config.model, config.train, config.data.max_len
    if isinstance(model, AdapterConfig):
        own, rows = language_model(model), share * (length - 1)
        return Pass(own.D, own.V, own.num_layers, rows, rows)
    if isinstance(model, EncoderConfig):
        D, V, num_layers = (
            model.backbone[name] for name in ("hidden_size", "vocab_size", "num_hidden_layers")
        )
        return Pass(D, V, num_layers, share * length, share * model.B)
    has_noise = model.block_weight > 0 and train.context_share < 1
    noised = length * has_noise if train.objective == "all_blocks" else model.B
    positions = length + noised if train.objective == "all_blocks" else length
    return Pass(model.D, model.V, model.num_layers, share * positions, share * noised)


class LayerBytes(NamedTuple):
    """What the layers need for the backward pass of a micro-batch."""

    kept: float
    """By all of them."""
    again: float
    """By the one that is run again, where they are."""
    passing: float
    """For the gradients on their way through one."""
    last: float
    """What is left when the first layer's turn comes, which is the last."""


def layer_bytes(config: Config, share: int) -> LayerBytes:
    """Return what the layers need in a micro-batch of so many sequences."""
    train, sizes = config.train, pass_of(config, share)
    is_float = train.precision == "fp32"
    kind = "encoder" if isinstance(config.model, EncoderConfig) else "block"
    # Single blocks come after contexts of many lengths, for which ours is not compiled.
    if train.compile and (kind == "encoder" or train.objective == "all_blocks"):
        kinds = COMPILED_FLOAT_LAYER_BYTES if is_float else COMPILED_LAYER_BYTES
    else:
        kinds = FLOAT_LAYER_BYTES if is_float else LAYER_BYTES
    unit = float(sizes.positions * sizes.D)
    layer, around = unit * kinds[kind], unit * AROUND_BYTES[kind]
    one_input = unit * (HALF if kind == "block" and not is_float else FLOAT)
    kept = one_input if train.recompute else layer
    return LayerBytes(
        kept=around + sizes.num_layers * kept,
        again=layer if train.recompute else 0.0,
        passing=layer * PASSING[kind],
        last=around + layer,
    )


class VocabularyBytes(NamedTuple):
    """What is as wide as the vocabulary."""

    noise: float
    head: float
    """The output head's gradients, which are taken with the loss."""
    chunk: float
    """What the loss computes with, a chunk of tokens at a time."""


def vocabulary_bytes(config: Config, share: int) -> VocabularyBytes:
    """Return what is V wide in a micro-batch of so many sequences."""
    model, sizes = config.model, pass_of(config, share)
    number = FLOAT if config.train.precision == "fp32" else HALF
    tokens = sizes.noised or sizes.positions
    rows = tokens / max(1, -(-tokens // CHUNK))
    is_ours = not isinstance(model, EncoderConfig)
    has_evidence = getattr(model, "has_evidence", is_ours)
    # Scores and their gradient; noisy logits are read several times, and so stored between.
    wide = 2 * number + (FLOAT if sizes.noised and has_evidence else 0.0)
    num_losses = 2 if is_ours and 0 < sizes.noised < sizes.positions else 1
    return VocabularyBytes(
        noise=HALF * sizes.noised * sizes.V,
        head=num_losses * FLOAT * sizes.V * sizes.D,
        chunk=rows * sizes.V * wide,
    )


def count(denoiser: DenoiserModule) -> int:
    """Return how many numbers are trained; tied weights count once."""
    return sum(weight.numel() for weight in denoiser.parameters())


def whole_weights(denoiser: DenoiserModule) -> int:
    """Return how many sharded weights a process has whole at a time: two layers, and the rest."""
    layers = [sum(w.numel() for w in layer.parameters()) for layer in denoiser.transformer_layers()]
    return count(denoiser) - sum(layers) + 2 * max(layers)

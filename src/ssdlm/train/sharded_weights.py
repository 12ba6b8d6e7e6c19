"""The weights that a run in shards begins with: no process ever has all of them in memory.

A denoiser is made as shapes alone and cut into shards; then each process gives its own parts their
values, drawn or read one tensor at a time. They are those that one process would have.
initial_weights, distributed -> [sharded_weights] -> resume
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from torch import nn

from ssdlm.config import AdapterConfig, BlockConfig, Config, EncoderConfig
from ssdlm.data.shards import TokenStore
from ssdlm.denoiser import DenoiserModule
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.shapes import Tensor
from ssdlm.storage import checkpoint
from ssdlm.storage.int8 import SCALE
from ssdlm.storage.tensors import (
    first_few,
    is_finite,
    require_shapes,
    shapes_in,
    unique_tensors,
)
from ssdlm.train import distributed
from ssdlm.train.initial_weights import (
    build,
    count_tokens,
    find_init,
    find_weights,
    make_denoiser,
    require_room,
)

Fill = Callable[[], None]
"""Gives a denoiser in shards its weights, of which each process keeps its own part."""


def begin(
    config: Config, stores: list[TokenStore], *, is_sharded: bool
) -> tuple[DenoiserModule, Fill | None]:
    """Return the denoiser a run begins with: whole, or as shapes alone and what fills its shards.

    Whole are, in shards too, random encoders, int8 weights and those of other layouts.
    """
    found = begin_in_shards(config, stores) if is_sharded else None
    if found is None:
        return make_denoiser(config, stores), None
    require_room(config, stores, found[0])
    return found


def outline(model: EncoderConfig | BlockConfig | AdapterConfig) -> DenoiserModule:
    """Return a denoiser whose weights have shapes but no memory."""
    if not isinstance(model, EncoderConfig):
        with torch.device("meta"):
            return build(model)
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):  # no file has an encoder's positions
        denoiser = build(model)
    cast(EncoderDenoiser, denoiser).backbone.tie_weights()
    return denoiser


def begin_in_shards(config: Config, stores: list[TokenStore]) -> tuple[DenoiserModule, Fill] | None:
    """Return a denoiser as shapes and what fills its shards; None where it has to be whole."""
    model, init = config.model, config.train.init
    if isinstance(model, BlockConfig) and not init:
        denoiser = outline(model)
        return denoiser, partial(fill_with_random, cast(BlockDenoiser, denoiser), stores)
    if not init or isinstance(model, AdapterConfig):
        return None
    folder = find_init(init)
    if checkpoint.is_ours(folder):
        path = find_weights(folder, config.train.init_from)
        denoiser = outline_of(model, path)
        return None if denoiser is None else (denoiser, partial(fill_from, denoiser, path))
    if isinstance(model, EncoderConfig) and not checkpoint.is_released(folder):
        return outline_masked_lm(str(folder), model)
    return None


def fill_with_random(denoiser: BlockDenoiser, stores: list[TokenStore]) -> None:
    """Give a new denoiser in shards the weights that one process would have given it."""
    for name, value in denoiser.initial_values():
        distributed.copy_part(denoiser.get_parameter(name), value)
    denoiser.set_unigram(count_tokens(stores, denoiser.V))


def outline_of(
    model: EncoderConfig | BlockConfig | AdapterConfig, path: Path
) -> DenoiserModule | None:
    """Return the denoiser of a file of ours as shapes; None where the file has int8."""
    shapes = shapes_in(path)
    if any(name.endswith(SCALE) for name in shapes):
        return None
    sizes = model.backbone if isinstance(model, EncoderConfig) else vars(model)
    checkpoint.require_sizes(sizes, shapes, source=path)
    denoiser = outline(model)
    own = unique_tensors(denoiser)
    if missing := [name for name in own if name not in shapes]:
        raise ValueError(f"{path} lacks {first_few(missing)}; config.json describes another model")
    require_shapes(own, shapes, source=path)
    return denoiser


def fill_from(denoiser: DenoiserModule, path: Path) -> None:
    """Give a denoiser in shards the weights of a file of ours."""
    own = unique_tensors(denoiser)
    distributed.read_into(own, path)
    require_finite_parts(own, path)


def require_finite_parts(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that are not finite, in this process's part of them."""
    for name, value in tensors.items():
        if not is_finite(distributed.own_part(value)[0]):
            raise ValueError(f"{path}: {name} contains infinities or NaN; get the file anew")


def outline_masked_lm(init: str, model: EncoderConfig) -> tuple[EncoderDenoiser, Fill] | None:
    """Return an encoder around a pretrained masked LM as shapes, and what fills its shards.

    None where its file is none of safetensors with the names of today: `transformers` knows more.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForMaskedLM
    from transformers.utils.hub import cached_file

    try:
        path = Path(str(cached_file(init, checkpoint.WEIGHTS)))
        settings = AutoConfig.from_pretrained(init)
    except (OSError, ValueError):
        return None
    with init_empty_weights(include_buffers=False):
        backbone = AutoModelForMaskedLM.from_config(settings, dtype=torch.float32)
        denoiser = EncoderDenoiser.from_masked_lm(backbone, K=model.K, B=model.B, T=model.T)
    backbone.tie_weights()
    shapes, own = shapes_in(path), unique_tensors(backbone)
    if any(name not in shapes or shapes[name].shape != own[name].shape for name in own):
        return None

    @torch.no_grad()
    def fill() -> None:
        own = unique_tensors(backbone)
        distributed.read_into(own, path)
        require_finite_parts(own, path)
        table = next(name for name, value in own.items() if value is denoiser.words.weight)
        with safe_open(path, "pt") as stored:  # W_diff begins as the word embeddings
            weight = denoiser.simplex_embed.weight
            part, place = distributed.own_part(weight)
            if part.numel() > 0:
                part.copy_(stored.get_slice(table)[place[::-1]].T)
        # One process draws W_diff before it is overwritten, and then W_time.
        width, V = weight.shape
        _, time_embed = nn.Linear(V, width, bias=False), nn.Linear(1, width)
        for name, value in time_embed.named_parameters():
            distributed.copy_part(denoiser.time_embed.get_parameter(name), value)

    return cast(EncoderDenoiser, denoiser.train()), fill

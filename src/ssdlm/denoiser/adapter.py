"""A layer of a causal language model with low-rank additions, for noisy rows.

    x -> norm -> qkv + up down -> attention -> out + up down -> gated feed-forward, likewise -> x

The model's own weights stay as they are; what is added is zero at first.  llama -> [adapter] ->
adapted
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ssdlm.config import CausalConfig
from ssdlm.denoiser.attention import attend
from ssdlm.denoiser.llama import LlamaLayer
from ssdlm.ops.rotary import rotate
from ssdlm.ops.rows import Behind, LowRank, weighted_norm
from ssdlm.shapes import Tensor

MANY_ROWS = 1024
"""Rows from which it is faster to add a low-rank matrix to the one that it changes."""


class Matrix(NamedTuple):
    """A frozen matrix, and low-rank additions to parts of its rows."""

    own: Tensor
    """(O, I)."""
    down: Tensor | None = None
    """(parts, rank, I)."""
    up: Tensor | None = None
    """(O, rank), the rows of the parts below each other."""
    sizes: tuple[int, ...] = ()
    """Rows of each part."""


class LayerWeights(NamedTuple):
    """What a layer computes with."""

    attention_norm: Tensor
    mlp_norm: Tensor
    qkv_bias: Tensor | None
    out_bias: Tensor | None
    head_norms: Tensor | None
    """(2, d): of queries and of keys."""
    qkv: Matrix
    out: Matrix
    up: Matrix
    down: Matrix


class AdapterLayer(nn.Module):
    """What is added to the seven matrices of one layer."""

    def __init__(self, config: CausalConfig, rank: int) -> None:
        super().__init__()
        self.config, self.is_compiled = config, False
        heads, kv_heads = (n * config.head_size for n in (config.num_heads, config.num_kv_heads))
        self.sizes = {
            "qkv": (heads, kv_heads, kv_heads),
            "out": (config.D,),
            "up": (config.hidden, config.hidden),
            "down": (config.D,),
        }
        inputs = {"qkv": config.D, "out": heads, "up": config.D, "down": config.hidden}
        for name, sizes in self.sizes.items():
            down = torch.empty(len(sizes), rank, inputs[name])
            if not down.is_meta:  # there, it would bring in torch's compiler
                down.normal_(std=inputs[name] ** -0.5)
            self.register_parameter(f"{name}_down", nn.Parameter(down))
            self.register_parameter(f"{name}_up", nn.Parameter(torch.zeros(sum(sizes), rank)))

    def forward(
        self, layer: LlamaLayer, x: Tensor, rotary: Tensor, bias: Tensor | None, seen: Tensor
    ) -> Tensor:
        """Return noisy rows after a layer; they see `seen`, keys and values, and each other."""
        run = compiled_noisy() if self.is_compiled else noisy_pass
        return run(x, rotary, bias, seen, self.weights(layer), self.config)

    def weights(self, layer: LlamaLayer) -> LayerWeights:
        """Return a layer's weights with what is added to them."""

        def matrix(name: str) -> Matrix:
            return Matrix(layer.get_parameter(name), *self.added(name), self.sizes[name])

        return weights_with(layer, matrix)

    def added(self, name: str) -> tuple[Tensor, Tensor]:
        """Return both factors of what is added to a matrix."""
        return self.get_parameter(f"{name}_down"), self.get_parameter(f"{name}_up")

    @torch.no_grad()
    def beside(self, layer: LlamaLayer) -> RowLayer:
        """Return a layer as rows go through it."""
        pairs = {}
        for name, sizes in self.sizes.items():
            down, up = self.added(name)
            pairs[name] = down.flatten(0, 1), torch.block_diag(*up.split(sizes))
        return RowLayer(layer, pairs)


class RowLayer(NamedTuple):
    """A layer for rows behind slots: words read its own matrices, noisy rows what is added too."""

    own: LlamaLayer
    pairs: dict[str, tuple[Tensor, Tensor]]
    """(parts * rank, I) and (O, parts * rank), each part's rows beside zeros."""

    def read(self, x: Tensor, keys_values: Tensor, at: Behind, *how: Any) -> Tensor:
        """Return rows after this layer, as `LlamaLayer.read` does."""
        if (count := at.rows.num_noisy) == 0:
            return self.own.read(x, keys_values, at, *how)
        more = {name: LowRank(*pair, count) for name, pair in self.pairs.items()}
        return self.own.read(x, keys_values, at, *how, more=more)


def product(matrix: Matrix, x: Tensor) -> Tensor:
    """Return x (N, R, I) @ (own + up down).T."""
    own, down, up, sizes = matrix
    if down is None or up is None:
        return F.linear(x, own)
    ups = up.split(sizes)
    if x.shape[0] * x.shape[1] >= MANY_ROWS:
        added = torch.cat([one @ other for one, other in zip(ups, down.unbind(), strict=True)])
        return F.linear(x, own + added)
    inner = F.linear(x, down.flatten(0, 1)).chunk(len(ups), -1)
    added = [F.linear(part, one) for part, one in zip(inner, ups, strict=True)]
    return F.linear(x, own) + torch.cat(added, -1)


def own_weights(layer: LlamaLayer) -> LayerWeights:
    """Return a layer's weights as they are."""
    return weights_with(layer, lambda name: Matrix(layer.get_parameter(name)))


def weights_with(layer: LlamaLayer, matrix: Callable[[str], Matrix]) -> LayerWeights:
    """Return a layer's weights with these matrices, which are found by their names."""
    norms = layer.head_norms()
    return LayerWeights(
        layer.get_parameter("attention_norm"),
        layer.get_parameter("mlp_norm"),
        layer.qkv_bias,
        layer.out_bias,
        None if norms is None else norms.weights,
        matrix("qkv"),
        matrix("out"),
        matrix("up"),
        matrix("down"),
    )


def noisy_pass(
    x: Tensor,
    rotary: Tensor,
    bias: Tensor | None,
    seen: Tensor,
    weights: LayerWeights,
    config: CausalConfig,
) -> Tensor:
    """Return noisy rows after a layer; a function of tensors, so that layers compile as one."""
    query, key, value = project(x, rotary, weights, config)
    both = torch.cat((seen[0], key), 2), torch.cat((seen[1], value), 2)
    keys, values = (side.repeat_interleave(query.shape[1] // side.shape[1], 1) for side in both)
    return update(x, attend(query, keys, values, bias), weights, config)


def clean_pass(
    x: Tensor, rotary: Tensor, weights: LayerWeights, config: CausalConfig
) -> tuple[Tensor, Tensor]:
    """Return words' rows after a layer, and their keys and values (2, N, heads, S, d)."""
    query, key, value = project(x, rotary, weights, config)
    groups = query.shape[1] // key.shape[1]
    keys, values = (side.repeat_interleave(groups, 1) for side in (key, value))
    attended = F.scaled_dot_product_attention(query, keys, values, is_causal=True)
    return update(x, attended, weights, config), torch.stack((key, value))


@functools.cache
def compiled_noisy() -> Callable[..., Tensor]:
    return torch.compile(noisy_pass, dynamic=False)


@functools.cache
def compiled_clean() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(clean_pass, dynamic=False)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `weighted_norm` in float32, whatever the types of rows and weights are."""
    return weighted_norm(x.float(), weight.float(), eps).to(x.dtype)


def project(
    x: Tensor, rotary: Tensor, weights: LayerWeights, config: CausalConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, each (N, heads, S, d)."""
    qkv = product(weights.qkv, norm(x, weights.attention_norm, config.eps))
    qkv = qkv if weights.qkv_bias is None else qkv + weights.qkv_bias.to(qkv.dtype)
    heads, kv_heads = config.num_heads, config.num_kv_heads
    split = qkv.unflatten(-1, (-1, config.head_size)).split((heads, kv_heads, kv_heads), 2)
    query, key, value = split
    if weights.head_norms is not None:
        query, key = (
            norm(part, weight, config.eps)
            for part, weight in zip((query, key), weights.head_norms, strict=True)
        )
    query, key = rotate(query, rotary), rotate(key, rotary)
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def update(x: Tensor, attended: Tensor, weights: LayerWeights, config: CausalConfig) -> Tensor:
    """Return rows after the output of attention, and after the feed-forward part."""
    out = product(weights.out, attended.transpose(1, 2).flatten(2))
    x = x + (out if weights.out_bias is None else out + weights.out_bias.to(out.dtype))
    gate, up = product(weights.up, norm(x, weights.mlp_norm, config.eps)).chunk(2, -1)
    return x + product(weights.down, F.silu(gate) * up)

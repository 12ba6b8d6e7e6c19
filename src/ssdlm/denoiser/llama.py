"""Causal language models on layers of ours: the Llama family, Mistral, Qwen2 and Qwen3.

    words -> [norm -> grouped attention -> norm -> gated feed-forward] x layers -> norm -> head

causal, slots -> [llama] -> storage.causal
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from ssdlm.config import CausalConfig
from ssdlm.denoiser.causal import CausalDenoiser
from ssdlm.denoiser.slots import Network, SlotLayer
from ssdlm.ops.rotary import rotation_by
from ssdlm.ops.rows import HeadNorms, weighted_norm
from ssdlm.shapes import Block, Tensor


class LlamaLayer(SlotLayer):
    """Pre-norm attention, whose queries share keys in groups, and a gated feed-forward part."""

    is_gated = True

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        self.config, self.eps, self.head_size = config, config.eps, config.head_size
        D, d, hidden = config.D, config.head_size, config.hidden
        heads = config.num_heads + 2 * config.num_kv_heads
        self.attention_norm, self.mlp_norm = empty(D), empty(D)
        self.qkv, self.out = empty(heads * d, D), empty(D, config.num_heads * d)
        self.up, self.down = empty(2 * hidden, D), empty(D, hidden)
        if config.has_qkv_bias:
            self.qkv_bias = empty(heads * d)
        if config.has_out_bias:
            self.out_bias = empty(D)
        self.query_norm = empty(d) if config.has_qk_norms else None
        self.key_norm = empty(d) if config.has_qk_norms else None

    def head_norms(self) -> HeadNorms | None:
        if self.query_norm is None or self.key_norm is None:
            return None
        return HeadNorms(self.eps, torch.stack((self.query_norm, self.key_norm)))


class LlamaDenoiser(CausalDenoiser, Network):
    """A causal language model whose rows go through `slots.Slots`."""

    config: CausalConfig
    is_exact = True

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        self.config, self.V, self.max_len = config, config.V, config.max_len
        self.words = empty(config.V, config.D)
        self.own_head = None if config.is_tied else empty(config.V, config.D)
        self.norm = empty(config.D)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.num_layers))

    @property
    def device(self) -> torch.device:
        return self.words.device

    @property
    def dtype(self) -> torch.dtype:
        return self.words.dtype

    @property
    def head(self) -> Tensor:
        return self.words if self.own_head is None else self.own_head

    @property
    def prior(self) -> Tensor:
        """What a head of ours adds to its logits: here nothing."""
        return torch.zeros(self.V, device=self.device)

    @property
    def key_shape(self) -> tuple[int, int]:
        """How many heads the keys of a token have, and how wide they are."""
        return self.config.num_kv_heads, self.config.head_size

    def transformer_layers(self) -> list[LlamaLayer]:
        return cast(list[LlamaLayer], list(self.layers))

    def rotary(self, positions: Tensor) -> Tensor:
        return rotation_by(positions, frequencies(self.config).to(positions.device))

    def embed(self, tokens: Block) -> Tensor:
        return F.embedding(tokens, self.words)

    def last_norm(self, x: Tensor) -> Tensor:
        """Return what the head reads of rows that have gone through the layers."""
        return weighted_norm(x, self.norm, self.config.eps)


def frequencies(config: CausalConfig) -> Tensor:
    """Return the frequencies (d / 2,) of rotary position embedding, scaled as the model wants."""
    exponent = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
    plain = 1.0 / config.theta**exponent
    if config.rope == "default":
        return plain
    if config.rope == "linear":
        return plain / config.factor
    # llama3: slow rotations are slowed down, fast ones stay, and in between is between.
    turns = config.original_len * plain / (2 * math.pi)
    low, high = config.low_factor, config.high_factor
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * plain / config.factor + share * plain


def empty(*shape: int) -> nn.Parameter:
    """Return a weight that is filled later."""
    return nn.Parameter(torch.empty(shape))

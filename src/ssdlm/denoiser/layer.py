"""One transformer layer, as functions of tensors.  attention -> [layer] -> denoiser.block"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

from ssdlm.config import BlockConfig
from ssdlm.denoiser.attention import attend_both
from ssdlm.denoiser.slots import SlotLayer
from ssdlm.ops.rotary import rotate
from ssdlm.ops.rows import plain_norm as norm
from ssdlm.shapes import Tensor


class Layer(SlotLayer):
    """Pre-norm attention and feed-forward; norms have no weights, queries and keys are normed.

    The network gives a new layer its `initial_values`.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        width, hidden = config.D, config.D * config.expansion
        self.num_heads, self.head_size = config.num_heads, config.D // config.num_heads
        self.is_compiled = False
        self.qkv = nn.Parameter(torch.empty(3, width, width))
        self.out = nn.Parameter(torch.empty(width, width))
        self.up = nn.Parameter(torch.empty(hidden, width))
        self.down = nn.Parameter(torch.empty(width, hidden))

    def initial_values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a new layer, which adds nothing to its input."""
        for name in ("qkv", "up"):
            shape = self.get_parameter(name).shape
            yield name, torch.randn(shape) * shape[-1] ** -0.5
        for name in ("out", "down"):
            yield name, torch.zeros(self.get_parameter(name).shape)

    def forward(self, both: Tensor, rotary: Tensor, bias: Tensor | None, num_noisy: int) -> Tensor:
        """Return [clean | noisy] after this layer; `bias` says what noisy positions see."""
        weights = (self.qkv, self.out, self.up, self.down)
        run = compiled_pass() if self.is_compiled else layer_pass
        return run(both, rotary, bias, *weights, self.num_heads, num_noisy)


def layer_pass(
    both: Tensor,
    rotary: Tensor,
    bias: Tensor | None,
    qkv: Tensor,
    out: Tensor,
    up: Tensor,
    down: Tensor,
    num_heads: int,
    num_noisy: int,
) -> Tensor:
    """Return both streams after a layer; a function of tensors, so that layers compile as one."""
    query, key, value = project(both, rotary, qkv, num_heads)
    return update(both, attend_both(query, key, value, bias, num_noisy), out, up, down)


@functools.cache
def compiled_pass() -> Callable[..., Tensor]:
    # Weights are arguments, so one compiled function serves every layer.
    return torch.compile(layer_pass, dynamic=False)


def project(
    x: Tensor, rotary: Tensor, qkv: Tensor, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, each (N, heads, S, d)."""
    together = F.linear(norm(x), qkv.flatten(0, 1)).unflatten(-1, (3 * num_heads, -1))
    # Normed queries and keys keep the attention scores bounded, however large the weights.
    both = rotate(norm(together[:, :, : 2 * num_heads]), rotary)
    query, key = both.transpose(1, 2).chunk(2, 1)
    return query, key, together[:, :, 2 * num_heads :].transpose(1, 2)


def update(x: Tensor, attended: Tensor, out: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return the stream after the output of attention, and after the feed-forward part."""
    x = x + F.linear(attended.transpose(1, 2).flatten(2), out)
    return x + F.linear(F.relu(F.linear(norm(x), up)).square(), down)

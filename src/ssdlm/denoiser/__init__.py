"""Networks that denoise, and what they have in common beyond `diffusion.denoiser`.

There are four families: `encoder.EncoderDenoiser`, the paper's, `block.BlockDenoiser`, ours,
`causal.CausalDenoiser`, a causal language model with one open position, and
`adapted.AdaptedDenoiser`, such a model with an adapter, for any number.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ssdlm.diffusion.denoiser import Denoiser, DenoiserWrapper, RowDenoiser, advance, remember
from ssdlm.shapes import Tensor

__all__ = [
    "Denoiser",
    "DenoiserModule",
    "DenoiserWrapper",
    "RowDenoiser",
    "advance",
    "plain_products",
    "remember",
    "row_by_row",
]

IS_ARM = platform.machine() == "aarch64"


class DenoiserModule(nn.Module, Denoiser):
    """A denoiser with weights: it can be trained, saved and opened again."""

    config: Any
    """What it is built from: an EncoderConfig or a BlockConfig."""
    denoises_blocks: bool = True
    """Whether it is trained to denoise; an autoregressive model is not."""

    def set_unigram(self, counts: Tensor) -> None:
        """Take in how often each token occurs in the training text, where the network reads it."""

    def transformer_layers(self) -> Sequence[nn.Module]:
        """Return the layers in order, for training to shard, compile or recompute one by one."""
        raise NotImplementedError

    def compile_layers(self) -> None:
        """Compile the layers for training; what is compiled serves them all."""
        raise NotImplementedError

    def store_for_cpu(self) -> None:
        """Lay the weights out as a CPU multiplies them fastest, where that makes a difference."""


def row_by_row(forward: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Apply `forward` so that a row's result cannot depend on how many rows there are.

    Matrix products on a CPU choose their order of summation by the number of rows, so there each
    row goes alone; the last bit would differ otherwise. Other devices take the whole batch.
    """
    if inputs[0].device.type != "cpu":
        return forward(*inputs)
    with plain_products():
        rows = zip(*(tensor.split(1) for tensor in inputs), strict=True)
        return torch.cat([forward(*row) for row in rows])


@contextmanager
def plain_products() -> Iterator[None]:
    """Multiply without oneDNN on ARM, where it takes up to twice as long for products of few rows.

    It is one switch for all threads; the worst that two who meet here do is to leave it off.
    """
    onednn = torch.backends.mkldnn
    was_on = IS_ARM and onednn.enabled
    if was_on:
        onednn.enabled = False
    try:
        yield
    finally:
        if was_on:
            onednn.enabled = True

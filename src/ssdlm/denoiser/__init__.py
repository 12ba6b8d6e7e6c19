"""What every denoiser can do: read a context once, then turn noise into logits, step after step.

Two families answer to it: `encoder.EncoderDenoiser`, the paper's, and `block.BlockDenoiser`, ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from ssdlm.shapes import Block, Context, Simplex, Tensor


@runtime_checkable
class Cache(Protocol):
    """What a denoiser keeps of the context while a block is denoised."""

    @property
    def context(self) -> Context: ...


@runtime_checkable
class Denoiser(Protocol):
    """A network that estimates a clean block from a noisy one and the context to its left."""

    @property
    def V(self) -> int:
        """Vocabulary size."""
        ...

    @property
    def K(self) -> float:
        """Simplex scale."""
        ...

    @property
    def max_len(self) -> int | None:
        """The longest context and block together; None where any length goes."""
        ...

    @property
    def device(self) -> torch.device: ...

    def prefill(self, context: Context) -> Any:
        """Return a cache of all that can be computed from the context alone; C may be 0."""
        ...

    def extend(self, cache: Any, block: Block) -> Any:
        """Return the cache of the context followed by a decided block."""
        ...

    def denoise(self, cache: Any, w_t: Simplex, progress: Tensor) -> Simplex:
        """Return w_logits (Eq. 13); progress is t/T, a scalar, one a row, or one a position."""
        ...


@runtime_checkable
class WindowDenoiser(Denoiser, Protocol):
    """A denoiser that can be asked for a few positions, while nothing is open about the others."""

    def denoise_window(
        self, cache: Any, w_t: Simplex, progress: Tensor, tokens: Block, at: slice
    ) -> Tensor:
        """Return `denoise(...)[:, at]`, (N, b, V), for levels (N, B) one a position.

        Every position outside `at` is clean, and then `tokens` has its token, or noise alone.
        """
        ...


@runtime_checkable
class RememberingDenoiser(Denoiser, Protocol):
    """A denoiser that, if `has_memory`, is also told the logits of the step before."""

    @property
    def has_memory(self) -> bool: ...

    def denoise(
        self, cache: Any, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex: ...


class Around:
    """What a denoiser that wraps another one takes over from it as it is."""

    denoiser: Denoiser

    @property
    def V(self) -> int:
        return self.denoiser.V

    @property
    def K(self) -> float:
        return self.denoiser.K

    @property
    def device(self) -> torch.device:
        return self.denoiser.device


def remember(denoiser: Denoiser, cache: Any, context: Context, *, B: int) -> Any:
    """Return the cache of a context, of its latest tokens where the model has no room for all."""
    C = context.shape[1]
    keep = C if denoiser.max_len is None else denoiser.max_len - B
    if keep < 0:
        raise ValueError(f"B={B} is longer than the model's {denoiser.max_len} positions; lower B")
    if cache is None or keep < C:
        return denoiser.prefill(context[:, max(0, C - keep) :])
    return denoiser.extend(cache, context[:, cache.context.shape[1] :])


def row_by_row(forward: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Apply `forward` so that a row's result cannot depend on how many rows there are.

    Matrix products on a CPU choose their order of summation by the number of rows, so there each
    row goes alone; the last bit would differ otherwise. Other devices take the whole batch.
    """
    if len(inputs[0]) == 1 or inputs[0].device.type != "cpu":
        return forward(*inputs)
    rows = zip(*(tensor.split(1) for tensor in inputs), strict=True)
    return torch.cat([forward(*row) for row in rows])

"""What is added to logits whatever the network says: a bias for tokens, less penalties.

    denoiser -> guidance -> [bias] -> constraints -> projection

A penalty is for tokens that the text has already: those that are decided, and before which all is
decided. The prompt's do not count, nor do those of open positions, which may yet change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ssdlm.diffusion.denoiser import Denoiser, DenoiserWrapper, advance, remember
from ssdlm.shapes import Block, Context, Simplex, Tensor


@dataclass(frozen=True)
class Bias:
    """What a text prefers."""

    of_tokens: tuple[tuple[int, float], ...] = ()
    """What is added to the logits of some tokens."""
    presence: float = 0.0
    """What is taken from those of tokens that the text has."""
    frequency: float = 0.0
    """The same for each time that it has them."""

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence or self.frequency)

    def __bool__(self) -> bool:
        return self != UNBIASED

    def row(self, V: int, device: torch.device) -> Tensor:
        """Return what is added for each token (V,)."""
        ids = torch.tensor([one for one, _ in self.of_tokens], dtype=torch.long, device=device)
        values = torch.tensor([value for _, value in self.of_tokens], device=device)
        return torch.zeros(V, device=device).index_put((ids,), values)

    def __call__(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Return biased logits (..., V), counts (..., V) being how often the text has a token."""
        row = self.row(logits.shape[-1], logits.device)
        return logits.float() + leaning(row, self.presence, self.frequency, counts)


UNBIASED = Bias()


def leaning(row: Tensor, presence: Any, frequency: Any, counts: Tensor) -> Tensor:
    """Return what is added to logits; counts are those of tokens in the text."""
    return row - presence * (counts > 0).float() - frequency * counts


def counted(written: Tensor, V: int) -> Tensor:
    """Return how often each token stands in texts (N, n), as numbers (N, V)."""
    nothing = torch.zeros(len(written), V, device=written.device)
    return nothing.scatter_add(1, written, torch.ones_like(written, dtype=nothing.dtype))


def add_decided(counts: Tensor, tokens: Block, levels: Tensor) -> Tensor:
    """Return counts (N, V) with tokens (N, B) before which, as they themselves, all is clean."""
    return counts.scatter_add(1, tokens, (levels == 0).cumprod(1).to(counts))


@dataclass
class BiasedCache:
    """The context, whole, and the denoiser's own cache of it."""

    context: Context
    inner: Any = None
    is_read: bool = False
    """Whether `inner` has read all of the context."""


@dataclass
class biased(DenoiserWrapper):
    """A denoiser whose logits have a bias; contexts are prompts of one length, and text."""

    denoiser: Denoiser
    bias: Bias
    start: int
    """Where in a context the text begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.max_len = None  # the whole text comes here; what the denoiser has no room for is cut
        self.has_windows, self.has_memory = self.denoiser.has_windows, self.denoiser.has_memory

    def prefill(self, context: Context) -> BiasedCache:
        return BiasedCache(context)

    def extend(self, cache: BiasedCache, block: Block) -> BiasedCache:
        return BiasedCache(torch.cat((cache.context, block), 1), cache.inner)

    def denoise(
        self, cache: BiasedCache, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        self.read_context(cache, w_t.shape[1])
        memory = () if previous is None else (previous,)
        logits = self.denoiser.denoise(cache.inner, w_t, progress, *memory)
        return self.lean(cache, logits, w_t, progress)

    def denoise_window(
        self, cache: BiasedCache, w_t: Simplex, progress: Tensor, tokens: Block, window: slice
    ) -> Tensor:
        self.read_context(cache, w_t.shape[1])
        logits = self.denoiser.denoise_window(cache.inner, w_t, progress, tokens, window)
        return self.lean(cache, logits, w_t, progress)

    def read_and_denoise(
        self, cache: BiasedCache, new: Context, w_t: Simplex, progress: Tensor
    ) -> tuple[BiasedCache, Simplex]:
        context = torch.cat((cache.context, new), 1)
        inner, logits, _ = advance(self.denoiser, cache.inner, context, w_t, progress)
        cache = BiasedCache(context, inner, is_read=True)
        return cache, self.lean(cache, logits, w_t, progress)

    def read_context(self, cache: BiasedCache, B: int) -> None:
        """Let the denoiser read the context: only now is it known what has room beside a block."""
        if not cache.is_read:
            cache.inner = remember(self.denoiser, cache.inner, cache.context, B=B)
            cache.is_read = True

    def lean(self, cache: BiasedCache, logits: Tensor, w_t: Simplex, progress: Tensor) -> Tensor:
        """Return logits with the bias, for what is decided of the text and of the block."""
        counts = counted(cache.context[:, self.start :], self.V)
        if progress.dim() == 2:
            counts = add_decided(counts, w_t.argmax(-1), progress)
        return self.bias(logits, counts.unsqueeze(1))

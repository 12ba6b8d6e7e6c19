"""A denoiser led by words: classifier-free guidance with a prompt.

    denoiser, behind two prompts -> [described] -> guidance by gradient -> constraints -> projection

It reads every text twice, behind its own prompt and behind one that says what the text is to be,
and goes as far as it is told in the direction in which that moves the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ssdlm.denoiser import Denoiser, DenoiserWrapper
from ssdlm.shapes import Block, Context, Simplex, Tensor


@dataclass(frozen=True)
class DescribedCache:
    """A context, and what the denoiser keeps of it behind either prompt."""

    context: Context
    plain: Any
    told: Any


@dataclass
class described(DenoiserWrapper):
    """A denoiser whose logits are plain + weight * (told - plain); `prompts` (N, C) tell it."""

    denoiser: Denoiser
    prompts: Context
    start: int
    """How many tokens of a context are the plain prompt; the others follow either prompt."""
    weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_windows = self.denoiser.has_windows

    def told(self, context: Context) -> Tensor:
        """Return a context behind the prompts that tell what it is to be."""
        return torch.cat((self.prompts, context[:, self.start :]), 1)

    def lead(self, plain: Tensor, told: Tensor) -> Tensor:
        """Return logits as far from the plain ones as the weight says."""
        return plain + self.weight * (told - plain)

    def prefill(self, context: Context) -> DescribedCache:
        read = self.denoiser.prefill
        return DescribedCache(context, read(context), read(self.told(context)))

    def extend(self, cache: DescribedCache, block: Block) -> DescribedCache:
        whole = torch.cat((cache.context, block), 1)
        plain, told = self.denoiser.extend(cache.plain, block), self.unread(cache, whole)
        return DescribedCache(whole, plain, self.denoiser.extend(cache.told, told))

    def unread(self, cache: DescribedCache, context: Context) -> Tensor:
        """Return what the denoiser has not read of a context behind the prompts that tell."""
        return self.told(context)[:, cache.told.context.shape[1] :]

    def denoise(
        self, cache: DescribedCache, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        del previous
        say = self.denoiser.denoise
        return self.lead(say(cache.plain, w_t, progress), say(cache.told, w_t, progress))

    def read_and_denoise(
        self, cache: DescribedCache, new: Context, w_t: Simplex, progress: Tensor
    ) -> tuple[DescribedCache, Simplex]:
        whole, say = torch.cat((cache.context, new), 1), self.denoiser.read_and_denoise
        plain, logits = say(cache.plain, new, w_t, progress)
        told, led = say(cache.told, self.unread(cache, whole), w_t, progress)
        return DescribedCache(whole, plain, told), self.lead(logits, led)

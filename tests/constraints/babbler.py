"""A network that insists on what it should not write, and noise that costs little."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ssdlm.denoiser import Denoiser

K, CPU = 5.0, torch.device("cpu")


@dataclass
class Cache:
    context: torch.Tensor


@dataclass
class Babbler(Denoiser):
    """A denoiser that says random things, some of them insistently: a text it has in mind."""

    V: int
    seed: int = 0
    wanted: list[int] = field(default_factory=list)
    is_steady: bool = False
    """Whether it wants the same from the first row for a while, so that this one is done early."""
    calls: int = 0
    K: float = K
    max_len: int | None = None
    device: torch.device = CPU

    def prefill(self, context):
        return Cache(context)

    def extend(self, cache, block):
        return Cache(torch.cat((cache.context, block), 1))

    def denoise(self, cache, w_t, progress):
        self.seed += 1
        generator = torch.Generator().manual_seed(self.seed)
        logits = 3 * torch.randn(w_t.shape, generator=generator)
        for place in range(w_t.shape[1] if self.wanted else 0):
            logits[:, place, self.wanted[(self.seed // 3 + place) % len(self.wanted)]] += 9
            if self.is_steady:
                logits[0, place, self.wanted[(self.calls // 4 + place) % len(self.wanted)]] += 90
        self.calls += 1
        return logits


@dataclass
class CheapNoise:
    """Noise for cases in which only the number of them matters."""

    seeds: torch.Tensor

    def generator(self, block, step):
        return torch.Generator().manual_seed(int(self.seeds[0]) % 2**31 + 1000 * block + step)

    def normal(self, *, block, step, B, V, first=0):
        return torch.randn(len(self.seeds), B, V, generator=self.generator(block, step))

    def uniform(self, *, block, step, B):
        return torch.rand(len(self.seeds), B, generator=self.generator(block, step))

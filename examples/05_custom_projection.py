"""Decode with a projection of one's own: python examples/05_custom_projection.py [--tiny]

A projection is any callable (logits, u) -> w_hat. This one wraps another and forbids some tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from chosen_model import model_and_size

from ssdlm import SSDLM, Strategy, generate, sampling
from ssdlm.diffusion.grid import Staggered
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import Projection


@dataclass(frozen=True)
class without:
    """`inner`, with some tokens out of the question."""

    inner: Projection
    tokens: tuple[int, ...]

    def __call__(self, logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return self.inner(logits.index_fill(-1, torch.tensor(self.tokens), -torch.inf), u)


def main(name: str, *, blocks: list[int], T: int) -> None:
    model = SSDLM.from_pretrained(name, device="cpu")
    denoiser, tokenizer = model.denoiser, model.tokenizer
    banned = tuple(i for i, word in enumerate(tokenizer.token_strings()) if "e" in word)
    project = without(sampling(denoiser.K, top_p=0.95), banned)
    # returns="w_0": the tokens that were projected. The logits still know the forbidden ones.
    strategy = Strategy(Staggered(T, 1.0), project, returns="w_0")
    context = torch.tensor([tokenizer.encode("A book without that sign:")])
    noise = RowNoise(torch.tensor([0]))
    steps = generate(denoiser, context, strategy, blocks=blocks, noise=noise)
    tokens = torch.cat([step.tokens for step in steps if step.is_last], 1)
    print(repr(tokenizer.decode(tokens[0].tolist())))


if __name__ == "__main__":
    with model_and_size(__doc__) as (name, is_tiny):
        main(name, blocks=[5, 10] if is_tiny else [10, 25], T=8 if is_tiny else 63)

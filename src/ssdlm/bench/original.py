"""The authors' decoding loop, restated in plain torch: what `bench decode --original` times.

Written from its description alone; nothing is imported from the rest of the library, so that tests
can hold the library against it. Everything is as wide as the authors have it: fp32, noise drawn on
the CPU and moved, the head over context and block, a full sort for the nucleus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Project = Callable[[Tensor], Tensor]
"""From logits (N, B, V) to w_hat, +K or -K everywhere."""
Draw = Callable[[tuple[int, ...]], Tensor]
"""Unit normals of a shape, wherever they come from."""


@dataclass(frozen=True)
class OriginalNetwork:
    """A masked LM, and the two layers that stand beside it."""

    masked_lm: Any
    simplex_embed: nn.Linear
    time_embed: nn.Linear

    @property
    def device(self) -> torch.device:
        return self.time_embed.weight.device

    @torch.no_grad()
    def logits(self, before: Tensor, w_t: Tensor, progress: float) -> Tensor:
        """Return the block's logits (N, B, V), given the context's embeddings (N, C, D)."""
        level = torch.full((*w_t.shape[:2], 1), progress, device=w_t.device)
        noisy = self.simplex_embed(w_t.softmax(-1)) + self.time_embed(level)
        whole = self.masked_lm(inputs_embeds=torch.cat((before, noisy), 1)).logits
        return whole[:, before.shape[1] :]


@dataclass(frozen=True)
class OriginalStep:
    """What one step of one block did."""

    block: int
    t: int
    """The level before the step: T at first, 1 at last."""
    logits: Tensor
    """After any control, before the projection."""
    w_hat: Tensor

    @property
    def tokens(self) -> Tensor:
        """The block if it ended here: argmax of the logits, not what was drawn."""
        return self.logits.argmax(-1)


def unsteered(logits: Tensor) -> Tensor:
    """Return the logits as they are."""
    return logits


def decode(
    network: OriginalNetwork,
    context: Tensor,
    project: Project,
    *,
    T: int,
    B: int,
    num_blocks: int,
    K: float = 5.0,
    draw: Draw = torch.randn,
    steer: Project = unsteered,
) -> Iterator[OriginalStep]:
    """Yield every step of blocks of length B, each with all before it as context."""
    words, device = network.masked_lm.get_input_embeddings(), network.device
    shape = (len(context), B, words.num_embeddings)
    for block in range(num_blocks):
        with torch.no_grad():
            before = words(context)
        w_t, decided = K * draw(shape).to(device), context[:, :0]
        for t in range(T, 0, -1):
            logits = steer(network.logits(before, w_t, t / T))
            w_hat = project(logits)
            a = alpha_bar((t - 1) / T)
            z = draw(shape).to(device)  # drawn at the last step too, where it counts for nothing
            w_t = math.sqrt(a) * w_hat + math.sqrt(1 - a) * K * z
            decided = logits.argmax(-1)
            yield OriginalStep(block, t, logits, w_hat)
        context = torch.cat((context, decided), 1)


def alpha_bar(progress: float) -> float:
    """Return the share of the signal at t/T: the cosine schedule, 1 at t = 0."""

    def cosine(x: float) -> float:
        return math.cos((x + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2

    return cosine(progress) / cosine(0.0)


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return the set of tokens before which, most probable first, less than p has been summed."""
    values, ids = logits.sort(-1, descending=True)
    below = values.softmax(-1).cumsum(-1) < top_p
    kept = torch.cat((torch.ones_like(below[..., :1]), below[..., :-1]), -1)
    return torch.zeros_like(kept).scatter(-1, ids, kept)


def multi_hot(logits: Tensor, *, K: float, top_p: float) -> Tensor:
    """Return +K at every token of the nucleus."""
    return torch.where(nucleus(logits, top_p), K, -K)


def sampling(logits: Tensor, *, K: float, top_p: float) -> Tensor:
    """Return +K at one token per position, drawn from the nucleus."""
    kept = logits.masked_fill(~nucleus(logits, top_p), -torch.inf)
    return one_hot(torch.distributions.Categorical(logits=kept).sample(), logits, K=K)


def one_hot(ids: Tensor, logits: Tensor, *, K: float) -> Tensor:
    """Return +K at a token, -K at all others, as wide as the logits."""
    return torch.full_like(logits, -K).scatter_(-1, ids.unsqueeze(-1), K)


def steered(classifier: Any, *, label: int, lam: float) -> Project:
    """Return control by a classifier that reads the block alone, averaged over the batch."""
    table = classifier.get_input_embeddings().weight

    def steer(logits: Tensor) -> Tensor:
        with torch.enable_grad():
            logits = logits.detach().requires_grad_()
            scores = classifier(inputs_embeds=logits.softmax(-1) @ table).logits
            goal = scores.log_softmax(-1)[:, label].mean()
            (gradient,) = torch.autograd.grad(goal, logits)
        return (logits + lam * gradient).detach()

    return steer

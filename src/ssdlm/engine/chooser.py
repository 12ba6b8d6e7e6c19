"""Tokens of one text, chosen between logits and state by the reference loop.

    logits of a batch's pass -> [chooser: guides -> constraints -> projection] -> tokens

Required words beside forbidden ones, a grammar in a wide window, who asks for the states of every
step: none of them fits into a graph that a GPU repeats. The loops of `diffusion` know them all.
Here such a loop goes on by a step for each pass of the batch, around a denoiser that runs no
network and says what the pass has said. So only the text that asked for it pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ssdlm.constraints.constrained import constrained
from ssdlm.denoiser import Denoiser, DenoiserWrapper
from ssdlm.diffusion.sampler import Step
from ssdlm.shapes import Block, Context, Simplex, Tensor


@dataclass(frozen=True)
class Read:
    """The cache of a text: what it has read is in a batch's slot."""

    context: Context


@dataclass
class Answered(DenoiserWrapper):
    """A denoiser that says what a batch's pass has said."""

    denoiser: Denoiser
    logits: Tensor | None = None
    """Of the latest pass (1, W, V)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_windows = True

    def prefill(self, context: Context) -> Read:
        return Read(context)

    def extend(self, cache: Read, block: Block) -> Read:
        return Read(torch.cat((cache.context, block), 1))

    def denoise(
        self, cache: Read, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        del cache, w_t, progress, previous
        assert self.logits is not None, "a step follows a pass"
        return self.logits


class Chooser:
    """The reference loop of one text, a step for each pass.

    `denoiser` is `inner` within the text's guides and constraints, `steps` the loop around it.
    """

    def __init__(self, inner: Answered, denoiser: Denoiser, steps: Iterator[Step]) -> None:
        self.inner, self.denoiser, self.steps = inner, denoiser, steps
        self.latest: Step | None = None

    def pins(self, levels: Tensor) -> Block | None:
        """Return the tokens (1, B) that the network is to see as clean text, -1 for none."""
        if not isinstance(self.denoiser, constrained) or self.denoiser.is_free:
            return None
        return self.denoiser.next_pins(levels)

    def choose(self, logits: Tensor) -> Step:
        """Return the step that follows a pass with these logits (1, W, V)."""
        self.inner.logits = logits
        if (step := next(self.steps, None)) is None:
            raise RuntimeError("the loop of a text has no more steps, and the text is not whole")
        self.latest = step
        return step

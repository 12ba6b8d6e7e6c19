"""A text token by token, by the context stream alone: no diffusion.

    context stream -> log p -> bias, temperature, masks, nucleus -> + Gumbel noise -> next token

The noise belongs to a text's positions, so the text is one fixed chain of tokens: whoever guesses
its next links can be told by one pass which guesses were right (`engine.programs.drafted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from ssdlm.diffusion.bias import UNBIASED, Bias, counted
from ssdlm.diffusion.denoiser import RowDenoiser
from ssdlm.diffusion.noise import GumbelNoise
from ssdlm.diffusion.sampler import Step
from ssdlm.ops.nucleus import perturbed
from ssdlm.shapes import Block, Context, Tensor


@runtime_checkable
class Rules(Protocol):
    """Which tokens may stand where; the state tells what the text so far comes to."""

    def legal_tokens(self, state: int, position: int) -> np.ndarray: ...

    def step(self, state: int, position: int, token: int) -> int: ...


@dataclass(frozen=True)
class Place:
    """Where a row's text has come to under its rules."""

    rules: Rules
    state: int
    position: int = 0

    def legal(self) -> np.ndarray:
        """Return which tokens (V,) may stand here."""
        return self.rules.legal_tokens(self.state, self.position)

    def after(self, token: int) -> Place:
        """Return the place after a token that was put here."""
        state = self.rules.step(self.state, self.position, token)
        return Place(self.rules, state, self.position + 1)


@dataclass(frozen=True)
class Choice:
    """How the next token follows from its logits: the greatest of log p, cut to a nucleus, + g."""

    top_p: float = 1.0
    temperature: float = 1.0
    suppress: tuple[int, ...] = ()
    """Tokens that are not written where there is another."""
    is_greedy: bool = False
    """Whether the likeliest token is taken: no noise is added."""
    top_k: int = 0
    min_p: float = 0.0
    bias: Bias = UNBIASED

    def __call__(
        self,
        logits: Tensor,
        g: Tensor | None,
        legal: Tensor | None = None,
        written: Tensor | None = None,
    ) -> Tensor:
        """Return the tokens that logits (n, V) and noise decide."""
        return self.perturbed(logits, g, legal, written).argmax(-1)

    def perturbed(
        self,
        logits: Tensor,
        g: Tensor | None,
        legal: Tensor | None = None,
        written: Tensor | None = None,
    ) -> Tensor:
        """Return log p + g up to a constant, -inf outside the nucleus of what is legal.

        `written` are the texts so far (n, length), or the one of all rows (1, length).
        """
        if self.bias:
            V, nothing = logits.shape[-1], torch.zeros(1, 0, dtype=torch.long, device=logits.device)
            logits = self.bias(logits, counted(nothing if written is None else written, V))
        settings = {"top_p": self.top_p, "temperature": self.temperature}
        cut = {"top_k": self.top_k, "min_p": self.min_p}
        return perturbed(logits, g, legal, **settings, **cut, suppressed=self.suppress)

    def draw(self, noise: GumbelNoise, *, position: int, V: int) -> Tensor | None:
        """Return the noise (N, 1, V) at a position of a text, None where none is added."""
        return None if self.is_greedy else noise.gumbel(position=position, V=V)


def generate_chain(
    denoiser: RowDenoiser,
    context: Context,
    choice: Choice,
    *,
    blocks: Sequence[int],
    noise: GumbelNoise,
    places: Sequence[Place] = (),
    end_of_text: int | None = None,
) -> Iterator[Step]:
    """Write a token per pass; yield a Step for each, in blocks, the unit in which it is reported.

    `places` has one for each row where rows have rules. With `end_of_text`, stops where all rows
    have ended.
    """
    new, written = context, context[:, :0]
    with torch.no_grad():
        cache = denoiser.prefill(context[:, :0])
    has_ended = torch.zeros(len(context), dtype=torch.bool, device=context.device)
    for block, B in enumerate(blocks):
        for left in range(B - 1, -1, -1):
            with torch.no_grad():
                logits, cache = denoiser.read_next(cache, new)
            g = choice.draw(noise, position=written.shape[1], V=denoiser.V)
            legal = legal_of(places, context.device)
            new = choice(logits, None if g is None else g[:, 0], legal, written).unsqueeze(1)
            written = torch.cat((written, new), 1)
            if places:
                pairs = zip(places, new[:, 0].tolist(), strict=True)
                places = [place.after(token) for place, token in pairs]
            is_over = False
            if end_of_text is not None:
                has_ended = has_ended | (new[:, 0] == end_of_text)
                is_over = bool(has_ended.all())
            tokens, is_last = written[:, left - B :], left == 0 or is_over
            yield decided(block, left, tokens, V=denoiser.V, is_last=is_last)
            if is_over:
                return


def decided(block: int, left: int, tokens: Block, *, V: int, is_last: bool) -> Step:
    """Return the Step of a block whose tokens so far are decided: its window is empty."""
    end = tokens.shape[1]
    nothing = torch.zeros(len(tokens), 0, V, device=tokens.device)
    window = slice(end, end)
    level = torch.zeros(end)
    return Step(block, left, window, nothing, nothing, nothing, tokens, is_last, level)


def legal_of(places: Sequence[Place], device: torch.device) -> Tensor | None:
    """Return which tokens (N, V) may stand at some places, None where all may."""
    if not places:
        return None
    return torch.from_numpy(np.stack([place.legal() for place in places])).to(device)

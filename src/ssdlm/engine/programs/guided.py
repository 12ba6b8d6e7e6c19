"""Sliding windows steered by classifiers, within the graph.  window -> [guided] -> engine.runners

The plain twin is a chooser, which asks the guides between the halves of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.engine.batch import Entry
from ssdlm.engine.path import Path
from ssdlm.engine.programs.window import Window
from ssdlm.guidance.gradient import InSimplex, guided, side_by_side
from ssdlm.guidance.growing import GrowingGuide
from ssdlm.ops.nudges import add_nudge, can_nudge
from ssdlm.shapes import Tensor

HAS_SHORT_CUTS = True
"""Whether guides of one layer keep what they have read, and a GPU has kernels for nudges."""


@contextmanager
def rounded_products(is_rounded: bool) -> Iterator[None]:
    """Let a GPU round what it multiplies to ten bits, as it does beside a network of eight."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = before or is_rounded
    try:
        yield
    finally:
        matmul.allow_tf32 = before


class GuidedWindow(Window):
    """Windows whose guides read each text as far as it has come, and its open positions.

    All texts of a batch have the same guides with the same weights.
    """

    is_dense = True

    def __init__(
        self,
        denoiser: BlockDenoiser | LlamaDenoiser,
        path: Path,
        steering: Callable[..., guided],
        *,
        room: int | None,
        **sizes: Any,
    ) -> None:
        super().__init__(denoiser, path, **sizes)
        capacity = sizes["capacity"]
        self.S = capacity if room is None else min(capacity, room - self.W)
        self.ids = self.whole(self.S)
        """What the guides read: all that is decided, and behind it a token that was there."""
        self.counts = self.whole()
        self.steering = steering(self.counts, grows=HAS_SHORT_CUTS)
        self.terms = self.steering.terms(self.device)
        self.growing = [term for term, _, _ in self.terms if isinstance(term, GrowingGuide)]
        V = denoiser.V
        self.is_fused = HAS_SHORT_CUTS and self.is_known(V)
        self.present = torch.zeros(self.num_slots, V, dtype=torch.bool, device=self.device)
        """Which tokens are in a text, for the kernel; those of `ids`, but for the last."""
        self.nothing = torch.zeros(V, device=self.device)
        """What a draw adds: the prior is in what the guides return."""

    def is_known(self, V: int) -> bool:
        """Tell whether one operation adds what a guide says to V logits."""
        is_known = all(isinstance(term, InSimplex) for term, _, _ in self.terms)
        return is_known and self.steering.gradient == "words" and can_nudge(self.device, V)

    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> None:
        super().join(entries, slots, sources)
        padded = [one.context + one.context[:1] * (self.S - len(one.context)) for one in entries]
        at = torch.tensor(slots, device=self.device)
        ids = torch.tensor(padded, device=self.device)
        self.ids[at] = ids
        self.present[at] = torch.zeros_like(self.present[at]).scatter(1, ids, True)
        if self.growing:
            lengths = [len(one.context) - 1 for one in entries]
            counts, longest = torch.tensor(lengths, device=self.device), max(lengths)
            for guide in self.growing:
                guide.join(ids[:, :longest], counts, at)

    def draw(self) -> None:
        with rounded_products(self.denoiser.dtype != torch.float32):
            super().draw()

    def steered(self) -> tuple[Tensor, Tensor]:
        torch.add(self.lengths, 1, out=self.counts)  # the last token is being read
        V = self.denoiser.V  # guides know nothing of more
        own = self.logits[..., :V] + self.prior[:V]
        whole = own if self.ell is None else own + self.ell
        # Of all rows at once: each is steered by itself, and at every level.
        if self.is_fused:
            return self.nudged(own, whole), self.nothing
        for guide in self.growing:
            guide.read(self.last, self.active)
        return own + self.steering.lam * self.steering.nudge(self.ids, whole), self.nothing

    def nudged(self, own: Tensor, whole: Tensor) -> Tensor:
        """Return own + lam * nudge at the whole logits, by a launch for each guide."""
        works = [partial(self.climb, term, whole) for term, _, _ in self.terms]
        gradients = side_by_side(works, self.device)
        for gradient, (_, weight, most) in zip(gradients, self.terms, strict=True):
            known = self.present, self.last, self.active, most
            scale, threshold = self.steering.lam * weight, self.steering.threshold
            own = add_nudge(own, whole, gradient, *known, scale=scale, threshold=threshold)
        return own

    def climb(self, guide: Any, whole: Tensor) -> Tensor:
        """Return a guide's gradient in the simplex, after it has read what was decided last."""
        if isinstance(guide, GrowingGuide):
            return guide.read_and_climb(self.last, self.active, whole)
        return guide.simplex_gradient(self.ids, whole)

    def write(self, tokens: Tensor) -> None:
        if not self.is_fused or len(self.growing) < len(self.terms):
            places = self.counts.clamp(max=self.S - 1).unsqueeze(1)
            self.ids.scatter_(1, places, tokens)
        super().write(tokens)

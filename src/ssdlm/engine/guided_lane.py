"""Sliding windows side by side, steered by classifiers.  lanes -> [guided_lane] -> fleet"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.engine.lanes import Row, SlidingLane
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


class GuidedLane(SlidingLane):
    """Texts out of sliding windows; guides read each as far as it has come, and its open positions.

    All texts of a lane have the same guides with the same weights.
    """

    def __init__(
        self,
        denoiser: BlockDenoiser,
        steering: Callable[..., guided],
        *,
        room: int | None,
        width: float,
        num_slots: int,
        capacity: int,
        is_held: bool = False,
    ) -> None:
        sizes = {"num_slots": num_slots, "capacity": capacity, "is_held": is_held}
        super().__init__(denoiser, width=width, **sizes)
        self.S = capacity if room is None else min(capacity, room - self.W)
        self.ids = torch.zeros(num_slots, self.S, dtype=torch.int64, device=self.device)
        """What the guides read: all that is decided, and behind it a token that was there."""
        self.counts = torch.zeros(num_slots, dtype=torch.int64, device=self.device)
        self.steering = steering(self.counts, grows=HAS_SHORT_CUTS)
        self.terms = self.steering.terms(self.device)
        self.growing = [term for term, _, _ in self.terms if isinstance(term, GrowingGuide)]
        V = denoiser.V
        self.added = torch.zeros(V, device=self.device)  # the prior is in what the guides return
        self.is_fused = HAS_SHORT_CUTS and self.is_known(V)
        self.present = torch.zeros(num_slots, V, dtype=torch.bool, device=self.device)
        """Which tokens are in a text, for the kernel; those of `ids`, but for the last."""

    def is_known(self, V: int) -> bool:
        """Tell whether one operation adds what a guide says to V logits."""
        is_known = all(isinstance(term, InSimplex) for term, _, _ in self.terms)
        return is_known and self.steering.gradient == "words" and can_nudge(self.device, V)

    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        super().join(rows, slots)
        padded = [row.context + row.context[:1] * (self.S - len(row.context)) for row in rows]
        at = torch.tensor(slots, device=self.device)
        ids = torch.tensor(padded, device=self.device)
        self.ids[at] = ids
        self.present[at] = torch.zeros_like(self.present[at]).scatter(1, ids, True)
        if self.growing:
            lengths = [len(row.context) - 1 for row in rows]
            counts, longest = torch.tensor(lengths, device=self.device), max(lengths)
            for guide in self.growing:
                guide.join(ids[:, :longest], counts, at)

    def step(self) -> None:
        with rounded_products(self.denoiser.dtype != torch.float32):
            super().step()

    def draw(self, logits: Tensor) -> Tensor:
        torch.add(self.slots.lengths, 1, out=self.counts)  # the last token is being read
        V = self.denoiser.V  # guides know nothing of more
        own = logits[..., :V] + self.prior[:V]
        whole = own + self.ell if self.W > 1 else own
        # Of all rows at once: each is steered by itself, and at every level (`Controls.lane_key`).
        if self.is_fused:
            return super().draw(self.nudged(own, whole))
        for guide in self.growing:
            guide.read(self.last, self.active)
        return super().draw(own + self.steering.lam * self.steering.nudge(self.ids, whole))

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

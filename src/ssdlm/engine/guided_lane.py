"""Sliding windows side by side, steered by classifiers.  lanes -> [guided_lane] -> fleet"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.engine.lanes import Row, SlidingLane
from ssdlm.guidance.gradient import guided
from ssdlm.shapes import Tensor


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
        steering: Callable[[Tensor], guided],
        *,
        room: int | None,
        width: float,
        num_slots: int,
        capacity: int,
    ) -> None:
        super().__init__(denoiser, width=width, num_slots=num_slots, capacity=capacity)
        self.S = capacity if room is None else min(capacity, room - self.W)
        self.ids = torch.zeros(num_slots, self.S, dtype=torch.int64, device=self.device)
        """What the guides read: all that is decided, and behind it a token that was there."""
        self.counts = torch.zeros(num_slots, dtype=torch.int64, device=self.device)
        self.steering = steering(self.counts)
        self.added = torch.zeros_like(self.prior)  # it is in what the guides return

    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        super().join(rows, slots)
        padded = [row.context + row.context[:1] * (self.S - len(row.context)) for row in rows]
        at = torch.tensor(slots, device=self.device)
        self.ids[at] = torch.tensor(padded, device=self.device)

    def step(self) -> None:
        with rounded_products(self.denoiser.dtype != torch.float32):
            super().step()

    def draw(self, logits: Tensor) -> Tensor:
        self.counts.copy_(self.slots.lengths + 1)  # the last token is being read
        own = logits.float() + self.prior
        whole = own + self.ell if self.W > 1 else own
        # Of all rows at once: each is steered by itself, and at every level (`Controls.lane_key`).
        return super().draw(own + self.steering.lam * self.steering.nudge(self.ids, whole))

    def write(self, tokens: Tensor) -> None:
        places = self.counts.clamp(max=self.S - 1).unsqueeze(1)
        self.ids.scatter_(1, places, tokens)
        super().write(tokens)

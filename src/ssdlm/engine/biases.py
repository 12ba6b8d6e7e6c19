"""Biases and penalties of the texts of a batch.  diffusion.bias -> [biases] -> batch, programs"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ssdlm.diffusion.bias import Bias, leaning
from ssdlm.shapes import Tensor


class Biases:
    """Tables of a batch: what is added to the logits of each slot's text."""

    def __init__(self, num_slots: int, V: int, device: torch.device) -> None:
        self.rows = torch.zeros(num_slots, V, device=device)
        """What is added for each token."""
        self.before = torch.zeros(num_slots, V, device=device)
        """How often a text had each token before it joined, as a particle's may."""
        self.penalties = torch.zeros(2, num_slots, 1, 1, device=device)
        """For a token that is there, and for each time that it is."""

    def join(self, biases: Sequence[Bias], texts: Sequence[Sequence[int]], at: Tensor) -> None:
        """Let slots have biases, their texts being some tokens long already."""
        V, device = self.rows.shape[1], self.rows.device
        self.rows[at] = torch.stack([one.row(V, device) for one in biases])
        counts = [torch.tensor(one, dtype=torch.long).bincount(minlength=V) for one in texts]
        self.before[at] = torch.stack(counts).to(self.before)
        both = torch.tensor([(one.presence, one.frequency) for one in biases], device=device)
        self.penalties[:, at] = both.T[..., None, None]

    def lean(self, here: slice | Tensor, counts: Tensor) -> Tensor:
        """Return what is added to logits (N, W, V) of slots whose texts have counts (N, W, V)."""
        presence, frequency = self.penalties[:, here]
        return leaning(self.rows[here].unsqueeze(1), presence, frequency, counts)

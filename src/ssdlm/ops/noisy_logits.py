"""A noised token as V-wide logits, never stored: gain_z z, plus gain_w at the token's own entry.

Both the evidence of a position (ell = 2 sqrt(snr) z + 4 snr [i = w]) and the paper's w_t
have this form up to a constant, so one kernel reads either.  noise -> [noisy_logits] -> kernels
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ssdlm.shapes import Tensor


@dataclass(frozen=True)
class Noisy:
    """M noised tokens in factors: `z` (M, V), the tokens (M,), and a gain for each (M,)."""

    z: Tensor
    tokens: Tensor
    gain_z: Tensor
    gain_w: Tensor

    def rows(self, part: slice) -> Noisy:
        """Return some of the tokens."""
        return Noisy(self.z[part], self.tokens[part], self.gain_z[part], self.gain_w[part])

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the four tensors, for functions that take tensors alone."""
        return self.z, self.tokens, self.gain_z, self.gain_w


def noisy_logits(z: Tensor, tokens: Tensor, gain_z: Tensor, gain_w: Tensor) -> Tensor:
    """Return gain_z z + gain_w [i = token] as float32; a comparison, so that it fuses."""
    column = torch.arange(z.shape[-1], device=z.device, dtype=torch.int32)
    is_token = column == tokens.int().unsqueeze(-1)
    bonus = torch.where(is_token, gain_w.float().unsqueeze(-1), 0.0)
    return gain_z.float().unsqueeze(-1) * z.float() + bonus

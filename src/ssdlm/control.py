"""A denoiser that listens to a classifier: the only home of gradients in decoding.

    denoiser -> [control] -> projection

Control wraps a denoiser and is one itself, so the sampler cannot know that it exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ssdlm.denoiser import Denoiser, row_by_row
from ssdlm.shapes import Block, Context, Simplex, Tensor

LogProb = Callable[[Context, Simplex], Tensor]
"""f_phi(y | w_logits, context): one log-probability a row, differentiable in the logits."""


@dataclass(frozen=True)
class guided:
    """A denoiser nudged uphill: logits + lam * gradient of log_prob at the logits (Eq. 23).

    "sum" adds log_prob over the rows, so that a row's nudge does not depend on its batch; "mean"
    averages, as the authors' code does, and so divides lam by the number of rows.
    """

    denoiser: Denoiser
    log_prob: LogProb
    lam: float
    reduction: Literal["sum", "mean"] = "sum"

    @property
    def V(self) -> int:
        return self.denoiser.V

    @property
    def K(self) -> float:
        return self.denoiser.K

    @property
    def max_len(self) -> int | None:
        return self.denoiser.max_len

    @property
    def device(self) -> torch.device:
        return self.denoiser.device

    def prefill(self, context: Context) -> Any:
        return self.denoiser.prefill(context)

    def extend(self, cache: Any, block: Block) -> Any:
        return self.denoiser.extend(cache, block)

    def denoise(self, cache: Any, w_t: Simplex, progress: Tensor) -> Simplex:
        logits = self.denoiser.denoise(cache, w_t, progress).detach()
        lam = self.lam / len(logits) if self.reduction == "mean" else self.lam
        return logits + lam * row_by_row(self.gradient, cache.context, logits)

    def gradient(self, context: Context, logits: Simplex) -> Simplex:
        """Return the gradient of log_prob in each row's own logits."""
        with torch.enable_grad():
            logits = logits.detach().requires_grad_()
            (grad,) = torch.autograd.grad(self.log_prob(context, logits).sum(), logits)
        return grad


def weighted(*terms: tuple[LogProb, float]) -> LogProb:
    """Return one log-probability made of several, each times its weight."""

    def log_prob(context: Context, logits: Simplex) -> Tensor:
        return torch.stack([weight * term(context, logits) for term, weight in terms]).sum(0)

    return log_prob

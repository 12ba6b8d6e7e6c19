"""When is a block done before its steps are?  [stopping] -> sampler"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from ssdlm.shapes import Block, Simplex, Tensor


@runtime_checkable
class Stop(Protocol):
    """What tells for each row whether its block has settled."""

    @property
    def patience(self) -> int:
        """How many of the latest steps `__call__` wants to see; 0 if it never stops."""
        ...

    def __call__(self, latest: Sequence[Block], logits: Simplex) -> Tensor: ...


@dataclass(frozen=True)
class never:
    """Take every step."""

    patience: int = 0

    def __call__(self, latest: Sequence[Block], logits: Simplex) -> Tensor:
        del latest
        return torch.zeros(len(logits), dtype=torch.bool, device=logits.device)


@dataclass(frozen=True)
class stable:
    """Stop a row whose tokens stood still for `patience` steps, each of them near certain."""

    patience: int = 4
    confidence: float = 0.95
    """The least probability that any token of the block must have."""

    def __call__(self, latest: Sequence[Block], logits: Simplex) -> Tensor:
        if len(latest) < self.patience:
            return never()(latest, logits)
        still = torch.stack([(tokens == latest[-1]).all(-1) for tokens in latest]).all(0)
        # The least certain position decides: a single open token may still change the others.
        log_prob = logits.amax(-1).float() - logits.float().logsumexp(-1)
        return still & (log_prob.exp().amin(-1) >= self.confidence)

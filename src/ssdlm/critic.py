"""What the context stream says of a text that was written.  denoiser -> [critic] -> api"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ssdlm import likelihood


def nll(denoiser: Any, context: Sequence[int], tokens: Sequence[int]) -> float:
    """Return a BlockDenoiser's mean -log p of a text's tokens after a context, in one pass."""
    if not tokens or len(context) + len(tokens) < 2:
        return math.inf
    whole = torch.tensor([[*context, *tokens]], device=denoiser.device)
    return likelihood.next_token_nll(denoiser, whole)[0, -len(tokens) :].mean().item()

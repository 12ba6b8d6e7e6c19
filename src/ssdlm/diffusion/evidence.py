"""What a noisy state says by itself: ell = gain * w_t.  schedule -> [evidence] -> denoiser

Noise is Gaussian, so Bayes' rule says how much likelier w_t is under each token; up to a constant
that is w_t times a number which depends on the level alone.
"""

from __future__ import annotations

from ssdlm.diffusion import schedule
from ssdlm.shapes import Tensor

MAX_SNR = 30.0
"""Evidence stops growing here: the token is certain, and exp stays finite."""


def evidence_gain(progress: Tensor, K: float) -> Tensor:
    """Return 2 sqrt(a) / (K (1 - a)), which makes w_t evidence; beyond MAX_SNR, its mean there."""
    # sqrt(a) / (1 - a) = snr / sqrt(a), which loses no digits where a is close to 1.
    snr = schedule.snr(progress).clamp(max=MAX_SNR)
    return (2 * snr / (K * schedule.cosine(progress).sqrt())).float()


def as_levels(progress: Tensor) -> Tensor:
    """Return t/T with two dimensions, texts and positions: it may be a number, or one a text."""
    return progress.reshape(*progress.shape, *[1] * (2 - progress.dim()))

"""The forward process: how a clean block becomes noise.  simplex -> [noising] -> denoiser"""

from __future__ import annotations

from ssdlm.shapes import Simplex, Tensor


def add_noise(w_0: Simplex, alpha_bar_t: Tensor, *, K: float, z: Simplex) -> Simplex:
    """Sample w_t given w_0: sqrt(a) w_0 + sqrt(1 - a) K z (Eq. 7).

    `alpha_bar_t` is one level (a scalar), one per row (N,), or one per position (N, B).
    """
    a = alpha_bar_t.to(w_0.dtype)
    if a.dim() > 0:
        a = a.reshape(*a.shape, *[1] * (w_0.dim() - a.dim()))
    return a.sqrt() * w_0 + (1 - a).sqrt() * K * z

"""From one noise level to the next: how a state moves.  grid -> [steps] -> sampler"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch

from ssdlm.diffusion.grid import Grid
from ssdlm.shapes import Simplex, Tensor


@runtime_checkable
class StepRule(Protocol):
    """How the state moves from level t to t - 1, given the projected estimate."""

    def __call__(
        self, w_t: Simplex, w_hat: Simplex, *, grid: Grid, t: int, K: float, z: Simplex
    ) -> Simplex: ...


@dataclass(frozen=True)
class Renoise:
    """Keep a fraction rho of the evidence in w_t, and draw the rest anew around w_hat.

    rho = 0 forgets w_t: sqrt(a) w_hat + sqrt(1 - a) K z, the paper's step (Eq. 18). rho = 1 keeps
    it, which is stochastic localisation. "adaptive" keeps 1 - (snr' - snr) / snr. In terms of the
    evidence X = w sqrt(a) / (K (1 - a)), Brownian motion in the signal-to-noise ratio, a step is
    X' = rho X + (snr' - rho snr) w_hat / K + sqrt(snr' - rho^2 snr) z; this is that, in w.
    """

    rho: float | Literal["adaptive"] = 0.0

    def __call__(
        self, w_t: Simplex, w_hat: Simplex, *, grid: Grid, t: int, K: float, z: Simplex
    ) -> Simplex:
        a, a_next = grid.alpha_bar[t], grid.alpha_bar[t - 1]
        snr, snr_next = grid.snr[t], grid.snr[t - 1]
        if self.rho == "adaptive":
            rho = (1 - (snr_next - snr) / snr).clamp(0, 1)
        else:
            rho = torch.full_like(snr, self.rho)
        scale = (1 - a_next) / a_next.sqrt()  # from evidence back to w
        keep = rho * scale * a.sqrt() / (1 - a)
        drift = a_next.sqrt() - rho * scale * snr
        # Rounding may leave a variance of nearly 0 just below it.
        spread = (1 - a_next - (rho * scale).square() * snr).clamp(min=0).sqrt()
        keep, drift, spread = (over_vocabulary(x, w_t) for x in (keep, drift, spread))
        return keep * w_t + drift * w_hat + spread * K * z


@dataclass(frozen=True)
class Ddpm:
    """DDPM's transition with w_hat as the predicted data: the noise is inferred, not drawn.

    Exactly Eq. 21; `simplified` leaves out its factor near 1 (Eq. 22). The paper finds that it
    fails on simplexes; it is here so that this can be shown.
    """

    simplified: bool = False

    def __call__(
        self, w_t: Simplex, w_hat: Simplex, *, grid: Grid, t: int, K: float, z: Simplex
    ) -> Simplex:
        del K, z
        a, a_next = grid.alpha_bar[t], grid.alpha_bar[t - 1]
        factor = torch.ones_like(a) if self.simplified else ((a / a_next - a) / (1 - a)).sqrt()
        data, noise, root, rest = (
            over_vocabulary(x, w_t)
            for x in (a_next.sqrt(), factor * (1 - a_next).sqrt(), a.sqrt(), (1 - a).sqrt())
        )
        inferred = (w_t - root * w_hat) / rest  # Eq. 19, solved for the noise
        return data * w_hat + noise * inferred


def over_vocabulary(level: Tensor, w_t: Simplex) -> Tensor:
    """Return one coefficient, or one per position, shaped to multiply the whole state."""
    return level.to(w_t).unsqueeze(-1)

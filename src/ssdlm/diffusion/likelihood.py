"""What a denoiser's samples are worth in nats: an upper bound on -log q, and the exact context NLL.

As the signal-to-noise ratio grows, the evidence is Brownian motion, and its drift is the token.
The cost of not knowing the drift is a squared error, so along any path of levels (I-MMSE, Girsanov)

    -log q(block | context) <= 2 * integral of sum_j E ||onehot(w_j) - softmax(logits_j)||^2 dsnr_j
                               + sum_j CE_j at the path's end

with equality for an exact denoiser. Each path of levels has its own bound.
denoiser -> [likelihood] -> train, evaluate
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ssdlm.diffusion import schedule, simplex
from ssdlm.diffusion.denoiser import Denoiser, RowDenoiser
from ssdlm.diffusion.noising import add_noise
from ssdlm.shapes import Block, Context, Simplex, Tensor, Tokens

MAX_SNR = 25.0
"""Where a path ends: what is not known by then is counted as cross-entropy."""
POWER = 3
"""A level rises as time to this power: most is learnt while the signal is weak."""

Path = Callable[[Tensor], Tensor]
"""From a path's time in [0, 1] to signal-to-noise ratios, one or one per position; they rise."""


@dataclass(frozen=True)
class Errors:
    """How far off each token's prediction is (N, S): squared, and in nats."""

    squared: Tensor
    nll: Tensor


Measure = Callable[[Tensor, int], Errors]
"""Noises tokens at given levels of progress, denoises them; the number picks the noise."""


@dataclass(frozen=True)
class Quadrature:
    """Points in [0, 1] and their weights."""

    points: Tensor
    weights: Tensor


def gauss_legendre(num: int, *, panels: int = 1) -> Quadrature:
    """Return `num` points in each of `panels` equal parts; steep paths want many panels."""
    x, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(num))
    left = torch.arange(panels, dtype=torch.float64).unsqueeze(1)
    points = (left + (x + 1) / 2) / panels
    return Quadrature(points.flatten(), (weights / 2 / panels).repeat(panels))


def stratified(u: Tensor) -> Quadrature:
    """Return one random point in each of len(u) equal parts: unbiased, whatever the path."""
    num = len(u)
    points = (torch.arange(num, dtype=torch.float64) + u.double()) / num
    return Quadrature(points, torch.full((num,), 1 / num, dtype=torch.float64))


def parallel(max_snr: float = MAX_SNR) -> Path:
    """Return the path on which all positions share one level."""
    return lambda time: (max_snr * time**POWER).reshape(1)


def staggered(places: Tensor, *, B: int, width: float, max_snr: float = MAX_SNR) -> Path:
    """Return the path of a window `width` positions wide that moves through blocks left to right.

    `places` (S,) are the positions' places within their blocks.
    """
    start = places.double()

    def path(time: Tensor) -> Tensor:
        return max_snr * ((time * (B + width) - start) / width).clamp(0.0, 1.0) ** POWER

    return path


def slope(path: Path, time: Tensor, *, step: float = 1e-6) -> Tensor:
    """Return the path's derivative, by a central difference in double precision."""
    return (path(time + step) - path(time - step)) / (2 * step)


def bound(measure: Measure, path: Path, rule: Quadrature) -> Tensor:
    """Return each token's share (N, S) of the bound on -log q, in nats."""
    # What the path's end leaves open is paid for in full: the first measurement, number 0.
    end = measure(schedule.progress_of_snr(path(torch.ones((), dtype=torch.float64))), 0)
    total = end.nll.double()
    for k, (time, weight) in enumerate(zip(rule.points, rule.weights, strict=True), start=1):
        # An exact denoiser's squared error is the rate at which evidence teaches it the block.
        errors = measure(schedule.progress_of_snr(path(time)), k)
        rate = (2 * weight * slope(path, time)).to(total.device)
        total = total + rate * errors.squared
    return total


def errors_of(logits: Simplex, tokens: Block) -> Errors:
    """Return ||onehot - p||^2 = 1 - 2 p_w + sum p^2, and -log p_w, of each token."""
    # By the expanded square no one-hot vector is built.
    log_probs = logits.float().log_softmax(-1)
    chosen = log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    squared = 1 - 2 * chosen.exp() + (2 * log_probs).exp().sum(-1)
    return Errors(squared, -chosen)


def one_block(
    denoiser: Denoiser, context: Context, block: Block, noise: Callable[[int], Simplex]
) -> Measure:
    """Return how to measure one block after a context, with any denoiser."""
    cache = denoiser.prefill(context)
    w_0 = simplex.to_logits(block, V=denoiser.V, K=denoiser.K)

    @torch.no_grad()
    def measure(progress: Tensor, k: int) -> Errors:
        levels = progress.to(block.device).expand(block.shape)
        w_t = add_noise(w_0, schedule.cosine(levels), K=denoiser.K, z=noise(k))
        return errors_of(denoiser.denoise(cache, w_t, levels), block)

    return measure


def all_blocks(
    denoiser: RowDenoiser, tokens: Tokens, blocks: Tensor, noise: Callable[[int], Simplex]
) -> Measure:
    """Return how to measure all blocks of a sequence in one pass.

    `blocks` and the levels are of the tokens that are noised: all, or all but the first.
    """
    noised = tokens[:, denoiser.num_given :]

    @torch.no_grad()
    def measure(progress: Tensor, k: int) -> Errors:
        levels = progress.to(tokens.device).expand(noised.shape)
        logits = denoiser.all_logits(tokens, levels, z=noise(k), blocks=blocks)
        return errors_of(logits, noised)

    return measure


@torch.no_grad()
def next_token_nll(denoiser: RowDenoiser, tokens: Tokens) -> Tensor:
    """Return the context stream's exact -log p (N, S - 1) of each token after the first."""
    logits = denoiser.next_logits(denoiser.prefill(tokens[:, :0]), tokens[:, :-1])
    return errors_of(logits, tokens[:, 1:]).nll


def text_nll(denoiser: RowDenoiser, context: Sequence[int], tokens: Sequence[int]) -> float:
    """Return the context stream's mean -log p of a text's tokens after a context, in one pass."""
    return mean_nll(texts_nll(denoiser, context, [tokens])[0])


def mean_nll(nll: Tensor) -> float:
    """Return the mean of -log p of a text's tokens; one without any is the last to be chosen."""
    return nll.mean().item() if len(nll) else math.inf


@torch.no_grad()
def texts_nll(
    denoiser: RowDenoiser, context: Sequence[int], texts: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Return the context stream's -log p of each token of texts after a context, in one pass.

    Without a context a text's first token has nothing before it, and so no probability here.
    """
    longest, start = len(context) + max(map(len, texts)), max(0, len(context) - 1)
    if longest < 2:
        return [torch.zeros(0)] * len(texts)
    rows = [[*context, *tokens] for tokens in texts]
    whole = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=denoiser.device)
    nll = next_token_nll(denoiser, whole).cpu()
    return [one[start : len(row) - 1] for one, row in zip(nll, rows, strict=True)]

"""The two loops: a block out of noise, and a text out of blocks (Algorithm 2).

    noise -> [ denoiser -> projection -> step ] x T -> block, appended to the context -> next block

Both are generators of `Step`s; whoever wants the text drains them, whoever wants to watch looks in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from ssdlm.denoiser import Denoiser, remember
from ssdlm.diffusion.grid import Grid
from ssdlm.diffusion.projection import Projection, Trim, shunned
from ssdlm.diffusion.simplex import to_ids, to_logits
from ssdlm.diffusion.stopping import Stop, never
from ssdlm.shapes import Block, Context, Levels, Simplex, Tensor


@dataclass(frozen=True)
class Step:
    """What one step of one block did."""

    block: int
    """Which block, from 0."""
    t: int
    """The level reached: T-1 after the first call of the network, 0 after the last."""
    at: slice
    """The positions that the step was about; all others are decided already, or still noise."""
    logits: Tensor
    """What the network said of them (N, b, V), after any control."""
    w_hat: Tensor
    """Its projection."""
    w_t: Simplex
    """The state at level t."""
    tokens: Block
    """The block if it ended here; settled rows no longer change, and noise reads as noise."""
    is_last: bool
    """Whether the block ends here."""


@runtime_checkable
class Noise(Protocol):
    """Unit normals and uniforms for any step of any block; `noise.RowNoise` is one."""

    def normal(self, *, block: int, step: int, B: int, V: int, first: int = 0) -> Simplex: ...

    def uniform(self, *, block: int, step: int, B: int) -> Levels: ...


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
        snr, rho = grid.snr[t], self.kept(grid.snr[t], grid.snr[t - 1])
        scale = (1 - a_next) / a_next.sqrt()  # from evidence back to w
        keep = rho * scale * a.sqrt() / (1 - a)
        drift = a_next.sqrt() - rho * scale * snr
        spread = (1 - a_next - (rho * scale).square() * snr).clamp(min=0).sqrt()
        keep, drift, spread = (over_vocabulary(x, w_t) for x in (keep, drift, spread))
        return keep * w_t + drift * w_hat + spread * K * z

    def kept(self, snr: Tensor, snr_next: Tensor) -> Tensor:
        """Return rho for a step from one signal-to-noise ratio to the next."""
        if self.rho == "adaptive":
            return (1 - (snr_next - snr) / snr).clamp(0, 1)
        return torch.full_like(snr, self.rho)


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
        inferred = (w_t - root * w_hat) / rest
        return data * w_hat + noise * inferred


def over_vocabulary(level: Tensor, w_t: Simplex) -> Tensor:
    """Return one coefficient, or one a position, shaped to multiply the whole state."""
    return level.to(w_t).unsqueeze(-1)


@dataclass(frozen=True)
class Strategy:
    """How a block is denoised; every part can be replaced by one's own."""

    plan: Callable[[int], Grid]
    """The noise levels for a block of length B."""
    project: Projection
    """From logits to w_hat (Eq. 14-16)."""
    rule: StepRule = field(default_factory=Renoise)
    """From one level to the next (Eq. 18)."""
    unwanted: tuple[int, ...] = ()
    """Tokens that are not written."""
    trim: Trim | None = None
    """How the network's share of the logits is cut and sharpened, before they are projected."""
    stop: Stop = field(default_factory=never)
    """When to leave early."""
    returns: str = "logits"
    """Which tokens a block ends as: argmax of the last "logits" (the authors' code), or of "w_0"
    (the paper). Under multi-hot w_0 has ties, so only the first is well defined there."""


def denoise_block(
    denoiser: Denoiser, cache: Any, strategy: Strategy, *, B: int, noise: Noise, block: int = 0
) -> Iterator[Step]:
    """Decode one block: a Step per t = T..1; the last one holds the answer."""
    plan, stop = strategy.plan(B), strategy.stop
    may_stop = not isinstance(stop, never)  # else a GPU need not be waited for at every step
    windows, whole = windows_for(denoiser, strategy, plan, B=B), plan.to(denoiser.device)
    K, V, T = denoiser.K, denoiser.V, plan.T
    w_t = K * noise.normal(block=block, step=0, B=B, V=V)
    result, recent, said = to_ids(w_t), deque[Block](maxlen=stop.patience), None
    is_done = torch.zeros(len(w_t), dtype=torch.bool, device=w_t.device)
    for t in range(T, 0, -1):
        step, at = T - t + 1, windows[t]
        grid, before = whole.part(at), w_t[:, at]
        with torch.no_grad():
            level = levels(whole.progress[t], w_t)
            if denoiser.has_memory:
                logits = said = denoiser.denoise(cache, w_t, level, previous=said)
            else:
                logits = look(denoiser, cache, w_t, level, result, at)
        logits = shunned(logits, strategy.unwanted)
        if strategy.trim is not None:
            logits = strategy.trim(logits, before, level[:, at] if level.dim() else level)
        w_hat = strategy.project(logits, noise.uniform(block=block, step=step, B=B)[:, at])
        z = normals(noise, at, block=block, step=step, B=B, V=V)
        moved = strategy.rule(before, w_hat, grid=grid, t=t, K=K, z=z)
        tokens = to_ids(logits if strategy.returns == "logits" else w_hat)
        is_kept = is_done.unsqueeze(-1) | (grid.progress[t] == 0)
        tokens = torch.where(is_kept, result[:, at], tokens)
        w_t = put(w_t, at, settle(before, moved, tokens, grid=grid, t=t, K=K))
        result = put(result, at, tokens)
        recent.append(tokens)
        is_done = is_done | stop(recent, logits)
        is_last = t == 1 or (may_stop and bool(is_done.all()))
        yield Step(block, t - 1, at, logits, w_hat, w_t, result, is_last)
        if is_last:
            return


def windows_for(denoiser: Denoiser, strategy: Strategy, grid: Grid, *, B: int) -> list[slice]:
    """Return the positions that each step looks at: all, unless nobody needs to see the others.

    Constraints, self-conditioning and leaving early read the whole block's logits.
    """
    is_free = isinstance(strategy.stop, never) and not denoiser.has_memory
    if denoiser.has_windows and is_free:
        return grid.windows(B)
    return [slice(0, B)] * (grid.T + 1)


def look(
    denoiser: Denoiser, cache: Any, w_t: Simplex, progress: Tensor, tokens: Block, at: slice
) -> Tensor:
    """Return the logits of some positions of a block, without the work for the others if it can."""
    if at == slice(0, w_t.shape[1]):
        return denoiser.denoise(cache, w_t, progress)
    return denoiser.denoise_window(cache, w_t, progress, tokens, at)


def normals(noise: Noise, at: slice, *, block: int, step: int, B: int, V: int) -> Tensor:
    """Return the noise of some positions of a block."""
    if at == slice(0, B):
        return noise.normal(block=block, step=step, B=B, V=V)
    return noise.normal(block=block, step=step, B=at.stop - at.start, V=V, first=at.start)


def put(whole: Tensor, at: slice, part: Tensor) -> Tensor:
    """Return a block's tensor with some positions replaced; the old one stays as it was."""
    if part.shape[1] == whole.shape[1]:
        return part
    return torch.cat((whole[:, : at.start], part, whole[:, at.stop :]), 1)


def levels(progress: Tensor, w_t: Simplex) -> Tensor:
    """Return one level as it is, or one for each position of every row."""
    progress = progress.to(w_t)
    return progress if progress.dim() == 0 else progress.expand(w_t.shape[:2])


def settle(w_t: Simplex, moved: Simplex, tokens: Block, *, grid: Grid, t: int, K: float) -> Simplex:
    """Return the state at t - 1, where positions may have levels of their own.

    One whose level stays keeps its state; one that is clean before the others becomes its token,
    so that they see what will be returned.
    """
    level, before = grid.progress[t - 1], grid.progress[t]
    if level.dim() == 0:
        return moved
    w_next = torch.where((level == before).unsqueeze(-1), w_t, moved)
    if t == 1:
        return w_next
    decided = to_logits(tokens, V=w_t.shape[-1], K=K)
    return torch.where(((level == 0) & (before > 0)).unsqueeze(-1), decided, w_next)


def generate(
    denoiser: Denoiser,
    context: Context,
    strategy: Strategy,
    *,
    blocks: Sequence[int],
    noise: Noise,
    end_of_text: int | None = None,
) -> Iterator[Step]:
    """Decode blocks of the given lengths, each with all before it as context.

    With `end_of_text`, stops after the block in which the last of the rows has ended.
    """
    cache = None
    has_ended = torch.zeros(len(context), dtype=torch.bool, device=context.device)
    for block, B in enumerate(blocks):
        with torch.no_grad():
            cache = remember(denoiser, cache, context, B=B)
        for step in denoise_block(denoiser, cache, strategy, B=B, noise=noise, block=block):
            yield step
            if step.is_last:
                context = torch.cat((context, step.tokens), 1)
                if end_of_text is not None:
                    has_ended = has_ended | (step.tokens == end_of_text).any(-1)
        if bool(has_ended.all()):
            return

"""The two loops: a block out of noise, and a text out of blocks (Algorithm 2).

    noise -> [ denoiser -> projection -> step ] x T -> block, appended to the context -> next block

Both are generators of `Step`s: whoever wants the text drains them, whoever wants to watch reads
each one. What may be chosen about the loop is a `Strategy`; what steers it wraps the denoiser.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ssdlm.diffusion.denoiser import Denoiser, remember
from ssdlm.diffusion.grid import Grid
from ssdlm.diffusion.noise import Noise
from ssdlm.diffusion.projection import Projection, Truncate, untruncated
from ssdlm.diffusion.simplex import to_ids, to_logits
from ssdlm.diffusion.steps import Renoise, StepRule
from ssdlm.diffusion.stopping import Stop, never
from ssdlm.ops.nucleus import suppress
from ssdlm.shapes import Block, Context, Simplex, Tensor


@dataclass(frozen=True)
class Step:
    """What one step of one block did."""

    block: int
    """Which block, from 0."""
    t: int
    """The level reached: T-1 after the first call of the network, 0 after the last."""
    window: slice
    """The positions that the step was about; all others are decided already, or still noise."""
    logits: Tensor
    """The network's logits for them (N, b, V), after any control."""
    w_hat: Tensor
    """Their projection."""
    w_t: Tensor
    """The state at level t, of the whole block; of a sliding window, of what stays open. Empty
    where nothing is noise."""
    tokens: Block
    """The block if it ended here; settled rows no longer change, and noise reads as noise. Where
    nothing is behind the window yet, the block as far as it goes."""
    is_last: bool
    """Whether the block ends here."""
    progress: Tensor
    """How noisy each of `tokens` is after the step, 1 being noise and 0 decided; on the CPU."""
    num_passes: int = 1
    """Passes of the network since the step before."""
    log_weight: Tensor | None = None
    """The log importance weight of each row's new tokens (N,), where that is kept."""
    drawn: Tensor | None = None
    """Of a sliding window, the tokens at all its positions, those of the next block included."""
    confidence: Sequence[float] | None = None
    """The probability of each token of the window, where logits and states are not kept."""


@dataclass(frozen=True)
class Strategy:
    """How a block is denoised; every part can be replaced by one's own."""

    grid: Callable[[int], Grid]
    """The noise levels for a block of length B."""
    project: Projection
    """From logits to w_hat (Eq. 14-16)."""
    rule: StepRule = field(default_factory=Renoise)
    """From one level to the next (Eq. 18)."""
    suppress: tuple[int, ...] = ()
    """Tokens that are not written."""
    truncate: Truncate = untruncated
    """How the network's share of the logits is cut and sharpened, before they are projected."""
    stop: Stop = field(default_factory=never)
    """When to leave early."""
    end_of_text: int | None = None
    """The token that ends a text: once every row has decided on one, nothing more is written."""
    returns: str = "logits"
    """Which tokens a block ends as: argmax of the last "logits" (the authors' code), or of "w_0"
    (the paper). Under multi-hot w_0 has ties, so only the first is well defined there."""


def denoise_block(
    denoiser: Denoiser, cache: Any, strategy: Strategy, *, B: int, noise: Noise, block: int = 0
) -> Iterator[Step]:
    """Decode one block (Algorithm 2): yield a Step per t = T..1; the last one has the answer."""
    K, V, grid = denoiser.K, denoiser.V, strategy.grid(B)
    windows = windows_for(denoiser, strategy, grid, B=B)
    progress = grid.progress  # on the CPU, for those who watch
    grid = grid.to(denoiser.device)  # after the windows: on a GPU each of them would be a wait
    logits_theta = Prediction(denoiser, cache, strategy, grid)
    w_t = K * noise.normal(block=block, step=0, B=B, V=V)
    answer = Answer(to_ids(w_t), strategy)
    for t in range(grid.T, 0, -1):
        window, levels = windows[t], grid.part(windows[t])
        z, u = draw(noise, window, block=block, step=grid.T - t + 1, B=B, V=V)
        logits = logits_theta(w_t, answer.tokens, t, window)  # Eq. 13
        w_hat = strategy.project(logits, u)  # Eq. 17
        w_next = strategy.rule(w_t[:, window], w_hat, grid=levels, t=t, K=K, z=z)  # Eq. 18
        answer.update(logits, w_hat, window, is_clean=levels.progress[t] == 0)
        w_next = settle(w_t[:, window], w_next, answer.tokens[:, window], grid=levels, t=t, K=K)
        w_t = replaced(w_t, window, w_next)
        level = progress[t - 1].expand(B)
        is_last = t == 1 or answer.is_settled or answer.has_ended(level)
        yield Step(block, t - 1, window, logits, w_hat, w_t, answer.tokens, is_last, level)
        if is_last:
            return


@dataclass
class Prediction:
    """The network's logits for a window of a block (Eq. 13), as a strategy wants them."""

    denoiser: Denoiser
    cache: Any
    strategy: Strategy
    grid: Grid
    previous: Simplex | None = None
    """Those of the step before, for a denoiser with memory."""

    @torch.no_grad()
    def __call__(self, w_t: Simplex, tokens: Block, t: int, window: slice) -> Tensor:
        progress = self.grid.progress[t].to(w_t)
        if progress.dim() > 0:
            progress = progress.expand(w_t.shape[:2])
        # Only what can be asked for a window is asked for one (`windows_for`).
        if self.denoiser.has_memory:
            logits = self.denoiser.denoise(self.cache, w_t, progress, self.previous)
            self.previous = logits
        elif window == slice(0, w_t.shape[1]):
            logits = self.denoiser.denoise(self.cache, w_t, progress)
        else:
            logits = self.denoiser.denoise_window(self.cache, w_t, progress, tokens, window)
        logits = suppress(logits, self.strategy.suppress)
        own = progress[:, window] if progress.dim() > 0 else progress
        return self.strategy.truncate(logits, w_t[:, window], own)


@dataclass
class Answer:
    """The tokens that a block would end as, step after step, and which rows are done."""

    tokens: Block
    strategy: Strategy
    latest: deque[Block] = field(init=False)
    is_done: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.latest = deque(maxlen=self.strategy.stop.patience)
        self.is_done = torch.zeros(len(self.tokens), dtype=torch.bool, device=self.tokens.device)

    def update(self, logits: Tensor, w_hat: Tensor, window: slice, is_clean: Tensor) -> None:
        """Take in one step; rows that are done and positions that are clean keep their tokens."""
        tokens = to_ids(logits if self.strategy.returns == "logits" else w_hat)
        is_kept = self.is_done.unsqueeze(-1) | is_clean
        tokens = torch.where(is_kept, self.tokens[:, window], tokens)
        self.tokens = replaced(self.tokens, window, tokens)
        self.latest.append(tokens)
        self.is_done = self.is_done | self.strategy.stop(self.latest, logits)

    @property
    def is_settled(self) -> bool:
        """Whether every row is done; where none can be, a GPU is not waited for."""
        return self.strategy.stop.patience > 0 and bool(self.is_done.all())

    def has_ended(self, level: Tensor) -> bool:
        """Tell whether every row's text ends at a position that is decided, at levels (B,)."""
        decided = self.tokens[:, level.to(self.tokens.device) == 0]
        return have_ended(decided, self.strategy.end_of_text)


def have_ended(decided: Block, end_of_text: int | None) -> bool:
    """Tell whether every row has its end among decided tokens; a GPU is asked only if it may."""
    if end_of_text is None or decided.shape[1] == 0:
        return False
    return bool((decided == end_of_text).any(-1).all())


def windows_for(denoiser: Denoiser, strategy: Strategy, grid: Grid, *, B: int) -> list[slice]:
    """Return the positions that each step is about: all, unless nobody needs to see the others.

    Constraints, self-conditioning and leaving early read the whole block's logits.
    """
    is_free = strategy.stop.patience == 0 and not denoiser.has_memory
    if denoiser.has_windows and is_free:
        return grid.windows(B)
    return [slice(0, B)] * (grid.T + 1)


def draw(
    noise: Noise, window: slice, *, block: int, step: int, B: int, V: int
) -> tuple[Tensor, Tensor]:
    """Return the normals (N, b, V) and uniforms (N, b) of a step at a window's positions."""
    num, first = window.stop - window.start, window.start
    z = noise.normal(block=block, step=step, B=num, V=V, first=first)
    return z, noise.uniform(block=block, step=step, B=B)[:, window]


def replaced(whole: Tensor, window: slice, part: Tensor) -> Tensor:
    """Return a block's tensor with a window of it replaced; the old one stays as it was."""
    if part.shape[1] == whole.shape[1]:
        return part
    return torch.cat((whole[:, : window.start], part, whole[:, window.stop :]), 1)


def settle(
    w_t: Simplex, w_next: Simplex, tokens: Block, *, grid: Grid, t: int, K: float
) -> Simplex:
    """Return the state at t - 1, where positions may have levels of their own.

    One whose level stays keeps its state; one that is clean before the others becomes its token,
    so that they see what will be returned.
    """
    level, before = grid.progress[t - 1], grid.progress[t]
    if level.dim() == 0:  # one level for all: the rule moved every position
        return w_next
    w_next = torch.where((level == before).unsqueeze(-1), w_t, w_next)
    if t == 1:  # nobody looks at it any more, and the paper's w_0 is what the rule says
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
) -> Iterator[Step]:
    """Decode blocks of the given lengths, each with all before it as context."""
    cache = None  # the first block reads the whole context, every other one what is new
    num_given = context.shape[1]
    for block, B in enumerate(blocks):
        with torch.no_grad():
            cache = remember(denoiser, cache, context, B=B)
        # Reading the context is one, or none.
        num_passes = 1 + (denoiser.num_context_passes if context.shape[1] else 0)
        for step in denoise_block(denoiser, cache, strategy, B=B, noise=noise, block=block):
            yield replace(step, num_passes=num_passes)
            num_passes = 1
            if step.is_last:
                context = torch.cat((context, step.tokens), 1)
        if have_ended(context[:, num_given:], strategy.end_of_text):
            return

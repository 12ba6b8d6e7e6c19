"""A text out of one window that slides through it: no position is read twice.

    [what was decided | open positions] -> denoiser -> projection -> step, and the window moves on

A block-wise decoder reads a block's positions in every pass, decided or not, and reads the block
again once it is whole. Here a pass reads the tokens that the pass before decided, as context, and
the open positions behind them. So a text of n tokens takes n passes at one position a pass, the
prompt's own included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from ssdlm.diffusion.denoiser import Denoiser, advance
from ssdlm.diffusion.grid import Move, Sliding
from ssdlm.diffusion.noise import Noise
from ssdlm.diffusion.sampler import Step, Strategy, have_ended
from ssdlm.diffusion.simplex import to_ids
from ssdlm.ops.nucleus import suppress
from ssdlm.shapes import Context, Simplex, Tensor


def slide(
    denoiser: Denoiser,
    context: Context,
    strategy: Strategy,
    path: Sliding,
    *,
    blocks: Sequence[int],
    B: Sequence[int],
    noise: Noise,
) -> Iterator[Step]:
    """Decode blocks of the given lengths, `B` when whole; yield a Step per pass of the network.

    A step's tokens are the block's as far as it is decided or open, and in a block's last step the
    block alone: positions of the next one may be open already.
    """
    K, V = denoiser.K, denoiser.V
    cache, text = None, context[:, :0]  # `text` is all that is decided or open
    w_t = torch.zeros(len(context), 0, V, device=context.device)
    for step, move in enumerate(path.moves(blocks, B), 1):
        window, levels = move.window, move.levels.to(denoiser.device)
        first, num = window.start, window.stop - window.start
        come = slice(first + w_t.shape[1], window.stop)
        w_t = torch.cat((w_t, entering(denoiser, noise, come, rows=len(context))), 1)
        progress = levels.progress[1].to(w_t).expand(w_t.shape[:2])
        with torch.no_grad():
            decided = torch.cat((context, text[:, :first]), 1)
            # Eq. 13
            cache, logits, num_passes = advance(denoiser, cache, decided, w_t, progress)
            logits = strategy.truncate(suppress(logits, strategy.suppress), w_t, progress)
        w_hat = strategy.project(logits, noise.uniform(block=0, step=step, B=num))
        tokens = to_ids(logits if strategy.returns == "logits" else w_hat)
        text = torch.cat((text[:, :first], tokens), 1)
        rest = slice(move.num_decided, num)
        w_t, num_open = w_t[:, rest], num - rest.start
        if num_open > 0:
            z = noise.normal(block=0, step=step, B=num_open, V=V, first=rest.start)
            rule, levels = strategy.rule, levels.part(rest)
            w_t = rule(w_t, w_hat[:, rest], grid=levels, t=1, K=K, z=z)  # Eq. 18
        has_ended = have_ended(text[:, : first + move.num_decided], strategy.end_of_text)
        here, window, level = shown(move, blocks, has_ended=has_ended)
        logits, w_hat = (x[:, : window.stop - window.start] for x in (logits, w_hat))
        is_last = move.left == 0 or has_ended
        own = move.block, move.left, window, logits, w_hat, w_t, text[:, here], is_last, level
        yield Step(*own, num_passes, drawn=tokens)
        if has_ended:
            return


def shown(move: Move, blocks: Sequence[int], *, has_ended: bool) -> tuple[slice, slice, Tensor]:
    """Return what of a text a step shows, the window within that, and the levels after the step."""
    first, stop, start = move.window.start, move.window.stop, sum(blocks[: move.block])
    end = start + blocks[move.block] if move.left == 0 else min(stop, sum(blocks))
    if has_ended:
        end = first + move.num_decided
    level = F.pad(move.levels.progress[0], (first - start, 0))[: end - start]
    return slice(start, end), slice(first - start, min(end, stop) - start), level


def entering(denoiser: Denoiser, noise: Noise, window: slice, *, rows: int) -> Simplex:
    """Return the state of positions that come into the window: noise.

    As evidence noise alone is nothing, and then no numbers need to be drawn.
    """
    num = window.stop - window.start
    if denoiser.has_evidence:
        return torch.zeros(rows, num, denoiser.V, device=denoiser.device)
    z = noise.normal(block=0, step=0, B=num, V=denoiser.V, first=window.start)
    return denoiser.K * z

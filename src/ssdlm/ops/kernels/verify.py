"""Guesses that a pass has checked, on a GPU: in one launch the right ones become text.

The plain body is in `ops.verify`. Only a GPU has Triton, so this module is imported where there is
one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ssdlm.ops.kernels.rows import launch
from ssdlm.shapes import Tensor


@triton.jit
def advance_kernel(
    chosen, guesses, parents, limits, active, steps, done, lengths, written, when, count, ends, R,
    ROOM, M: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Go on from a text's first row while the token after a row is the guess of one behind it.

    The tokens on the way are written to a text that moves, and the last is its next first guess.
    """
    text, at = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    words = tl.load(guesses + text * R + at, mask=at < R, other=-1)
    parent = tl.load(parents + at, mask=at < R, other=-2)
    start, length = tl.load(done + text), tl.load(lengths + text)
    moves = (tl.load(active + text) > 0) & (start < tl.load(limits + text))
    number = tl.load(steps + text) + moves.to(tl.int64)
    row, num, goes_on = 0, 0, 1
    token = tl.load(chosen + text * R)
    for step in range(M):
        token = tl.load(chosen + text * R + row)
        place = text * ROOM + start + step
        tl.store(written + place, token, mask=moves & (goes_on > 0))
        tl.store(when + place, number, mask=moves & (goes_on > 0))
        num += goes_on
        child = tl.min(tl.where((parent == row) & (words == token), at, WIDTH), 0)
        goes_on = goes_on * (child < WIDTH).to(tl.int32)
        row = tl.where(goes_on > 0, child, row)
    tl.store(count + text, num)
    tl.store(ends + text, row)
    tl.store(steps + text, number)
    tl.store(done + text, start + num, mask=moves)
    tl.store(lengths + text, length + num, mask=moves)
    tl.store(guesses + text * R, token, mask=moves)


def advance_(
    chosen: Tensor, guesses: Tensor, parents: Tensor, M: int, *, limits: Tensor, active: Tensor,
    steps: Tensor, done: Tensor, lengths: Tensor, text: Tensor, when: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Write what guesses made certain; return how many tokens, and the last row of each text."""
    N, R = guesses.shape
    count, ends = torch.empty_like(done), torch.empty_like(done)
    launch(
        advance_kernel, (N,), chosen, guesses, parents, limits, active, steps, done, lengths, text,
        when, count, ends, R, text.shape[1], M=M, WIDTH=triton.next_power_of_2(R),
    )  # fmt: skip
    return count, ends

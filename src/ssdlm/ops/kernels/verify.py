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
    chosen, guesses, limits, active, steps, done, lengths, written, when, ends, R, ROOM,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Go as far as guesses are the tokens before them; a text that moves gets those tokens.

    The last of them is its next first guess.
    """
    text, at = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    is_row, is_guessed = at < R, at < R - 1
    tokens = tl.load(chosen + text * R + at, mask=is_row, other=0)
    guess = tl.load(guesses + text * R + at + 1, mask=is_guessed, other=0)
    end = tl.min(tl.where(is_guessed & (guess == tokens), WIDTH, at), 0)
    start, length = tl.load(done + text), tl.load(lengths + text)
    moves = (tl.load(active + text) > 0) & (start < tl.load(limits + text))
    number = tl.load(steps + text) + moves.to(tl.int64)
    place, is_text = text * ROOM + start + at, moves & (at <= end)
    tl.store(written + place, tokens, mask=is_text)
    tl.store(when + place, number, mask=is_text)
    tl.store(ends + text, end.to(tl.int64))
    tl.store(steps + text, number)
    tl.store(done + text, start + end + 1, mask=moves)
    tl.store(lengths + text, length + end + 1, mask=moves)
    tl.store(guesses + text * R, tl.sum(tl.where(at == end, tokens, 0), 0), mask=moves)


def advance_(
    chosen: Tensor, guesses: Tensor, *, limits: Tensor, active: Tensor, steps: Tensor,
    done: Tensor, lengths: Tensor, text: Tensor, when: Tensor,
) -> Tensor:  # fmt: skip
    """Write what guesses made certain; return the last row of each text that is."""
    N, R = guesses.shape
    ends = torch.empty_like(done)
    launch(
        advance_kernel, (N,), chosen, guesses, limits, active, steps, done, lengths, text, when,
        ends, R, text.shape[1], WIDTH=triton.next_power_of_2(R),
    )  # fmt: skip
    return ends

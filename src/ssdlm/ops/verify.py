"""Guesses that a pass has checked: those that are right, and the text that they make longer.

[verify] -> engine.programs.drafted;  the Triton body is in `ops.kernels.verify`
"""

from __future__ import annotations

from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Tensor


def advance_(
    chosen: Tensor,
    guesses: Tensor,
    *,
    limits: Tensor,
    active: Tensor,
    steps: Tensor,
    done: Tensor,
    lengths: Tensor,
    text: Tensor,
    when: Tensor,
) -> Tensor:
    """Write what each text's guesses (N, R) made certain behind it; return the last such row (N,).

    A guess is right if it is the token `chosen` (N, R) in the row before it, whose guess is right
    too. The last token that was written is the first guess of the next pass.
    """
    tables = {"limits": limits, "active": active, "steps": steps, "done": done}
    tables |= {"lengths": lengths, "text": text, "when": when}
    if on_gpu(guesses):
        from ssdlm.ops.kernels import verify as kernels

        return kernels.advance_(chosen, guesses, **tables)
    ends = (guesses[:, 1:] == chosen[:, :-1]).long().cumprod(1).sum(1)
    for row, (end, start) in enumerate(zip(ends.tolist(), done.tolist(), strict=True)):
        if active[row] and start < limits[row]:
            steps[row] += 1
            place = slice(start, start + end + 1)
            text[row, place], when[row, place] = chosen[row, : end + 1], steps[row]
            lengths[row] += end + 1
            done[row] += end + 1
            guesses[row, 0] = chosen[row, end]
    return ends

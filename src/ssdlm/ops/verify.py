"""Guesses that a pass has checked: those that are right, and the text that they make longer.

[verify] -> engine.programs.drafted;  the Triton body is in `ops.kernels.verify`
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Tensor


class Path(NamedTuple):
    """The rows of each text whose words are certain, from the newest token on."""

    num: Tensor
    """(N,) how many there are."""
    ends: Tensor
    """(N,) the last of them."""


def advance_(
    chosen: Tensor,
    guesses: Tensor,
    parents: Tensor,
    m: int,
    *,
    limits: Tensor,
    active: Tensor,
    steps: Tensor,
    done: Tensor,
    lengths: Tensor,
    text: Tensor,
    when: Tensor,
) -> Path:
    """Write what each text's guesses (N, R) made certain behind it, `m` tokens at most.

    A guess is right if it is the token `chosen` (N, R) after its parent (R,), whose guess is right
    too. The last token that was written is the first guess of the next pass.
    """
    if on_gpu(guesses):
        from ssdlm.ops.kernels import verify as kernels

        tables = {"limits": limits, "active": active, "steps": steps, "done": done}
        tables |= {"lengths": lengths, "text": text, "when": when}
        return Path(*kernels.advance_(chosen, guesses, parents, m, **tables))
    count, ends = torch.ones_like(done), torch.zeros_like(done)
    for row, (tokens, own) in enumerate(zip(chosen, guesses, strict=True)):
        path = certain_path(tokens, own, parents)
        num = len(path)
        count[row], ends[row] = num, path[-1]
        if active[row] and done[row] < limits[row]:
            steps[row] += 1
            place = slice(int(done[row]), int(done[row]) + num)
            text[row, place], when[row, place] = tokens[path], steps[row]
            lengths[row] += num
            done[row] += num
            own[0] = tokens[path[-1]]
    return Path(count, ends)


def certain_path(chosen: Tensor, guesses: Tensor, parents: Tensor) -> list[int]:
    """Return the rows (R,) from the first on whose guess is the token after their parent."""
    path = [0]
    while True:
        is_child = (parents == path[-1]) & (guesses == chosen[path[-1]])
        if not bool(is_child.any()):
            return path
        path.append(int(is_child.nonzero()[0]))

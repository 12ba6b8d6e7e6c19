"""Trees of guesses: what their rows read, the path that is certain, and the next tree.

[trees] -> engine.programs.tree;  the Triton bodies are in `ops.kernels.trees`
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.ops.counters import GUMBEL, gumbel
from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Tensor

UNLIKELY = 6.0
"""Nats below the likeliest from which on a token is no guess, whatever its noise."""


class Level(NamedTuple):
    """The nodes of one depth of a tree of guesses."""

    above: Tensor
    """The nodes (P,) that have children here."""
    nodes: Tensor
    """Their children (P, K), the likeliest first; -1 where there are fewer."""


class Path(NamedTuple):
    """The nodes of each tree that are certain, from the root down."""

    starts: Tensor
    """(N,) where the rows of each text begin behind its slot."""
    nodes: Tensor
    """(N, m) the nodes; past the last it is repeated."""
    num: Tensor
    """(N,) how many there are."""
    ends: Tensor
    """(N,) the last of them."""


def read_trees(guesses: Tensor, words: Tensor, blank: Tensor, m: int) -> Tensor:
    """Return what the rows of trees (N, R) read: each word, then behind each a block of m."""
    if on_gpu(words):
        from ssdlm.ops.kernels import trees as kernels

        return kernels.read(guesses, words, blank, m)
    own = F.embedding(guesses, words)
    blanks = blank.expand(*own.shape[:2], m - 1, -1)
    return torch.cat((own, torch.cat((own.unsqueeze(2), blanks), 2).flatten(1, 2)), 1)


def put_children_(
    guesses: Tensor,
    level: Level,
    drafts: Tensor,
    pairs: Tensor,
    prior: Tensor,
    suppressed: Tensor,
    temperatures: Tensor,
    top_ps: Tensor,
    seeds: Tensor,
    done: Tensor,
    *,
    depth: int,
) -> None:
    """Put the best tokens by log p and noise at a level's nodes, below the guesses above it.

    Their logits are those of the drafts (N, V), whose last may be padding, plus the rows of `pairs`
    for the guesses above.
    """
    if on_gpu(drafts):
        from ssdlm.ops.kernels import trees as kernels

        kernels.put_children_(
            guesses, level.above, level.nodes, drafts, pairs, prior,
            suppressed, temperatures, top_ps, seeds, done, depth, GUMBEL, UNLIKELY,
        )  # fmt: skip
        return
    V, is_node = drafts.shape[-1], level.nodes >= 0
    for row, own in enumerate(guesses):
        values = (drafts[row] + pairs[own[level.above]]).float() + prior  # (P, V)
        if suppressed[row] >= 0:
            values[:, suppressed[row]] = -1e4
        values = values / temperatures[row]
        place, is_drawn = int(done[row]) + depth - 1, top_ps[row] > 0
        g = gumbel(seeds[row : row + 1], position=place, V=V)[0] * is_drawn
        is_likely = values >= values.amax(-1, keepdim=True) - UNLIKELY
        best = torch.where(is_likely, values + g, values - 1e6).topk(level.nodes.shape[1]).indices
        own[level.nodes[is_node]] = best[is_node]


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
    """Write what each tree made certain behind its text, and make its last token the next root."""
    if on_gpu(guesses):
        from ssdlm.ops.kernels import trees as kernels

        tables = {"limits": limits, "active": active, "steps": steps, "done": done}
        tables |= {"lengths": lengths, "text": text, "when": when}
        return Path(*kernels.advance_(chosen, guesses, parents, m, **tables))
    starts, nodes = lengths.clone(), torch.zeros(len(guesses), m, dtype=torch.int64)
    count, ends = torch.ones_like(done), torch.zeros_like(done)
    for row, (tokens, own) in enumerate(zip(chosen, guesses, strict=True)):
        path = certain_path(tokens, own, parents)
        num = len(path)
        nodes[row], count[row], ends[row] = path[-1], num, path[-1]
        nodes[row, :num] = torch.tensor(path)
        if active[row] and done[row] < limits[row]:
            steps[row] += 1
            place = slice(int(done[row]), int(done[row]) + num)
            text[row, place], when[row, place] = tokens[path], steps[row]
            lengths[row] += num
            done[row] += num
            own[0] = tokens[path[-1]]
    return Path(starts, nodes, count, ends)


def certain_path(chosen: Tensor, guesses: Tensor, parents: Tensor) -> list[int]:
    """Return the nodes (R,) from the root down whose guess is the token after their parent."""
    path = [0]
    while True:
        is_child = (parents == path[-1]) & (guesses == chosen[path[-1]])
        if not bool(is_child.any()):
            return path
        path.append(int(is_child.nonzero()[0]))


def keep_(keys_values: Tensor, path: Path) -> None:
    """Move the rows of paths together in all layers (L, 2, N, H, S, d), behind their slots."""
    if on_gpu(keys_values):
        from ssdlm.ops.kernels import trees as kernels

        kernels.keep_(keys_values, path.starts, path.nodes, path.num)
        return
    for row, (start, num) in enumerate(zip(path.starts, path.num, strict=True)):
        table = keys_values[:, :, row]
        table[:, :, :, start : start + num] = table[:, :, :, start + path.nodes[row, :num]].clone()

"""Words to check and blocks to draft in one pass: who stands where, and who sees whom.

    row 0, the last certain token, and below it a tree of guesses:   *verify rows*
    behind some of them a block of noise alone, as if text ended there:  *draft rows*

A verify row sees the context, its ancestors and itself, as the context stream does; a draft row
sees the same as the row that it stands behind, that row and, both ways, its own block.
[tree] -> speculative, denoiser.block
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ssdlm.shapes import Tensor


@dataclass(frozen=True)
class TreeRows:
    """R verify rows, then the draft rows; S of both."""

    root: int
    """The verify row of the last certain token; rows before it are certain too, and only read."""
    depth: Tensor
    """How far each verify row is from the first (R,)."""
    owner: Tensor
    """The verify row that each draft row stands behind (S - R,)."""
    offset: Tensor
    """Each draft row's place in its block (S - R,)."""
    seen: Tensor
    """Who sees whom among all rows (S, S)."""

    def mask(self, num_past: int) -> Tensor:
        """Return who sees whom (S, C + S) after a context, all of which everyone sees."""
        return F.pad(self.seen, (num_past, 0), value=True)


@dataclass(frozen=True)
class TreePass:
    """What a pass over verify and draft rows gives."""

    logits: Tensor
    """For the token after each verify row from the root on (N, R - root, V)."""
    drafts: Tensor
    """The network's output in the draft rows (N, S - R, D)."""
    keys_values: Tensor
    """Those of the verify rows (N, layers, 2, heads, R, d)."""


def tree_rows(
    parents: Sequence[int],
    owners: Sequence[int],
    *,
    m: int,
    root: int = 0,
    device: torch.device | str = "cpu",
) -> TreeRows:
    """Return the rows of a tree with blocks of m positions behind some of its nodes.

    `parents` has the number of each node's parent, which is lower than its own; the first's is -1.
    """
    R = len(parents)
    ancestors = torch.eye(R, dtype=torch.bool)  # and oneself
    depth = torch.zeros(R, dtype=torch.long)
    for node, parent in enumerate(parents[1:], 1):
        ancestors[node] |= ancestors[parent]
        depth[node] = depth[parent] + 1
    owner = torch.tensor(owners, dtype=torch.long).repeat_interleave(m)
    offset = torch.arange(m).repeat(len(owners))
    words = torch.cat((ancestors, ancestors[owner]))
    drafts = torch.cat((torch.zeros(R, len(owner), dtype=torch.bool), owner == owner[:, None]))
    parts = depth, owner, offset, torch.cat((words, drafts), 1)
    return TreeRows(root, *(part.to(device) for part in parts))

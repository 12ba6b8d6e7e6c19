"""Chains by trees of guesses: checked, walked, kept and grown again in one pass.

batch, diffusion.speculative -> [tree] -> engine.runners
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.diffusion.speculative import Tree as Shape
from ssdlm.diffusion.speculative import tree_of
from ssdlm.diffusion.tree import tree_rows
from ssdlm.engine.batch import DecodeBatch, Entry, Text
from ssdlm.ops.counters import GUMBEL
from ssdlm.ops.draws import draw_perturbed
from ssdlm.ops.rows import Rows
from ssdlm.ops.trees import Level, advance_, keep_, put_children_, read_trees
from ssdlm.shapes import Tensor

TOKENS_PER_LOOK = 2.5
"""Tokens that a pass of speculation is expected to make certain, between two looks."""


class Tree(DecodeBatch):
    """The chains of `Chain` in fewer passes: a tree of guesses each (`diffusion.speculative`).

    A pass checks a tree below the last certain token and drafts the next one behind every node.
    """

    is_dense = True

    def __init__(
        self, denoiser: BlockDenoiser, *, draft_nodes: int, pairs: Tensor, **sizes: Any
    ) -> None:
        super().__init__(denoiser, **sizes)
        tree = tree_of(draft_nodes)
        self.R, self.m = len(tree.parents), tree.m
        self.pairs = pairs
        """What the head says after each word alone, (V, V)."""
        self.words, self.blank = denoiser.words.to(denoiser.dtype), denoiser.blank()
        rows = tree_rows(tree.parents, range(self.R), m=self.m, device=self.device)
        places = torch.cat((rows.depth, rows.depth[rows.owner] + rows.offset))
        self.rows = Rows(places, rows.seen, is_sparse=True)
        self.depth = rows.depth
        self.above = rows.seen[: self.R, : self.R].float()
        """Which guesses stand before each node, and as it: all ancestors but the root."""
        self.above[:, 0] = 0
        self.parents = torch.tensor(tree.parents, device=self.device)
        self.levels = [self.level(tree, depth) for depth in range(1, self.m)]
        self.guesses, self.limits = self.whole(self.R), self.whole()
        self.text = self.whole(sizes["capacity"] + self.m)
        self.when = torch.zeros_like(self.text)

    def level(self, tree: Shape, depth: int) -> Level:
        """Return which nodes of a depth are whose children."""
        below = tree.levels[depth]
        above = sorted(set(tree.parents[below]))
        nodes = [[-1] * (max(tree.ranks[below]) + 1) for _ in above]
        for node in range(below.start, below.stop):
            nodes[above.index(tree.parents[node])][tree.ranks[node]] = node
        return Level(*(torch.tensor(part, device=self.device) for part in (above, nodes)))

    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> None:
        super().join(entries, slots, sources)
        at = torch.tensor(slots, device=self.device)
        self.guesses[at] = 0  # any guess will do, for it is checked
        self.guesses[at, 0] = self.last[at, 0]
        self.limits[at] = torch.tensor([one.length for one in entries], device=self.device)

    def passes_for(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / TOKENS_PER_LOOK)

    def draw(self) -> None:
        blank = self.blank[: self.words.shape[1]]
        self.hidden = self.read(read_trees(self.guesses, self.words, blank, self.m), 0)
        logits = self.slots.logits(self.hidden[:, : self.R], self.head)
        logits, prior = self.biased(logits, self.prior)
        places = (self.done.unsqueeze(1) + self.depth).contiguous()
        settings = *self.settings(), places, GUMBEL, self.cuts
        self.drawn = draw_perturbed(logits, prior, *settings)

    def tally(self) -> Tensor:
        guesses = self.guesses.unsqueeze(1).expand(-1, self.R, -1)
        counts = super().tally().repeat(1, self.R, 1)
        return counts.scatter_add(2, guesses, self.above.expand_as(guesses))

    def commit(self) -> None:
        path = advance_(
            self.drawn, self.guesses, self.parents, self.m, limits=self.limits, active=self.active,
            steps=self.passes, done=self.done, lengths=self.lengths, text=self.text, when=self.when,
        )  # fmt: skip
        keep_(self.slots.keys_values, path)
        blocks = self.hidden[:, self.R :].unflatten(1, (self.R, self.m))
        self.guess(blocks[self.at, path.ends])

    def guess(self, drafts: Tensor) -> None:
        """Grow the next tree below the last certain token, out of its draft block (N, m, D)."""
        said = drafts @ self.head.T
        if self.biases is not None:
            said = said + self.biases.lean(self.here, super().tally())
        settings = self.prior, *self.settings(), self.done
        for depth, level in enumerate(self.levels, 1):
            put_children_(self.guesses, level, said[:, depth], self.pairs, *settings, depth=depth)

    def texts(self) -> dict[int, Text]:
        ends = torch.minimum(self.done, self.limits).unsqueeze(1)
        rows, half = torch.cat((ends, self.text, self.when), 1).tolist(), self.text.shape[1]
        found = {}
        for slot in self.entries:
            count, *both = rows[slot]
            found[slot] = Text(both[:count], both[half : half + count])
        return found

"""Chains by trees of guesses, side by side: checked, walked, kept and grown again in one pass.

lanes, diffusion.speculative -> [tree_lane] -> fleet
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.tree import tree_rows
from ssdlm.diffusion.speculative import Tree, tree_of
from ssdlm.engine.lanes import Row, Text, TokenLane
from ssdlm.ops.counters import GUMBEL
from ssdlm.ops.draws import draw_perturbed
from ssdlm.ops.rows import Behind, Rows
from ssdlm.ops.trees import Level, advance_, keep_, put_children_, read_trees
from ssdlm.shapes import Tensor

TOKENS_PER_LOOK = 2.5
"""Tokens that a pass of speculation is expected to make certain, between two looks."""


class SpeculativeLane(TokenLane):
    """The chains of `ChainLane` in fewer passes: a tree of guesses each (`diffusion.speculative`).

    A pass checks a tree below the last certain token and drafts the next one behind every node.
    """

    def __init__(
        self,
        denoiser: BlockDenoiser,
        *,
        draft_nodes: int,
        pairs: Tensor,
        num_slots: int,
        capacity: int,
        is_invariant: bool = False,
    ) -> None:
        super().__init__(
            denoiser, num_slots=num_slots, capacity=capacity, is_invariant=is_invariant
        )
        tree = tree_of(draft_nodes)
        self.R, self.m = len(tree.parents), tree.m
        self.pairs = pairs
        """What the head says after each word alone, (V, V)."""
        self.words, self.blank = denoiser.words.to(denoiser.dtype), denoiser.blank()
        rows = tree_rows(tree.parents, range(self.R), m=self.m, device=self.device)
        places = torch.cat((rows.depth, rows.depth[rows.owner] + rows.offset))
        self.rows = Rows(places, rows.seen, is_sparse=True)
        self.depth = rows.depth
        self.parents = torch.tensor(tree.parents, device=self.device)
        self.levels = [self.level(tree, depth) for depth in range(1, self.m)]
        whole = {"device": self.device, "dtype": torch.int64}
        self.guesses = torch.zeros(num_slots, self.R, **whole)
        self.limits = torch.zeros(num_slots, **whole)
        self.steps = torch.zeros(num_slots, **whole)
        self.text = torch.zeros(num_slots, capacity + self.m, **whole)
        self.when = torch.zeros_like(self.text)

    def level(self, tree: Tree, depth: int) -> Level:
        """Return which nodes of a depth are whose children."""
        below = tree.levels[depth]
        above = sorted(set(tree.parents[below]))
        nodes = [[-1] * (max(tree.ranks[below]) + 1) for _ in above]
        for node in range(below.start, below.stop):
            nodes[above.index(tree.parents[node])][tree.ranks[node]] = node
        return Level(*(torch.tensor(part, device=self.device) for part in (above, nodes)))

    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        super().join(rows, slots)
        at = torch.tensor(slots, device=self.device)
        self.guesses[at] = 0  # any guess will do, for it is checked
        self.guesses[at, 0] = self.last[at, 0]
        self.limits[at] = torch.tensor([row.length for row in rows], device=self.device)
        self.steps[at] = 0

    def passes_for(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / TOKENS_PER_LOOK)

    def step(self) -> None:
        behind = Behind(self.rows, self.slots.all_slots, self.slots.lengths)
        blank = self.blank[: self.words.shape[1]]
        hidden = self.slots.run(read_trees(self.guesses, self.words, blank, self.m), behind)
        chosen = self.choose(hidden[:, : self.R])
        path = advance_(
            chosen, self.guesses, self.parents, self.m, limits=self.limits, active=self.active,
            steps=self.steps, done=self.done, lengths=self.slots.lengths, text=self.text,
            when=self.when,
        )  # fmt: skip
        keep_(self.slots.keys_values, path)
        blocks = hidden[:, self.R :].unflatten(1, (self.R, self.m))
        self.guess(blocks[self.slots.all_slots, path.ends])

    def choose(self, hidden: Tensor) -> Tensor:
        """Return the token after each node (N, R), were its word certain."""
        logits = self.slots.logits(hidden, self.head)
        places = (self.done.unsqueeze(1) + self.depth).contiguous()
        settings = self.never, self.heats, self.top_ps, self.seeds, places
        return draw_perturbed(logits, self.prior, *settings, GUMBEL)

    def guess(self, drafts: Tensor) -> None:
        """Grow the next tree below the last certain token, out of its draft block (N, m, D)."""
        said = drafts @ self.head.T
        settings = self.prior, self.never, self.heats, self.top_ps, self.seeds, self.done
        for depth, level in enumerate(self.levels, 1):
            put_children_(self.guesses, level, said[:, depth], self.pairs, *settings, depth=depth)

    def read(self) -> list[Text]:
        ends = torch.minimum(self.done, self.limits).unsqueeze(1)
        rows, half = torch.cat((ends, self.text, self.when), 1).tolist(), self.text.shape[1]
        return [Text(row[1 : 1 + row[0]], row[1 + half : 1 + half + row[0]]) for row in rows]

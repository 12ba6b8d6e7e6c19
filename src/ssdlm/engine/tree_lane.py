"""Chains by trees of guesses, side by side: checked, walked, kept and grown again in one pass.

lanes, diffusion.speculative -> [tree_lane] -> fleet
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.kernels import draw_kernels, row_kernels, tree_kernels
from ssdlm.denoiser.slots import Behind, Rows
from ssdlm.denoiser.tree import tree_rows
from ssdlm.diffusion.noise import GUMBEL, RowNoise
from ssdlm.diffusion.speculative import Tree, tree_of
from ssdlm.engine.lanes import Row, Text, TokenLane
from ssdlm.shapes import Tensor

TOKENS_PER_LOOK = 2.5
"""Tokens that a pass of speculation is expected to make certain, between two looks."""
UNLIKELY = 6.0
"""Nats below the likeliest from which on a token is no guess, whatever its noise."""


class Level(NamedTuple):
    """The nodes of one depth of a tree of guesses."""

    above: Tensor
    """The nodes (P,) that have children here."""
    nodes: Tensor
    """Their children (P, K), the likeliest first; -1 where there are fewer."""


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
        tiles = row_kernels().seen_tiles(rows.seen) if self.slots.is_fast else None
        self.rows = Rows(places, rows.seen, tiles)
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
        hidden = self.slots.run(self.inputs(), behind)
        logits = self.slots.logits(hidden[:, : self.R], self.head)
        chosen = self.choose(logits, self.done.unsqueeze(1) + self.depth)
        ends = self.advance(chosen)
        blocks = hidden[:, self.R :].unflatten(1, (self.R, self.m))
        self.guess(blocks[self.slots.all_slots, ends])

    def inputs(self) -> Tensor:
        """Return what the rows read: guessed words, and behind each a block of noise alone."""
        D = self.words.shape[1]
        if self.slots.is_fast:
            return tree_kernels().read(self.guesses, self.words, self.blank[:D], self.m)
        words = F.embedding(self.guesses, self.words)
        blank = self.blank[:D].expand(*words.shape[:2], self.m - 1, D)
        drafts = torch.cat((words.unsqueeze(2), blank), 2).flatten(1, 2)
        return torch.cat((words, drafts), 1)

    def guess(self, drafts: Tensor) -> None:
        """Grow the next tree below the last certain token, out of its draft block (N, m, D)."""
        said = drafts @ self.head
        settings = self.prior, self.never, self.heats, self.top_ps, self.seeds, self.done
        for depth, level in enumerate(self.levels, 1):
            if self.slots.is_fast:
                known = *level, said[:, depth], self.pairs
                tree_kernels().put_children_(
                    self.guesses, *known, *settings, depth, GUMBEL, UNLIKELY
                )
            else:
                pairs = self.pairs[self.guesses[:, level.above]]
                self.plain_children(
                    level, depth, (said[:, depth, None] + pairs).float() + self.prior
                )

    def plain_children(self, level: Level, depth: int, share: Tensor) -> None:
        """Put the best tokens by what is known of them (N, P, V), and noise, at a level's nodes."""
        noise, V = RowNoise(self.seeds), share.shape[-1]
        g = [
            noise.gumbel(position=p, V=V)[r] for r, p in enumerate((self.done + depth - 1).tolist())
        ]
        scores = share + torch.stack(g) * (self.top_ps > 0).view(-1, 1, 1)
        is_likely = share >= share.amax(-1, keepdim=True) - UNLIKELY
        best = scores.where(is_likely, share - 1e6).topk(level.nodes.shape[1]).indices
        is_node = level.nodes >= 0
        self.guesses[:, level.nodes[is_node]] = best[:, is_node]

    def choose(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return the token after each node (N, R), were its word certain."""
        settings = self.never, self.heats, self.top_ps, self.seeds, places.contiguous()
        if self.slots.is_fast:
            return draw_kernels().draw_perturbed(logits, self.prior, *settings, GUMBEL)
        return torch.cat([self.plain_choose(logits, places, row) for row in range(self.num_slots)])

    def plain_choose(self, logits: Tensor, places: Tensor, row: int) -> Tensor:
        """Return the token after each of one text's nodes, as the plain chain chooses it."""
        choice, noise = self.choice_of(row), RowNoise(self.seeds[row : row + 1])
        chosen = []
        for own, place in zip(logits[row].split(1), places[row].tolist(), strict=True):
            g = choice.draw(noise, position=place, V=self.denoiser.V)
            chosen.append(choice(own.float() + self.prior, None if g is None else g[0]))
        return torch.stack(chosen, 1)

    def advance(self, chosen: Tensor) -> Tensor:
        """Write what each tree made certain; return the last node of its path (N,)."""
        slots = self.slots
        if slots.is_fast:
            starts, *path, ends = tree_kernels().advance_(
                chosen, self.guesses, self.parents, self.m, limits=self.limits, active=self.active,
                steps=self.steps, done=self.done, lengths=slots.lengths, text=self.text,
                when=self.when,
            )  # fmt: skip
            tree_kernels().keep_(slots.keys_values, starts, *path)
            return ends
        ends = torch.zeros_like(self.done)
        for row in range(self.num_slots):
            path = self.path(chosen[row], self.guesses[row])
            ends[row] = path[-1]
            if self.active[row] and self.done[row] < self.limits[row]:
                self.plain_advance(row, path, chosen[row, path])
        return ends

    def path(self, chosen: Tensor, guesses: Tensor) -> list[int]:
        """Return the nodes (R,) from the root down that are certain."""
        path = [0]
        while True:
            is_child = (self.parents == path[-1]) & (guesses == chosen[path[-1]])
            if not bool(is_child.any()):
                return path
            path.append(int(is_child.nonzero()[0]))

    def plain_advance(self, row: int, path: list[int], tokens: Tensor) -> None:
        """Write the tokens of a path behind one text, and keep their keys and values together."""
        table, length, num = self.slots.keys_values, int(self.slots.lengths[row]), len(path)
        kept = table[:, :, row, :, [length + node for node in path]]
        table[:, :, row, :, length : length + num] = kept
        place = slice(int(self.done[row]), int(self.done[row]) + num)
        self.steps[row] += 1
        self.text[row, place], self.when[row, place] = tokens, self.steps[row]
        self.slots.lengths[row] += num
        self.done[row] += num
        self.guesses[row, 0] = tokens[-1]

    def read(self) -> list[Text]:
        ends = torch.minimum(self.done, self.limits).unsqueeze(1)
        rows, half = torch.cat((ends, self.text, self.when), 1).tolist(), self.text.shape[1]
        return [Text(row[1 : 1 + row[0]], row[1 + half : 1 + half + row[0]]) for row in rows]

"""Chains by trees of guesses, side by side: checked, walked, kept and grown again in one pass.

lanes, diffusion.speculative -> [tree_lane] -> fleet
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.kernels import draw_kernels, tree_kernels
from ssdlm.denoiser.slots import Behind, Rows
from ssdlm.denoiser.tree import tree_rows
from ssdlm.diffusion.noise import GUMBEL, RowNoise
from ssdlm.diffusion.speculative import Tree, tree_of
from ssdlm.engine.lanes import Row, Text, TokenLane
from ssdlm.shapes import Tensor

TOKENS_PER_LOOK = 3
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
        alone: Tensor,
        num_slots: int,
        capacity: int,
    ) -> None:
        super().__init__(denoiser, num_slots=num_slots, capacity=capacity)
        tree = tree_of(draft_nodes)
        self.R, self.m, self.alone = len(tree.parents), tree.m, alone
        self.words, self.blank = denoiser.words.to(denoiser.dtype), denoiser.blank()
        rows = tree_rows(tree.parents, range(self.R), m=self.m, device=self.device)
        self.rows = Rows(torch.cat((rows.depth, rows.depth[rows.owner] + rows.offset)), rows.seen)
        self.depth = rows.depth
        self.parents = torch.tensor(tree.parents, device=self.device)
        self.levels = [self.level(tree, depth) for depth in range(1, self.m)]
        whole = {"device": self.device, "dtype": torch.int64}
        self.guesses = torch.zeros(num_slots, self.R, **whole)
        self.limits = torch.zeros(num_slots, **whole)
        self.steps = torch.zeros(num_slots, **whole)
        self.text = torch.zeros(num_slots, capacity + self.m, **whole)
        self.when = torch.zeros_like(self.text)
        self.offsets = torch.arange(self.m, device=self.device)

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
        return -(-num_tokens // TOKENS_PER_LOOK)

    def step(self) -> None:
        moving = self.active * (self.done < self.limits)
        behind = Behind(self.rows, self.slots.all_slots, self.slots.lengths)
        hidden = self.slots.run(self.inputs(), behind)
        chosen = self.choose(hidden[:, : self.R] @ self.head, self.done.unsqueeze(1) + self.depth)
        path, count = self.walk(chosen)
        self.keep(path, count)
        new, last = chosen.gather(1, path), (count - 1).unsqueeze(1)
        self.steps.add_(moving)
        places = self.done.unsqueeze(1) + self.offsets
        self.text.scatter_(1, places, new)
        self.when.scatter_(1, places, self.steps.unsqueeze(1).expand_as(places))
        node = path.gather(1, last)
        blocks = hidden[:, self.R :].unflatten(1, (self.R, self.m))
        at = node.view(-1, 1, 1, 1).expand(-1, 1, *blocks.shape[2:])
        self.slots.lengths.add_(moving * count)
        self.done.add_(moving * count)
        root = torch.where(moving.bool().unsqueeze(1), new.gather(1, last), self.guesses[:, :1])
        self.guesses[:, :1] = root
        self.guess(blocks.gather(1, at)[:, 0])

    def inputs(self) -> Tensor:
        """Return what the rows read: guessed words, and behind each a block of noise alone."""
        words = F.embedding(self.guesses, self.words)
        D = words.shape[-1]
        blank = self.blank[:D].expand(*words.shape[:2], self.m - 1, D)
        drafts = torch.cat((words.unsqueeze(2), blank), 2).flatten(1, 2)
        return torch.cat((words, drafts), 1)

    def guess(self, drafts: Tensor) -> None:
        """Grow the next tree below the last certain token, out of its draft block (N, m, D)."""
        settings = self.never, self.heats, self.top_ps, self.seeds, self.done
        for depth, level in enumerate(self.levels, 1):
            if self.slots.is_fast:
                known = tree_kernels().below(
                    self.guesses, level.above, self.alone, drafts[:, depth]
                )
                tree_kernels().put_children_(
                    self.guesses, level.nodes, known @ self.head, self.prior, *settings,
                    depth, GUMBEL, UNLIKELY,
                )  # fmt: skip
            else:
                known = drafts[:, depth : depth + 1] + self.alone[self.guesses[:, level.above]]
                self.plain_children(level, depth, (known @ self.head).float() + self.prior)

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

    def walk(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the path (N, m) of nodes that are certain in each text, and its length (N,)."""
        if self.slots.is_fast:
            return tree_kernels().walk(chosen, self.guesses, self.parents, self.m)
        paths = []
        for row in range(self.num_slots):
            path, node = [0], 0
            while True:
                is_child = (self.parents == node) & (self.guesses[row] == chosen[row, node])
                if not bool(is_child.any()):
                    break
                node = int(is_child.nonzero()[0])
                path.append(node)
            paths.append(path)
        padded = [path + path[-1:] * (self.m - len(path)) for path in paths]
        return torch.tensor(padded), torch.tensor([len(path) for path in paths])

    def keep(self, path: Tensor, count: Tensor) -> None:
        """Move the keys and values of each path together, behind what its slot holds."""
        table, lengths = self.slots.keys_values, self.slots.lengths
        if self.slots.is_fast:
            tree_kernels().keep_(table, lengths, path, count)
            return
        for row, length in enumerate(lengths.tolist()):
            num = int(count[row])
            kept = table[:, :, row, :, length + path[row, :num]].clone()
            table[:, :, row, :, length : length + num] = kept

    def read(self) -> list[Text]:
        ends = torch.minimum(self.done, self.limits).unsqueeze(1)
        rows, half = torch.cat((ends, self.text, self.when), 1).tolist(), self.text.shape[1]
        return [Text(row[1 : 1 + row[0]], row[1 + half : 1 + half + row[0]]) for row in rows]

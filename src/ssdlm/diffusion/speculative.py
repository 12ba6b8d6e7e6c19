"""The chain of `autoregressive` in fewer passes: the diffusion guesses, the context stream checks.

A text under fixed noise is one chain of tokens, x_i = argmax(log p(. | x_<i) + g_i). A pass checks
a tree of guesses below the last certain token, and drafts the next tree:

    verify rows -> log p after each word -> walk down from the root while guesses are right
    draft rows behind the row where the walk ends -> log q of the next positions -> next tree

Every token is what the chain's definition says it is, whatever was guessed; a wrong guess costs
only that the walk ends there. So the text does not depend on the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

import torch

from ssdlm.diffusion.autoregressive import Choice, Place, decided, legal_of
from ssdlm.diffusion.denoiser import RowDenoiser
from ssdlm.diffusion.noise import GumbelNoise
from ssdlm.diffusion.sampler import Step
from ssdlm.diffusion.tree import tree_rows
from ssdlm.shapes import Context, Tensor

RANKS = (
    (0.498, 0.158, 0.078, 0.048, 0.030, 0.021, 0.017, 0.014, 0.010, 0.008, 0.008, 0.006),
    (0.390, 0.153, 0.086, 0.055, 0.042, 0.028, 0.025, 0.018, 0.014, 0.012, 0.012, 0.010),
    (0.348, 0.151, 0.089, 0.058, 0.039, 0.032, 0.025, 0.020, 0.015, 0.012, 0.013, 0.010),
    (0.328, 0.150, 0.088, 0.055, 0.045, 0.032, 0.025, 0.020, 0.021, 0.011, 0.011, 0.012),
    (0.324, 0.140, 0.087, 0.063, 0.043, 0.030, 0.021, 0.021, 0.019, 0.013, 0.012, 0.014),
    (0.313, 0.144, 0.087, 0.063, 0.041, 0.030, 0.026, 0.022, 0.018, 0.014, 0.012, 0.012),
)
"""How often the guess of each rank is right, by depth, where all above it are: of the built-in
model after 160 held-out reviews, with top_p 0.9. The larger part of the table that
`python benchmarks/speculation.py reviews.jsonl --num 160 --depth 7 --ranks` prints."""
ALONE_AT_A_TIME = 1024


@dataclass(frozen=True)
class Tree:
    """The shape of a tree of guesses: nodes by depth, the root first."""

    parents: tuple[int, ...]
    """The number of each node's parent; the root's is -1."""
    ranks: tuple[int, ...]
    """Which of its parent's children a node is, the likeliest being 0."""
    levels: tuple[slice, ...]
    """The nodes of each depth."""

    @property
    def m(self) -> int:
        """Positions of a draft block: the next token's, and one for each level below it."""
        return len(self.levels)


@lru_cache(maxsize=64)
def tree_of(num_nodes: int) -> Tree:
    """Return the tree of so many guesses that is expected to have most of them right."""
    # A node is right as often as its parent is, times its rank's share: the likeliest are taken.
    paths: list[tuple[int, ...]] = []
    queue: list[tuple[float, tuple[int, ...]]] = [(-RANKS[0][0], (0,))]
    while len(paths) < num_nodes and queue:
        share, path = heappop(queue)
        paths.append(path)
        depth, rank = len(path) - 1, path[-1]
        if rank + 1 < len(RANKS[depth]):
            beside = share / RANKS[depth][rank] * RANKS[depth][rank + 1]
            heappush(queue, (beside, (*path[:-1], rank + 1)))
        if depth + 1 < len(RANKS):
            heappush(queue, (share * RANKS[depth + 1][0], (*path, 0)))
    paths = sorted([(), *paths], key=lambda path: (len(path), path))
    number = {path: index for index, path in enumerate(paths)}
    depths = [len(path) for path in paths]
    levels = [
        slice(depths.index(depth), len(depths) - depths[::-1].index(depth))
        for depth in range(max(depths) + 1)
    ]
    return Tree(
        parents=(-1, *(number[path[:-1]] for path in paths[1:])),
        ranks=(0, *(path[-1] for path in paths[1:])),
        levels=tuple(levels),
    )


class WordsAlone:
    """The context stream's output after each word alone (V, D), computed as words are asked for.

    Times the head it is log p(next word | this word), a bigram table of rank D.
    """

    def __init__(self, denoiser: RowDenoiser) -> None:
        self.denoiser = denoiser
        self.table = torch.zeros(0)
        self.is_whole = False
        self.is_known = torch.zeros(denoiser.V, dtype=torch.bool, device=denoiser.device)

    def __getitem__(self, tokens: Tensor) -> Tensor:
        """Return the rows of some words (n, D)."""
        if not self.is_whole:
            self.fill(tokens[~self.is_known[tokens]].unique())
        return self.table[tokens]

    @torch.no_grad()
    def fill(self, tokens: Tensor) -> None:
        """Compute the rows of some words."""
        for some in tokens.split(ALONE_AT_A_TIME) if len(tokens) else ():
            rows = self.denoiser.after_alone(some)
            if not len(self.table):
                self.table = rows.new_zeros(self.denoiser.V, rows.shape[-1])
            self.table[some] = rows
        self.is_known[tokens] = True

    def fill_all(self) -> None:
        """Compute all rows; then nobody has to look which are missing."""
        self.fill((~self.is_known).nonzero()[:, 0])
        self.is_whole = True


@dataclass
class Speculation:
    """One row's text on its way: what is certain, and the guesses that the next pass checks."""

    denoiser: RowDenoiser
    choice: Choice
    noise: GumbelNoise
    tree: Tree
    alone: WordsAlone
    length: int
    """Tokens to write."""
    place: Place | None = None
    """Where the text has come to under its rules, if it has any."""
    cache: Any = None
    position: int = 0
    """Tokens of the text that were certain before the latest pass."""
    written: list[int] = field(default_factory=list)
    """Those that are certain now."""
    g: Tensor | None = None
    """The noise of the positions from there on (m, V)."""
    guesses: list[int] = field(default_factory=list)
    """The last certain token, not read yet, and those of the tree below it."""

    @torch.no_grad()
    def write(self, context: Context) -> Iterator[list[int]]:
        """Yield the tokens that each pass makes certain, after a context (1, C), C > 0."""
        device, C, m = self.denoiser.device, context.shape[1], self.tree.m
        prompt = tree_rows(range(-1, C - 1), [C - 1], m=m, root=C - 1, device=device)
        every = range(len(self.tree.parents))
        below = tree_rows(self.tree.parents, every, m=m, device=device)
        self.cache = self.denoiser.prefill(context[:, :0])
        self.g = self.draw()
        tokens, rows = context, prompt
        while self.position < self.length:
            done = self.denoiser.check_and_draft(self.cache, tokens, rows)
            path, new = self.walk(done.logits[0])
            # Rows before the root are certain; below it, those where guesses were right.
            kept = torch.tensor([*range(rows.root), *(rows.root + n for n in path)], device=device)
            self.cache = self.denoiser.accept(
                self.cache, tokens[:, kept], done.keys_values.index_select(4, kept)
            )
            self.position += len(new)
            yield new
            blocks = done.drafts[0].unflatten(0, (-1, m))
            self.g = self.draw()
            self.guesses = self.guess(new[-1], blocks[path[-1]])
            tokens, rows = torch.tensor([self.guesses], device=device), below

    def draw(self) -> Tensor | None:
        """Return the noise (m, V) of the next positions, None where none is added."""
        V, m = self.denoiser.V, self.tree.m
        g = self.choice.draw(self.noise, position=self.position, V=V, count=m)
        return None if g is None else g[0]

    def walk(self, logits: Tensor) -> tuple[list[int], list[int]]:
        """Return the nodes whose words are certain, the root first, and the tokens after each."""
        node: int | None = 0
        path, new = [], []
        while node is not None:
            path.append(node)
            new.append(self.next_token(logits[node : node + 1], len(new)))
            is_over = self.position + len(new) == self.length
            node = None if is_over else self.child(node, new[-1])
        return path, new

    def next_token(self, logits: Tensor, depth: int) -> int:
        """Return the token that follows a node whose word is certain."""
        g = None if self.g is None else self.g[depth : depth + 1]
        legal = legal_of([self.place] if self.place else [], logits.device)
        token = int(self.choice(logits, g, legal, self.text))
        self.written.append(token)
        self.place = self.place.after(token) if self.place else None
        return token

    @property
    def text(self) -> Context:
        """What is certain (1, n)."""
        return torch.tensor([self.written], dtype=torch.long, device=self.denoiser.device)

    def child(self, node: int, token: int) -> int | None:
        """Return the node below another that guessed a token, if one did."""
        below = (n for n, parent in enumerate(self.tree.parents) if parent == node)
        return next((n for n in below if n < len(self.guesses) and self.guesses[n] == token), None)

    def guess(self, token: int, drafts: Tensor) -> list[int]:
        """Return a tree's tokens below the last certain one, from the draft block (m, D) there."""
        tokens, parents = [token], self.tree.parents
        for depth, level in enumerate(self.tree.levels[1:], 1):
            above = sorted(set(parents[level]))
            words = torch.tensor([tokens[node] for node in above], device=drafts.device)
            logits = self.denoiser.guess_logits(drafts[depth], self.alone[words])
            g = None if self.g is None else self.g[depth - 1 : depth]
            scores = loosened(self.choice).perturbed(logits, g, written=self.text)
            ranks = self.tree.ranks[level]
            best = scores.topk(min(max(ranks) + 1, self.denoiser.V)).indices.tolist()
            guessed = {node: row for node, row in zip(above, best, strict=True)}
            pairs = zip(parents[level], ranks, strict=True)
            tokens += [guessed[parent][rank % len(best[0])] for parent, rank in pairs]
        return tokens


def loosened(choice: Choice) -> Choice:
    """Return how guesses are chosen: from a larger nucleus, for they are less sure than log p."""
    return replace(choice, top_p=(1 + choice.top_p) / 2)


def generate_speculative(
    speculation: Speculation,
    context: Context,
    *,
    blocks: Sequence[int],
    end_of_text: int | None = None,
) -> Iterator[Step]:
    """Write one row's text; yield a Step per pass, in blocks, the unit in which it is reported.

    What a pass makes certain beyond a block's end is told with the next one. With `end_of_text`,
    stops there.
    """
    V, block, held, is_over = speculation.denoiser.V, 0, [], False
    for new in speculation.write(context):
        if end_of_text is not None and end_of_text in new:
            new, is_over = new[: new.index(end_of_text) + 1], True
        held += new
        num_passes = 1
        while num_passes or is_over or len(held) >= blocks[block]:
            here, rest = held[: blocks[block]], held[blocks[block] :]
            left = blocks[block] - len(here)
            is_last = left == 0 or is_over
            tokens = torch.tensor([here], device=context.device)
            yield decided(block, left, tokens, V=V, is_last=is_last, num_passes=num_passes)
            num_passes = 0
            if is_last:
                block, held = block + 1, rest
                if block == len(blocks) or (is_over and not held):
                    return

"""The steps of a text that a program writes, for those who watch it: tokens, and how sure they are.

    frames of a decode batch -> [views] -> worker -> drafts

A view knows the path of noise levels, as the loops of `diffusion` do, and makes of each pass the
step that such a loop would show. Who wants logits and states too has a chooser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch

from ssdlm.diffusion.autoregressive import decided
from ssdlm.diffusion.grid import Grid, Move, Sliding
from ssdlm.diffusion.sampler import Step
from ssdlm.diffusion.sliding import shown
from ssdlm.shapes import Tensor

NOTHING = torch.zeros(1, 0, 0)


class Frame(NamedTuple):
    """What a pass drew for one text."""

    tokens: list[int]
    trust: list[float]
    """The probability of each."""


class View(ABC):
    """Makes steps of what passes drew for one text."""

    num_left: int
    """Passes that the text still takes, those on their way not counted."""

    @abstractmethod
    def take(self, frame: Frame) -> Step:
        """Return the step of the next pass."""


class TokenView(View):
    """A text token by token: each is decided when it is drawn."""

    def __init__(self, blocks: Sequence[int], V: int, end_of_text: int | None) -> None:
        self.ends, self.V, self.end_of_text = list(accumulate(blocks)), V, end_of_text
        self.tokens: list[int] = []
        self.num_left = sum(blocks)

    def take(self, frame: Frame) -> Step:
        self.tokens += frame.tokens
        block = bisect_left(self.ends, len(self.tokens))
        here = self.tokens[self.ends[block - 1] if block else 0 :]
        left = self.ends[block] - len(self.tokens)
        is_last = left == 0 or self.end_of_text in here
        return decided(block, left, torch.tensor([here]), V=self.V, is_last=is_last)


class SlidingView(View):
    """A window that slides through the text."""

    def __init__(
        self, path: Sliding, blocks: Sequence[int], whole: Sequence[int], end: int | None
    ) -> None:
        self.blocks, self.end_of_text = blocks, end
        scenes = scenes_of(path, tuple(blocks), tuple(whole))
        self.text: list[int] = []
        """All that is decided or open."""
        self.scenes, self.num_left = iter(scenes), len(scenes)

    def take(self, frame: Frame) -> Step:
        move, scene = next(self.scenes)
        first, num_decided = move.window.start, move.window.start + move.num_decided
        self.text[first:] = frame.tokens
        has_ended = self.end_of_text in self.text[first:num_decided]
        here, window, level = shown(move, self.blocks, has_ended=True) if has_ended else scene
        trust = frame.trust[: window.stop - window.start]
        is_last, tokens = move.left == 0 or has_ended, torch.tensor([self.text[here]])
        own = move.block, move.left, window, NOTHING, NOTHING, NOTHING, tokens, is_last, level
        return Step(*own, confidence=trust)


@lru_cache(maxsize=64)
def scenes_of(
    path: Sliding, blocks: tuple[int, ...], whole: tuple[int, ...]
) -> list[tuple[Move, tuple[slice, slice, Tensor]]]:
    """Return the passes through a text, and what each shows if the text does not end there."""
    moves = path.moves(blocks, whole)
    return [(move, shown(move, blocks, has_ended=False)) for move in moves]


class BlockView(View):
    """Blocks on any grid; `noise` has the tokens that each looks like at first.

    A step is about the positions that it moves, or with `is_whole` about all of them.
    """

    def __init__(
        self,
        grid: Grid,
        noise: Iterator[Tensor],
        num: int,
        end: int | None,
        *,
        passes_before: int,
        is_whole: bool,
    ) -> None:
        self.grid, self.noise, self.end_of_text, self.is_whole = grid, noise, end, is_whole
        self.num_left = grid.T * num
        self.block, self.t, self.passes_before = -1, 0, passes_before

    def take(self, frame: Frame) -> Step:
        grid, passes = self.grid, 1
        if self.t == 0:  # the next block begins
            self.block, self.t, passes = self.block + 1, grid.T, 1 + self.passes_before
            self.tokens = next(self.noise)
            self.windows = grid.windows(self.tokens.shape[1])
        B = self.tokens.shape[1]
        window = slice(0, B) if self.is_whole else self.windows[self.t]
        is_open = grid.progress[self.t].expand(B)[window] > 0
        new = torch.tensor([frame.tokens[window]])
        self.tokens = self.tokens.clone()
        self.tokens[:, window] = torch.where(is_open, new, self.tokens[:, window])
        self.t -= 1
        level = grid.progress[self.t].expand(B)
        is_last = self.t == 0 or self.end_of_text in self.tokens[0, level == 0].tolist()
        own = self.block, self.t, window, NOTHING, NOTHING, NOTHING, self.tokens, is_last, level
        # What was decided before is certain.
        both = zip(frame.trust[window], is_open.tolist(), strict=True)
        trust = [said if is_new else 1.0 for said, is_new in both]
        return Step(*own, num_passes=passes, confidence=trust)

"""Blocks side by side, each text at its own step of its own block (Algorithm 2).

lanes -> [block_lane] -> encoder_lane, window_lane -> fleet;  the plain twin is diffusion.sampler
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssdlm.denoiser import DenoiserModule
from ssdlm.engine.lanes import Lane, Row, Text
from ssdlm.shapes import Tensor

MOST_PASSES = 32
"""After so many, somebody sees who comes and who leaves: blocks may take thousands."""


@dataclass
class Progress:
    """How far a text has come."""

    row: Row
    tokens: list[int]
    passes: int = 0
    """Passes of its block so far."""

    @property
    def length(self) -> int:
        """How long it is with its context."""
        return len(self.row.context) + len(self.tokens)

    def size(self, B: int) -> int:
        """Return how long its block is; the last one may be short."""
        return min(B, self.row.length - len(self.tokens))


class BlockLane(Lane):
    """Texts out of blocks of T passes each, by the paper's own step.

    A position's state is its latest token and fresh noise, so tokens are all that is kept.
    """

    reads_context = False

    def __init__(self, denoiser: DenoiserModule, *, T: int, B: int, num_slots: int) -> None:
        self.device, self.num_slots, self.T, self.B = denoiser.device, num_slots, T, B
        self.passes_per_block = T + denoiser.num_context_passes
        whole = {"device": self.device, "dtype": torch.int64}
        self.seeds, self.blocks, self.passes, self.active, self.sizes = (
            torch.zeros(num_slots, **whole) for _ in range(5)
        )
        self.never = torch.full((num_slots,), -1, **whole)
        self.top_ps = torch.ones(num_slots, device=self.device)
        self.heats = torch.ones(num_slots, device=self.device)
        self.tokens = torch.zeros(num_slots, B, **whole)
        self.texts: dict[int, Progress] = {}

    @torch.no_grad()
    def join(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        for row, slot in zip(rows, slots, strict=True):
            self.texts[slot] = Progress(row, [])
        at = self.at(slots)
        whole = torch.tensor([(row.seed, row.never) for row in rows], device=self.device)
        real = torch.tensor([(row.top_p, row.temperature) for row in rows], device=self.device)
        self.seeds[at], self.never[at] = whole[:, 0], whole[:, 1]
        self.top_ps[at], self.heats[at] = real[:, 0], real[:, 1]
        self.blocks[at], self.active[at] = 0, 1
        self.read_contexts(rows, slots)
        self.start_blocks(slots)

    def at(self, slots: Sequence[int]) -> Tensor:
        """Return slots as an index."""
        return torch.tensor(slots, device=self.device)

    @abstractmethod
    def read_contexts(self, rows: Sequence[Row], slots: Sequence[int]) -> None:
        """Take in what texts begin with."""

    @abstractmethod
    def read_blocks(self, slots: Sequence[int]) -> None:
        """Put decided blocks behind their contexts."""

    @abstractmethod
    def repeat(self) -> None:
        """Do one pass."""

    def start_blocks(self, slots: Sequence[int]) -> None:
        """Let the next block of texts begin, as noise."""
        at, sizes = self.at(slots), [self.texts[slot].size(self.B) for slot in slots]
        self.sizes[at], self.passes[at] = torch.tensor(sizes, device=self.device), 0

    def leave(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.texts[slot]
        self.active[self.at(slots)] = 0

    def passes_for(self, num_tokens: int) -> int:
        del num_tokens
        return min(MOST_PASSES, *(self.T - text.passes for text in self.texts.values()))

    @torch.no_grad()
    def run(self, count: int) -> None:
        for _ in range(count):
            self.repeat()
        for text in self.texts.values():
            text.passes += count
        self.take_blocks([slot for slot, text in self.texts.items() if text.passes == self.T])

    def take_blocks(self, slots: list[int]) -> None:
        """Put decided blocks behind their texts, and begin the next ones."""
        decided, going = self.tokens.tolist() if slots else [], []
        for slot in slots:
            text = self.texts[slot]
            text.tokens, text.passes = text.tokens + decided[slot][: text.size(self.B)], 0
            if len(text.tokens) < text.row.length:
                going.append(slot)
        if going:
            self.read_blocks(going)
            self.blocks[self.at(going)] += 1
            self.start_blocks(going)

    def read(self) -> list[Text]:
        texts = []
        for slot in range(self.num_slots):
            tokens = self.texts[slot].tokens if slot in self.texts else []
            blocks = [1 + place // self.B for place in range(len(tokens))]
            texts.append(Text(tokens, [self.passes_per_block * number for number in blocks]))
        return texts

"""Words and pins of texts in blocks: which token may stand where.

    constraints.placement -> [places] -> programs.window;  the plain twin is `constrained`

Where no word is forbidden, a token is legal or not whatever stands before it. So a table of the
positions and tokens of a block says it all, and a graph can read it. Only where the required words
go is for the network to say, between the halves of a block's first passes.
"""

from __future__ import annotations

import torch

from ssdlm.constraints.constrained import SETTLED, move_words
from ssdlm.constraints.placement import FREE, Placement
from ssdlm.shapes import Tensor


class Places:
    """Tables of a batch: what may stand at the W positions of each slot's block."""

    def __init__(self, num_slots: int, V: int, levels: Tensor, device: torch.device) -> None:
        self.W = W = levels.shape[1]
        self.allowed = torch.ones(num_slots, W, V, dtype=torch.bool, device=device)
        self.given = torch.full((num_slots, W), FREE, device=device)
        """The tokens of words and pins, FREE elsewhere."""
        self.seen = self.given.clone()
        """Those that the network sees as clean text: words only once they stay where they are."""
        self.is_early = [row == 0 or bool((own > SETTLED).all()) for row, own in enumerate(levels)]
        """Whether words may move, by the passes of a block."""
        self.placements: dict[int, Placement] = {}
        self.filled: dict[int, tuple[Placement, int, bool]] = {}
        """What the tables of each slot were made of: its block's start, and whether words move."""

    def join(self, slot: int, placement: Placement) -> None:
        """Hold a text to its placement."""
        self.placements[slot] = placement
        self.filled.pop(slot, None)

    def leave(self, slot: int) -> None:
        """Let a text go; the next one in its slot fills the tables anew."""
        del self.placements[slot]

    def show(self, slot: int, start: int, number: int) -> bool:
        """Fill the tables for a pass of the block at `start`; tell whether words may yet move."""
        is_here = (start <= place < start + self.W for place in self.placements[slot].positions)
        may_move = self.is_early[number] and any(is_here)
        self.write(slot, start, may_move)
        return may_move

    def move(self, slot: int, start: int, logits: Tensor) -> None:
        """Put words where the network finds them most likely, by its logits (W, V)."""
        placement = self.placements[slot]
        state = placement.constraint.automaton.start
        self.placements[slot] = move_words(placement, logits, state, start)
        self.write(slot, start, True)

    def write(self, slot: int, start: int, may_move: bool) -> None:
        """Fill the tables of a slot, unless they are so already."""
        placement = self.placements[slot]
        before, now = self.filled.get(slot), (placement, start, may_move)
        if before is not None and before[0] is placement and before[1:] == now[1:]:
            return
        self.filled[slot] = now
        legal = torch.from_numpy(placement.legal_block(start, self.W))
        self.allowed[slot, :, : legal.shape[1]] = legal.to(self.allowed.device)
        shown = (placement.tokens(start, self.W, with_words=own) for own in (True, not may_move))
        both = torch.tensor(list(shown), device=self.given.device)
        self.given[slot], self.seen[slot] = both

"""Which token may come next in each text of a lane, where a grammar says so.

    constraints -> [held] -> lanes

A pass draws from what is allowed, and the next one cannot begin before it is known what was drawn:
a GPU is waited for once a pass, and the automata are read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ssdlm.constraints.placement import Placement
from ssdlm.diffusion.autoregressive import Place, legal_of
from ssdlm.shapes import Tensor


class Held:
    """The places of a lane's texts in their grammars."""

    def __init__(self, num_slots: int, V: int, device: torch.device) -> None:
        self.allowed = torch.ones(num_slots, V, dtype=torch.bool, device=device)
        """Which tokens may come next, by slot; all of them where there is no grammar."""
        self.places: dict[int, Place] = {}

    def join(self, placements: Sequence[Placement | None], slots: Sequence[int]) -> None:
        """Hold texts to their grammars, from the beginning."""
        self.leave(slots)
        for slot, placement in zip(slots, placements, strict=True):
            if placement is not None:
                self.places[slot] = Place(placement, placement.constraint.automaton.start)
        self.tell([slot for slot in slots if slot in self.places])

    def leave(self, slots: Sequence[int]) -> None:
        """Let texts go."""
        for slot in slots:
            self.places.pop(slot, None)
        self.allowed[torch.tensor(slots, device=self.allowed.device)] = True

    def read(self, tokens: Sequence[int]) -> None:
        """Take in the token that each slot has drawn."""
        self.places = {slot: place.after(tokens[slot]) for slot, place in self.places.items()}
        # A text that is full gets no more tokens.
        self.tell([slot for slot, place in self.places.items() if has_room(place)])

    def tell(self, slots: Sequence[int]) -> None:
        """Write down what may come next in some slots, by one way to the GPU."""
        if not slots:
            return
        legal = cast(Tensor, legal_of([self.places[slot] for slot in slots], self.allowed.device))
        self.allowed[torch.tensor(slots, device=self.allowed.device), : legal.shape[1]] = legal


def has_room(place: Place) -> bool:
    """Tell whether a text has room for another token."""
    return place.position < cast(Placement, place.rules).constraint.length

"""Which token may come next in each text of a batch, where a grammar says so.

    grammar_table, table_pool -> [grammar_mask] -> engine;  the plain twin is `Placement`

The automata run on the device. A text's state is a row of its grammar's table, with one entry for
each kind of token: the state after it, and the room that the text must have for it. So a mask, and
the step after a token, are a few operations of fixed shape that copy nothing to the host: a graph
can record them. The few automata that have no such table are read on the host after each pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, cast

import torch

from ssdlm.constraints.grammar_table import table_key, tabulate
from ssdlm.constraints.placement import Placement
from ssdlm.constraints.table_pool import ALLOWED, FORBIDDEN, Stored, TablePool
from ssdlm.diffusion.autoregressive import Place, legal_of
from ssdlm.shapes import Tensor

MAX_ENTRIES = 1 << 26
"""Entries of all tables together: 256 MiB."""


class Spot(NamedTuple):
    """How far texts have come in their grammars, by slot."""

    row: Tensor
    """Where the row of each one's state begins."""
    room: Tensor
    """For how many more tokens there is room."""


class GrammarMask:
    """The grammars of a batch's texts, and the states that the texts have reached in them."""

    def __init__(
        self, num_slots: int, V: int, device: torch.device, *, max_entries: int = MAX_ENTRIES
    ) -> None:
        self.pool = TablePool(V, device, max_entries)
        self.kind_of = torch.zeros(num_slots, V, dtype=torch.int32, device=device)
        """The kind of each token, by slot."""
        self.cursors = torch.zeros(4, num_slots, dtype=torch.int32, device=device)
        """By slot: where its table begins, the kinds in it, where its state's row begins, and for
        how many more tokens there is room."""
        self.start, self.num_kinds, self.row, self.room = self.cursors.unbind()
        self.tables: dict[int, Hashable] = {}
        """The keys of the tables in use, by slot."""
        self.on_host: dict[int, Place] = {}
        """The texts, by slot, whose grammars have no table."""

    @property
    def version(self) -> int:
        """A number that changes when graphs have to be recorded again."""
        return self.pool.version

    @property
    def needs_host(self) -> bool:
        """Whether `read` has to be called after each pass."""
        return bool(self.on_host)

    @property
    def here(self) -> Spot:
        """How far the texts have come."""
        return Spot(self.row, self.room)

    def allowed(self, spot: Spot | None = None) -> Tensor:
        """Return which tokens may come next (num_slots, V): all of them without a grammar."""
        row, room = spot or self.here
        entries = self.kind_of + row.unsqueeze(1)
        needed = self.pool.needed.index_select(0, entries.view(-1))
        return needed.view_as(entries) <= room.unsqueeze(1)

    def after(self, spot: Spot, tokens: Tensor) -> Spot:
        """Return how far a token more (num_slots,) brings the texts."""
        kinds = self.kind_of.gather(1, tokens.unsqueeze(1)).squeeze(1)
        states = self.pool.next_state.index_select(0, spot.row + kinds)
        rows = torch.addcmul(self.start, states.int(), self.num_kinds)
        # A text that is full keeps room for one more token: no mask may be empty.
        return Spot(rows, (spot.room - 1).clamp(min=1))

    def advance(self, tokens: Tensor, active: Tensor) -> None:
        """Take in the tokens (num_slots,) that were drawn in the slots that are active."""
        self.move_to(self.after(self.here, tokens), active)

    def move_to(self, spot: Spot, active: Tensor) -> None:
        """Take note of how far the texts have come in the slots that are active."""
        for own, new in zip(self.here, spot, strict=True):
            own.copy_(torch.where(active.bool(), new, own))

    def join(self, placements: Sequence[Placement | None], slots: Sequence[int]) -> None:
        """Hold texts to their grammars from the beginning; None is for a text without one."""
        self.forget(slots)
        cursors, kinds = [], []
        for slot, placement in zip(slots, placements, strict=True):
            table = self.find_table(slot, placement)
            state, room = (0, 1) if placement is None else start_of(placement)
            cursors.append((table.start, table.num_kinds, table.row_of(state), room))
            kinds.append(table.kind_of)
        at = self.index(slots)
        self.cursors[:, at] = torch.tensor(cursors, dtype=torch.int32, device=at.device).T
        self.kind_of[at] = torch.stack(kinds)
        self.write_masks([slot for slot in slots if slot in self.on_host])

    def leave(self, slots: Sequence[int]) -> None:
        """Let texts go; every token is allowed in their slots."""
        self.join([None] * len(slots), slots)

    def read(self, tokens: Sequence[int], moved: Sequence[bool] | None = None) -> None:
        """Take in the token that each slot has drawn, where grammars are read on the host.

        Slots that have not `moved` have drawn none.
        """
        read = [slot for slot in self.on_host if moved is None or moved[slot]]
        self.on_host |= {slot: self.on_host[slot].after(tokens[slot]) for slot in read}
        # A text that is full gets no more tokens.
        self.write_masks([slot for slot in read if has_room(self.on_host[slot])])

    def find_table(self, slot: int, placement: Placement | None) -> Stored:
        """Return the table that a slot is to use, and store it if it is new."""
        if placement is None:
            return self.pool.free
        key = table_key(placement)
        found = self.pool.find(key)
        if found is None:
            table = tabulate(placement, self.pool.max_entries)
            found = None if table is None else self.pool.add(key, table, {*self.tables.values()})
        if found is None:
            self.on_host[slot] = Place(placement, placement.constraint.automaton.start)
            return self.pool.free
        self.tables[slot] = key
        return found

    def write_masks(self, slots: Sequence[int]) -> None:
        """Write what may come next in slots that are read on the host, by one copy."""
        if not slots:
            return
        at = self.index(slots)
        legal = cast(Tensor, legal_of([self.on_host[slot] for slot in slots], at.device))
        kinds = torch.where(legal, ALLOWED, FORBIDDEN).int()
        self.kind_of[at] = FORBIDDEN
        self.kind_of[at, : kinds.shape[1]] = kinds

    def forget(self, slots: Sequence[int]) -> None:
        """Drop what the host knows of some slots."""
        for slot in slots:
            self.tables.pop(slot, None)
            self.on_host.pop(slot, None)

    def index(self, slots: Sequence[int]) -> Tensor:
        """Return slots as an index on the device."""
        return torch.tensor(slots, device=self.kind_of.device)


def start_of(placement: Placement) -> tuple[int, int]:
    """Return the state that a text begins in, and the tokens that it has room for."""
    return placement.constraint.automaton.start, placement.constraint.length


def has_room(place: Place) -> bool:
    """Tell whether a text has room for another token."""
    return place.position < cast(Placement, place.rules).constraint.length

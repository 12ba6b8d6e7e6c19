"""The tables of many grammars in one piece of a device's memory.

    grammar_table -> [table_pool] -> grammar_mask

A recorded graph reads the pool at fixed addresses, so tables come and go in place. Only growing
moves the pool. Tables that no text uses stay for the next one with the same grammar, until their
place is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

import numpy as np
import torch

from ssdlm.constraints.grammar_table import NEVER, GrammarTable
from ssdlm.shapes import Tensor

FIRST_ENTRIES = 1 << 20
"""Entries of a new pool: 4 MiB. A JSON schema with a few fields takes a tenth of it."""
MAX_UNUSED = 32
"""Tables kept without a text that uses them."""
ALLOWED, FORBIDDEN = 0, 1
"""The kinds of tokens for texts without a table."""


@dataclass(frozen=True)
class Stored:
    """Where a table lies in the pool."""

    start: int
    size: int
    num_kinds: int
    kind_of: Tensor
    """The kind of each token (V,), on the device; tokens that were added as padding have the last
    kind."""

    @property
    def end(self) -> int:
        return self.start + self.size

    def row_of(self, state: int) -> int:
        """Return where the entries of a state begin."""
        return self.start + state * self.num_kinds


class TablePool:
    """Tables of grammars, one after another in two tensors."""

    def __init__(self, V: int, device: torch.device, max_entries: int) -> None:
        self.V, self.device, self.max_entries = V, device, max_entries
        capacity = min(FIRST_ENTRIES, max_entries)
        self.next_state = torch.zeros(capacity, dtype=torch.int16, device=device)
        self.needed = torch.zeros_like(self.next_state)
        self.needed[FORBIDDEN] = NEVER
        self.free = Stored(0, 2, 0, torch.zeros(V, dtype=torch.int32, device=device))
        """The table of texts without one: its row has two entries, and is never left."""
        self.stored: dict[Hashable, Stored] = {}
        """The tables by their keys; the one used last is at the end."""
        self.version = 0
        """How often the tensors were replaced by longer ones."""

    def find(self, key: Hashable) -> Stored | None:
        """Return where a table lies, if it is here."""
        found = self.stored.pop(key, None)
        if found is not None:
            self.stored[key] = found
        return found

    def add(
        self, key: Hashable, table: GrammarTable, in_use: Collection[Hashable]
    ) -> Stored | None:
        """Store a table, in place of unused ones if need be; None if there is no room for it."""
        size = table.next_state.size
        unused = [one for one in self.stored if one not in in_use]
        while unused and (len(unused) > MAX_UNUSED or self.gap(size) + size > len(self.needed)):
            del self.stored[unused.pop(0)]
        start = self.gap(size)
        if start + size > self.max_entries:
            return None
        if start + size > len(self.needed):
            self.grow(start + size)
        for pool, array in ((self.next_state, table.next_state), (self.needed, table.needed)):
            pool[start : start + size] = torch.from_numpy(array).flatten().to(self.device)
        kind_of = np.full(self.V, table.num_kinds - 1, dtype=np.int32)
        kind_of[: len(table.kind_of)] = table.kind_of
        on_device = torch.from_numpy(kind_of).to(self.device)
        self.stored[key] = Stored(start, size, table.num_kinds, on_device)
        return self.stored[key]

    def gap(self, size: int) -> int:
        """Return the first place with so many free entries, which may reach beyond the end."""
        place = self.free.end
        for one in sorted(self.stored.values(), key=lambda one: one.start):
            if one.start - place >= size:
                break
            place = one.end
        return place

    def grow(self, size: int) -> None:
        """Make the pool at least so long, and twice as long as it was if it may be."""
        more = max(size, min(2 * len(self.needed), self.max_entries)) - len(self.needed)
        self.next_state = torch.cat((self.next_state, self.next_state.new_zeros(more)))
        self.needed = torch.cat((self.needed, self.needed.new_zeros(more)))
        self.version += 1

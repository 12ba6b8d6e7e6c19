"""An automaton as one table that a device can read.  automaton -> [grammar_table] -> grammar_mask

Whether a token may come next takes two looks on the host: the state it leads to, and whether the
text can be finished from there in the room that is left. Where more room never hurts, the second
look is a number per state, the tokens that are still needed, so that both fit into one table.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from ssdlm.constraints.automaton import DEAD
from ssdlm.constraints.placement import Placement

NEVER = np.iinfo(np.int16).max
"""The room that is needed for a token that may not come at all: more than any text has."""


@dataclass(frozen=True)
class GrammarTable:
    """What each kind of token does in each state. The last kind is of tokens that do not exist."""

    kind_of: np.ndarray
    """The kind of each token (V,)."""
    next_state: np.ndarray
    """The state after each state and kind (S, G)."""
    needed: np.ndarray
    """The room that a text must have for each kind in each state (S, G): the token and the fewest
    that can follow it."""

    @property
    def num_kinds(self) -> int:
        return self.next_state.shape[1]


def table_key(placement: Placement) -> Hashable:
    """Return what placements share whose tables are equal."""
    return placement.constraint.automaton.digest, max_room(placement)


def max_room(placement: Placement) -> int:
    """Return the room up to which tokens are counted: rounded up, so that lengths share tables."""
    return 1 << (placement.constraint.length - 1).bit_length()


def tabulate(placement: Placement, max_entries: int) -> GrammarTable | None:
    """Return the table of a placement, None where there is none or it is too large.

    There is none where a position has a token or a rule of its own, as required words have it, and
    where more room can make a text impossible.
    """
    automaton, limit = placement.constraint.automaton, max_room(placement)
    num_states = len(automaton.accepts)
    if not placement.is_free or max(num_states, limit + 1) >= NEVER:
        return None
    by_kind = automaton.next_state.by_kind(max_entries - num_states)
    to_end = None if by_kind is None else automaton.tokens_to_end(limit)
    if by_kind is None or to_end is None:
        return None
    needed = np.where(to_end > limit, NEVER, to_end + 1)[by_kind.next_state]
    return GrammarTable(
        by_kind.kind_of,
        with_last_column(by_kind.next_state, DEAD),
        with_last_column(needed, NEVER),
    )


def with_last_column(array: np.ndarray, value: int) -> np.ndarray:
    """Return an array (S, G) as int16, with one more column of a value (S, G + 1)."""
    return np.pad(array, ((0, 0), (0, 1)), constant_values=value).astype(np.int16)

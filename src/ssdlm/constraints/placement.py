"""Where required words and pinned tokens stand in a text.  automaton -> [placement] -> constrained

A placement leaves every other position free, and knows for each position the states of the
automaton from which the rest of the text can still be written. A text that never leaves those
states can always be finished legally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ssdlm.constraints.automaton import DEAD, Automaton

FREE, BOUNDARY = -1, -2
"""Slots without a token of their own: any will do, or any that continues no word."""


class RequiredWord(NamedTuple):
    """Tokens that must stand somewhere in the text, one after the other."""

    tokens: tuple[int, ...]
    needs_boundary: bool
    """Whether the token after it may not continue it, as "bridges" continues "bridge"."""


@dataclass(frozen=True)
class TokenConstraint:
    """What is asked of one text, in tokens."""

    automaton: Automaton
    length: int
    """Tokens in the text, the suffix included."""
    pins: dict[int, int]
    """The token at a position."""
    words: tuple[RequiredWord, ...]
    num_given: int = 0
    """Tokens at its end that are another's, and may be anything."""


@dataclass(frozen=True)
class Placement:
    """A position for each required word, such that a legal text is sure to exist."""

    constraint: TokenConstraint
    positions: tuple[int, ...]
    """Where each word begins."""
    slots: list[int]
    """A token, FREE or BOUNDARY for each position."""
    last: int
    """The last position with a token of its own, -1 without one. Up to it a text may not end, and
    ends of sentences do not count: what is required would be cut off with the rest."""
    safe: list[np.ndarray]
    """The states from which the rest can be written, before each position and at the end."""

    @property
    def is_feasible(self) -> bool:
        """Whether any legal text has its words and pins here."""
        return bool(self.safe[0][self.constraint.automaton.start])

    @cached_property
    def allows_all(self) -> bool:
        """Whether every token is legal at every position without one of its own."""
        return self.constraint.automaton.allows_all and BOUNDARY not in self.slots

    def step(self, state: int, position: int, token: int) -> int:
        """Return the automaton's state after a token at a position."""
        automaton = self.constraint.automaton
        if position <= self.last:
            state = int(automaton.without_sentence_end[state])
        return int(automaton.next_state[state, token])

    def legal_tokens(self, state: int, position: int) -> np.ndarray:
        """Return the tokens (V,) after which the text can still be finished."""
        automaton, is_early = self.constraint.automaton, position <= self.last
        state = int(automaton.without_sentence_end[state]) if is_early else state
        allowed = automaton.allowed_tokens(self.slots[position] == BOUNDARY, is_early)
        return allowed & automaton.next_state.leading(state, self.safe[position + 1])

    def tokens(self, start: int, B: int, *, with_words: bool) -> list[int]:
        """Return the tokens of pins, and of words, at positions from `start` on; FREE elsewhere."""
        slots = self.slots[start : start + B]
        if not with_words:
            pins = self.constraint.pins
            slots = [pins.get(position, FREE) for position in range(start, start + len(slots))]
        # Where a window has slid out over the end, nothing is asked for.
        return [max(slot, FREE) for slot in slots] + [FREE] * (B - len(slots))

    def legal_block(self, start: int, B: int) -> np.ndarray:
        """Return the tokens (B, V) for positions from `start` on, of an automaton that forgets."""
        automaton, slots = self.constraint.automaton, self.slots[start : start + B]
        slots = slots + [FREE] * (B - len(slots))
        early = [position <= self.last for position in range(start, start + B)]
        rows = [
            automaton.allowed_tokens(slot == BOUNDARY, is_early)
            for slot, is_early in zip(slots, early, strict=True)
        ]
        if start == 0:
            rows[0] &= automaton.next_state[automaton.start] != DEAD
        for row, slot in zip(rows, slots, strict=True):
            if slot >= 0:
                row[:] = False
                row[slot] = True
        return np.stack(rows)

    def is_legal(self, state: int, position: int, token: int) -> bool:
        """Tell whether a token may stand at a position: its slot allows it, and so does the rest.

        It looks up one token; `legal_tokens` answers for all of them, which takes V times as long.
        """
        automaton, slot = self.constraint.automaton, self.slots[position]
        if (slot >= 0 and token != slot) or (slot == BOUNDARY and not automaton.is_boundary[token]):
            return False
        if position <= self.last and token == automaton.end_of_text:
            return False
        return bool(self.safe[position + 1][self.step(state, position, token)])

    def read(self, state: int, start: int, tokens: Sequence[int]) -> int | None:
        """Return the state after tokens from `start` on; None if one of them is not legal here."""
        for position, token in enumerate(tokens, start=start):
            if not self.is_legal(state, position, token):
                return None
            state = self.step(state, position, token)
        return state

    def after(self, tokens: Sequence[int], length: int) -> Placement:
        """Return the placement of the next `length` tokens behind legal ones; without words."""
        constraint, done = self.constraint, len(tokens)
        state = self.read(constraint.automaton.start, 0, tokens)
        assert state is not None, "what was written was legal"
        automaton = replace(constraint.automaton, start=state)
        constraint = replace(constraint, automaton=automaton, length=length)
        return replace(self, constraint=constraint, slots=self.slots[done:], safe=self.safe[done:])

    @property
    def is_free(self) -> bool:
        """Whether every position is free, so that a text can be written piece by piece."""
        return all(slot == FREE for slot in self.slots)

    def move(self, number: int, position: int) -> Placement | None:
        """Return the placement with one word elsewhere, None if it does not fit there."""
        if position == self.positions[number]:
            return self
        positions = (*self.positions[:number], position, *self.positions[number + 1 :])
        return place_words(self.constraint, positions)


def place_words(constraint: TokenConstraint, positions: Sequence[int]) -> Placement | None:
    """Return the placement of the first words at these positions, None if two get in the way."""
    slots = [constraint.pins.get(position, FREE) for position in range(constraint.length)]
    automaton = constraint.automaton
    for word, position in zip(constraint.words, positions, strict=False):
        end = position + len(word.tokens)
        if end > constraint.length or any(slot != FREE for slot in slots[position:end]):
            return None
        slots[position:end] = word.tokens
    # Boundaries come after all words, since the token that a word needs may be another word's.
    for word, position in zip(constraint.words, positions, strict=False):
        after = position + len(word.tokens)
        if not word.needs_boundary or after == constraint.length:
            continue
        if slots[after] >= 0 and not automaton.is_boundary[slots[after]]:
            return None
        slots[after] = BOUNDARY if slots[after] < 0 else slots[after]
    last = max((position for position, slot in enumerate(slots) if slot >= 0), default=-1)
    own = slots[: constraint.length - constraint.num_given]
    safe = safe_states(automaton, own, last)
    safe += [np.ones_like(automaton.accepts)] * constraint.num_given
    return Placement(constraint, tuple(positions), slots, last, safe)


def safe_states(automaton: Automaton, slots: list[int], last: int) -> list[np.ndarray]:
    """Return the states from which a text can be finished, before each slot and at the end.

    They are found from the end backwards, one slot at a time.
    """
    safe = [automaton.accepts]
    for position in range(len(slots) - 1, -1, -1):
        slot = slots[position]
        token = slot if slot >= 0 else None
        safe.append(automaton.states_before(safe[-1], token, slot == BOUNDARY, position <= last))
    return safe[::-1]


def find_placement(constraint: TokenConstraint) -> Placement | None:
    """Return a feasible placement: words in the order given, spread over the text, else close.

    Each word goes to the first position from its preferred one on where a legal text remains.
    """
    count, length = len(constraint.words), constraint.length
    spread = [number * length // count for number in range(count)]
    for preferred in (spread, [0] * count):
        placement = place_words(constraint, ())
        for start in preferred:
            if placement is None:
                break
            candidates = (
                place_words(constraint, (*placement.positions, position))
                for position in [*range(start, length), *range(start)]
            )
            placement = next((made for made in candidates if made and made.is_feasible), None)
        if placement is not None and placement.is_feasible:
            return placement
    return None

"""Where in a text the things stand that it must hold.  automaton -> [plan] -> constraint

A plan leaves free what is not demanded, and knows for every position which states of the automaton
allow the rest to be written. A text that never leaves those is finished legally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ssdlm.constraints.automaton import Automaton

FREE, BREAK = -1, -2
"""Slots without a token: any will do, or one that continues no word."""


class Word(NamedTuple):
    """Tokens that must stand somewhere."""

    tokens: tuple[int, ...]
    needs_break: bool
    """Whether what follows may not continue it."""


@dataclass(frozen=True)
class Demand:
    """What a row's text must be like."""

    automaton: Automaton
    length: int
    """Tokens in the text."""
    pins: dict[int, int]
    """The token at a position."""
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Plan:
    """A text's slots, filled so far that a legal text is sure to exist."""

    demand: Demand
    places: tuple[int, ...]
    """Where each word stands."""
    slots: list[int]
    """A token, FREE or BREAK for each position."""
    last: int
    """The last position with a token, -1 if none has one; a text may not end before it."""
    safe: list[np.ndarray]
    """The states from which the rest can be written, before each position and at the end."""

    def step(self, state: int, place: int, token: int) -> int:
        """Return the automaton's state after a token at a place."""
        machine = self.demand.automaton
        if place <= self.last:
            state = int(machine.restart[state])
        return int(machine.following[state, token])

    def choices(self, state: int, place: int) -> np.ndarray:
        """Return the tokens (V,) after which the text can still be finished."""
        machine, is_early = self.demand.automaton, place <= self.last
        state = machine.restart[state] if is_early else state
        allowed = machine.allowed(self.slots[place] == BREAK, is_early)
        return allowed & self.safe[place + 1][machine.following[state]]

    def takes(self, state: int, place: int, token: int) -> bool:
        """Tell whether a token may stand at a place: its slot allows it, and so does the rest."""
        machine, slot = self.demand.automaton, self.slots[place]
        if (slot >= 0 and token != slot) or (slot == BREAK and not machine.breaks[token]):
            return False
        if place <= self.last and token == machine.end_of_text:
            return False
        return bool(self.safe[place + 1][self.step(state, place, token)])

    def read(self, state: int, start: int, tokens: Sequence[int]) -> int | None:
        """Return the state after tokens from `start` on; None if they are not to this plan."""
        for place, token in enumerate(tokens, start=start):
            if not self.takes(state, place, token):
                return None
            state = self.step(state, place, token)
        return state

    def moved(self, number: int, place: int) -> Plan | None:
        """Return the plan with a word elsewhere, if it can stand there."""
        if place == self.places[number]:
            return self
        places = (*self.places[:number], place, *self.places[number + 1 :])
        return plan(self.demand, places)


def plan(demand: Demand, places: Sequence[int]) -> Plan | None:
    """Return the plan with the words at these places; None where they get in the way of another."""
    slots = [demand.pins.get(place, FREE) for place in range(demand.length)]
    machine = demand.automaton
    for word, place in zip(demand.words, places, strict=False):
        end = place + len(word.tokens)
        if end > demand.length or any(slot != FREE for slot in slots[place:end]):
            return None
        slots[place:end] = word.tokens
    for word, place in zip(demand.words, places, strict=False):
        after = place + len(word.tokens)
        if not word.needs_break or after == demand.length:
            continue
        if slots[after] >= 0 and not machine.breaks[slots[after]]:
            return None
        slots[after] = BREAK if slots[after] < 0 else slots[after]
    last = max((place for place, slot in enumerate(slots) if slot >= 0), default=-1)
    return Plan(demand, tuple(places), slots, last, safe_states(machine, slots, last))


def safe_states(machine: Automaton, slots: list[int], last: int) -> list[np.ndarray]:
    """Return the states from which a text can be finished, before each slot and at the end."""
    safe = [machine.accepts]
    for place in range(len(slots) - 1, -1, -1):
        slot = slots[place]
        safe.append(machine.before(safe[-1], slot, slot == BREAK, place <= last))
    return safe[::-1]


def first_plan(demand: Demand) -> Plan | None:
    """Return a legal plan: words in the order given, spread over the text, else close together."""
    spread = [number * demand.length // len(demand.words) for number in range(len(demand.words))]
    for wishes in (spread, [0] * len(spread)):
        made = plan(demand, ())
        for wish in wishes:
            if made is None:
                break
            places = [*range(wish, demand.length), *range(wish)]
            plans = (plan(demand, (*made.places, place)) for place in places)
            made = next((p for p in plans if p and is_possible(p)), None)
        if made is not None and is_possible(made):
            return made
    return None


def is_possible(made: Plan) -> bool:
    """Tell whether a text can be written to a plan."""
    return bool(made.safe[0][made.demand.automaton.start])

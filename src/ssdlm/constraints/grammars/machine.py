"""From an expression to a machine that reads characters.  expression -> [machine] -> utf8

1. `Parts`: the expression as places with arrows between them, some of which read a character.
2. `Walk`: the places that a text may be at, after one more character.
3. `determinise`: all of these sets of places, each a state. It reads atoms: sets of characters that
   no part of the expression tells apart.

Each step has a limit, so that a pattern that explodes is refused and does not fill the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ssdlm.constraints.automaton import DEAD
from ssdlm.constraints.grammars.expression import (
    NEWLINE,
    NUM_CODES,
    SURROGATES,
    Anchor,
    Chain,
    Chars,
    Expression,
    Ranges,
    Ref,
    Repeat,
)

MOST_PARTS = 1 << 16
MOST_STATES = 1 << 13
"""States of a machine that reads characters."""
MOST_WORK = 1 << 24
"""Places that are looked at in all while states are found: some seconds."""
START_OF_TEXT, AFTER_NEWLINE, INSIDE = 0, 1, 2
"""What stands before a place."""
FREE, MUST_END, MUST_END_AFTER_NEWLINE, MUST_READ_NEWLINE = range(4)
"""What an anchor has promised of the rest of the text."""

Place = tuple[int, int]
"""A place of the expression, and what has been promised on the way to it."""


class TooLarge(ValueError):
    """A machine that would have too many states."""


@dataclass
class Parts:
    """An expression as places and arrows; place 0 is where it begins."""

    reads: list[list[tuple[int, int]]] = field(default_factory=lambda: [[]])
    """Arrows that read a character, for each place: the number of a set, and where it leads."""
    skips: list[list[int]] = field(default_factory=lambda: [[]])
    """Arrows that read nothing."""
    anchors: list[list[tuple[Anchor, int]]] = field(default_factory=lambda: [[]])
    """Arrows that read nothing and are there if an anchor holds."""
    sets: dict[Ranges | str, int] = field(default_factory=dict)
    """The sets of characters, numbered, and among them the names of rules."""

    def place(self) -> int:
        """Return a new place."""
        if len(self.reads) == MOST_PARTS:
            raise TooLarge(f"{MOST_PARTS} parts")
        self.reads.append([])
        self.skips.append([])
        self.anchors.append([])
        return len(self.reads) - 1

    def add(self, part: Expression, start: int) -> int:
        """Add an expression that begins at a place; return where it ends."""
        if isinstance(part, Chain):
            for item in part.parts:
                start = self.add(item, start)
            return start
        if isinstance(part, Repeat):
            return self.add_repeat(part, start)
        end = self.place()
        if isinstance(part, Chars):
            self.reads[start].append((self.sets.setdefault(part.ranges, len(self.sets)), end))
        elif isinstance(part, Ref):
            self.reads[start].append((self.sets.setdefault(part.name, len(self.sets)), end))
        elif isinstance(part, Anchor):
            self.sets.setdefault(((NEWLINE, NEWLINE),), len(self.sets))
            self.anchors[start].append((part, end))
        else:
            for option in part.options:
                self.skips[self.add(option, self.after(start))].append(end)
        return end

    def add_repeat(self, repeat: Repeat, start: int) -> int:
        """Add a part as many times as it may be repeated; return where the last one ends."""
        inner = repeat.part
        if isinstance(inner, Repeat) and inner.low == 0 and repeat.high != 0:
            # (x?){9} is x{0,9}: one way to read a text instead of many.
            high = None if inner.high is None or repeat.high is None else inner.high * repeat.high
            repeat = Repeat(inner.part, 0, 0 if inner.high == 0 else high)
        for _ in range(repeat.low):
            size = len(self.reads)
            start = self.add(repeat.part, start)
            if len(self.reads) == size:  # it reads nothing, however often
                break
        if repeat.high is None:
            loop = self.after(start)
            self.skips[self.add(repeat.part, loop)].append(loop)
            return self.after(loop)
        end = self.place()
        for _ in range(repeat.high - repeat.low):
            self.skips[start].append(end)
            start = self.add(repeat.part, self.after(start))
        self.skips[start].append(end)
        return end

    def after(self, start: int) -> int:
        """Return a new place, to which one comes from another without reading."""
        end = self.place()
        self.skips[start].append(end)
        return end


@dataclass
class Walk:
    """All places that a text may be at, as numbered sets of them."""

    parts: Parts
    end: int
    """The place at which the expression ends."""
    atoms_of: list[frozenset[int]]
    """The atoms of each set of characters."""
    newline: int
    """The atom of the newline alone, where there are anchors."""
    known: dict[frozenset[Place], int] = field(default_factory=dict)
    states: list[frozenset[Place]] = field(default_factory=list)
    """The keys of `known`, in order."""
    reached: dict[tuple[Place, int], frozenset[Place]] = field(default_factory=dict)
    """Results of `reach`."""
    work: int = 0
    most_work: int = field(default_factory=lambda: MOST_WORK)

    def reach(self, place: Place, before: int) -> frozenset[Place]:
        """Return the places to which one comes without reading, those at which one would read."""
        if (place, before) in self.reached:
            return self.reached[place, before]
        seen, todo = {place}, [place]
        while todo:
            here, promise = todo.pop()
            steps = [(there, promise) for there in self.parts.skips[here]]
            for anchor, there in self.parts.anchors[here]:
                steps += [(there, kept) for kept in promises(anchor, before, promise)]
            new = set(steps) - seen
            seen |= new
            todo += new
        reads = self.parts.reads
        found = frozenset(one for one in seen if reads[one[0]] or one[0] == self.end)
        self.reached[place, before] = found
        self.count(len(seen))
        return found

    def count(self, work: int) -> None:
        """Add to what has been done, or raise if it is too much."""
        self.work += work
        if self.work > self.most_work:
            raise TooLarge(f"{self.most_work} steps")

    def number(self, places: Iterable[Place], before: int) -> int | None:
        """Return the state of a text that has come to some places, None if there are none."""
        reached = [self.reach(place, before) for place in places]
        self.count(sum(map(len, reached)))
        found = frozenset().union(*reached)
        if not found:
            return None
        if found not in self.known and len(self.known) == MOST_STATES:
            raise TooLarge(f"{MOST_STATES} states")
        if found not in self.known:
            self.known[found] = len(self.states)
            self.states.append(found)
        return self.known[found]

    def steps(self, state: frozenset[Place]) -> dict[int, int]:
        """Return the states after one more character, by its atom; absent where it does not fit."""
        after: dict[int, set[Place]] = {}
        self.count(len(state))
        for here, promise in state:
            if promise == MUST_END:
                continue
            kept = MUST_END if promise == MUST_END_AFTER_NEWLINE else FREE
            for number, to in self.parts.reads[here]:
                for atom in self.atoms_of[number]:
                    if promise == FREE or atom == self.newline:
                        after.setdefault(atom, set()).add((to, kept))
        found = {}
        for atom in sorted(after):
            before = AFTER_NEWLINE if atom == self.newline else INSIDE
            number = self.number(after[atom], before)
            if number is not None:
                found[atom] = number
        return found

    def may_end(self, state: frozenset[Place]) -> bool:
        """Tell whether a text may end in a state."""
        return any(here == self.end and promise in (FREE, MUST_END) for here, promise in state)


def promises(anchor: Anchor, before: int, promise: int) -> list[int]:
    """Return what is promised of the rest after an anchor: nothing where it cannot hold."""
    if anchor is Anchor.START:
        return [promise] if before == START_OF_TEXT else []
    if anchor is Anchor.LINE_START:
        return [promise] if before != INSIDE else []
    if anchor is Anchor.END:
        return [MUST_END] if promise in (FREE, MUST_END) else []
    newline = MUST_READ_NEWLINE if anchor is Anchor.LINE_END else MUST_END_AFTER_NEWLINE
    if promise == FREE:
        return [MUST_END, newline]
    # The stricter of two promises counts: of the newline, that nothing may follow it.
    return [promise if promise == MUST_END else min(promise, newline)]


def atoms(sets: Iterable[Ranges]) -> tuple[np.ndarray, list[frozenset[int]]]:
    """Return the atom of each code point (NUM_CODES,), and the atoms of each set.

    Code points of one atom are in the same sets. Atom 0 is in none of them.
    """
    sets = list(sets)
    cuts = {0, SURROGATES[0], SURROGATES[1] + 1, NUM_CODES}
    cuts |= {edge for ranges in sets for low, high in ranges for edge in (low, high + 1)}
    edges = np.array(sorted(cuts))
    member = np.zeros((len(edges) - 1, len(sets)), dtype=bool)
    for number, ranges in enumerate(sets):
        for low, high in ranges:
            first, last = np.searchsorted(edges, (low, high + 1))
            member[first:last, number] = True
    member[np.searchsorted(edges, SURROGATES[0])] = False
    known = {bytes(len(sets)): 0}
    numbers = [known.setdefault(row.tobytes(), len(known)) for row in member]
    rows = [np.frombuffer(key, dtype=bool) for key in known]
    of_set = [
        frozenset(atom for atom, row in enumerate(rows) if row[number])
        for number in range(len(sets))
    ]
    return np.repeat(np.array(numbers, dtype=np.int32), np.diff(edges)), of_set


def determinise(expression: Expression) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the state after each state and atom (S, A), where a text may end, and the atoms.

    States from which no text can be finished are DEAD; state 1 is the start.
    """
    parts = Parts()
    end = parts.add(expression, 0)
    atom_of, atoms_of = atoms(ranges for ranges in parts.sets if isinstance(ranges, tuple))
    walk = Walk(parts, end, atoms_of, int(atom_of[NEWLINE]) or -1)
    return *subsets(walk, int(atom_of.max()) + 1), atom_of


def subsets(walk: Walk, num_atoms: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the state after each state and atom (S, A), and where a text may end (S,)."""
    walk.number([(0, FREE)], START_OF_TEXT)
    rows = [walk.steps(state) for state in walk.states]  # they grow as they are found
    table = np.zeros((max(len(rows), 1) + 1, num_atoms), dtype=np.int32)
    accepts = np.zeros(len(table), dtype=bool)
    for number, (state, row) in enumerate(zip(walk.states, rows, strict=True), start=1):
        table[number, list(row)] = np.fromiter(row.values(), np.int32) + 1
        accepts[number] = walk.may_end(state)
    return without_dead_ends(table, accepts), accepts


def without_dead_ends(table: np.ndarray, accepts: np.ndarray) -> np.ndarray:
    """Return the table with DEAD for states from which no text can be finished."""
    alive = accepts.copy()
    while True:
        wider = alive | alive[table].any(1)
        if (wider == alive).all():
            return np.where(alive[table], table, DEAD)
        alive = wider

"""A context-free grammar as a machine of characters.  notation -> [unfolding] -> utf8

A finite machine cannot count brackets without end. So a rule that contains itself is unfolded: its
machine at one level calls those of the level before, and at level 0 there are no texts at all. All
texts of the machine are texts of the grammar, and those with fewer levels are all there. What needs
no counting has no levels: a rule that begins with itself is a loop, one that ends with another
jumps there. If a level adds nothing, the machine has every text of the grammar. Machines are the
smallest of their kind at each level, so that equal ones are seen to be equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ssdlm.constraints.automaton import DEAD
from ssdlm.constraints.grammars.expression import Expression
from ssdlm.constraints.grammars.machine import (
    Parts,
    TooLarge,
    Walk,
    atoms,
    subsets,
)
from ssdlm.constraints.grammars.notation import START, references

MOST_LEVELS = 16
MOST_WORK = 1 << 20
"""Places, arrows and states that are looked at in all: some seconds."""
FIRST = 1
"""The state in which a machine begins."""


@dataclass(frozen=True)
class Machine:
    """The smallest machine for its texts; states are numbered in the order of their discovery."""

    table: np.ndarray
    """The state after each state and symbol (S, A)."""
    accepts: np.ndarray
    """The states in which a text may end (S,)."""

    @property
    def is_empty(self) -> bool:
        return not self.accepts.any()

    def equals(self, other: Machine) -> bool:
        """Tell whether two machines have the same texts."""
        return np.array_equal(self.table, other.table) and np.array_equal(
            self.accepts, other.accepts
        )

    def arrows(self, state: int) -> Mapping[int, list[int]]:
        """Return the states that follow a state, each with the symbols that lead there."""
        found: dict[int, list[int]] = {}
        row = self.table[state]
        symbols = row.nonzero()[0]
        for symbol, target in zip(symbols.tolist(), row[symbols].tolist(), strict=True):
            found.setdefault(target, []).append(symbol)
        return found


@dataclass
class Unfolding:
    """The machines of a grammar's rules, found from those that contain no others upwards."""

    rules: Mapping[str, Expression]
    most_states: int
    """States of a machine from which on it gets no further level."""
    bodies: dict[str, Machine] = field(default_factory=dict)
    """What each rule reads: characters, and other rules as one symbol each."""
    machines: dict[str, Machine] = field(default_factory=dict)
    sets: dict[frozenset[int], int] = field(default_factory=dict)
    """Sets of atoms, numbered."""
    atoms_of: list[frozenset[int]] = field(default_factory=list)
    """The keys of `sets`."""
    called: set[str] = field(default_factory=set)
    """Rules whose machines were copied into others; the rest are only jumped to."""
    work: int = 0
    is_exact: bool = True
    """Whether every text of the grammar is a text of the machine."""

    def run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the state after each state and atom (S, A), where texts may end, and the atoms."""
        found = {name: Parts() for name in self.rules}
        ends = {name: parts.add(self.rules[name], 0) for name, parts in found.items()}
        known = dict.fromkeys(one for parts in found.values() for one in parts.sets)
        ranges = [one for one in known if isinstance(one, tuple)]
        atom_of, atoms_of = atoms(ranges)
        self.num_atoms = int(atom_of.max()) + 1
        self.names = list(self.rules)
        symbols = dict(zip(ranges, atoms_of, strict=True)) | {
            name: frozenset([self.num_atoms + number]) for number, name in enumerate(self.names)
        }
        graph = references(self.rules)
        for component in components(graph, START):
            for name in component:
                own = [symbols[one] for one in found[name].sets]
                self.bodies[name] = self.smallest(
                    found[name], ends[name], own, self.num_atoms + len(self.names)
                )
            outside = {one for name in graph if name not in component for one in graph[name]}
            self.solve(component, outside, any(name in graph[name] for name in component))
        machine = self.machines[START]
        return machine.table, machine.accepts, atom_of

    def solve(
        self, component: Sequence[str], outside: Collection[str], refers_to_itself: bool
    ) -> None:
        """Find the machines of rules that contain each other, where `outside` or they call them."""
        nothing = Machine(np.zeros((2, self.num_atoms), np.int32), np.zeros(2, dtype=bool))
        self.machines |= dict.fromkeys(component, nothing)
        if len(component) == 1 and not refers_to_itself:
            self.machines[component[0]] = self.expand(component[0], ())
            return
        level, wanted = 0, component
        while level < MOST_LEVELS and (level == 0 or self.work < MOST_WORK // 2):
            work = self.work
            before = [self.machines[name] for name in wanted]
            try:
                for name in wanted:
                    self.machines[name] = self.expand(name, component)
            except TooLarge:
                if any(one.is_empty for one in before):
                    raise
                self.work = (work + MOST_WORK) // 2  # half of what is left is for the other rules
                self.machines |= dict(zip(wanted, before, strict=True))
                break
            after = [self.machines[name] for name in wanted]
            pairs = list(zip(before, after, strict=True))
            if all(one.equals(other) for one, other in pairs):
                return
            if any(one.is_empty and not other.is_empty for one, other in pairs):
                continue  # not all rules have a text yet
            level += 1
            if max(len(one.table) for one in after) > self.most_states:
                self.machines |= dict(zip(wanted, before, strict=True))
                break
            wanted = [name for name in component if name in self.called or name in outside]
        self.is_exact = False

    def expand(self, name: str, component: Collection[str]) -> Machine:
        """Return a rule's machine, with those of other rules in their places."""
        network = Network(self, component)
        network.parts.skips[0].append(network.places(name)[FIRST])
        for rule in network.rules:  # they grow as rules are jumped to
            network.connect(rule)
        return self.smallest(network.parts, network.end, self.atoms_of, self.num_atoms)

    def smallest(
        self, parts: Parts, end: int, atoms_of: list[frozenset[int]], num_symbols: int
    ) -> Machine:
        """Return the smallest machine that reads what leads from the first place to the end."""
        table, accepts = subsets(
            Walk(parts, end, atoms_of, -1, most_work=4 * MOST_WORK), num_symbols
        )
        classes, num_rounds = equivalent_states(table, accepts)
        self.work += 4 * len(parts.reads) + int(np.count_nonzero(table)) + num_rounds * len(table)
        if self.work > MOST_WORK:
            raise TooLarge(f"{MOST_WORK} steps")
        return smallest(table, accepts, classes)

    def number(self, chars: frozenset[int]) -> int:
        """Return the number of a set of atoms."""
        if chars not in self.sets:
            self.sets[chars] = len(self.atoms_of)
            self.atoms_of.append(chars)
        return self.sets[chars]

    def symbol(self, rule: str) -> int:
        """Return the symbol that stands for a rule in the bodies of others."""
        return self.num_atoms + self.names.index(rule)


@dataclass
class Network:
    """What a rule reads, as places and arrows, with the bodies of those rules that it ends with."""

    unfolding: Unfolding
    component: Collection[str]
    """The rules that contain each other."""
    parts: Parts = field(default_factory=Parts)
    bodies: dict[str, list[int]] = field(default_factory=dict)
    """The places of each rule's states."""
    rules: list[str] = field(default_factory=list)
    """The keys of `bodies`."""

    def __post_init__(self) -> None:
        self.end = self.parts.place()

    def places(self, rule: str) -> list[int]:
        """Return the places of a rule's states."""
        if rule not in self.bodies:
            self.rules.append(rule)
            self.bodies[rule] = [self.parts.place() for _ in self.unfolding.bodies[rule].table]
        return self.bodies[rule]

    def connect(self, rule: str) -> None:
        """Add the arrows between the places of a rule."""
        unfolding, body, places = self.unfolding, self.unfolding.bodies[rule], self.bodies[rule]
        # What begins with itself goes on where it ends: a = a b | c is c b b b ...
        loop = int(body.table[FIRST, unfolding.symbol(rule)])
        if (body.table == FIRST).any():
            loop = DEAD
        calls: dict[tuple[str, int], int] = {}
        for state, place in enumerate(places):
            if body.accepts[state]:
                self.parts.skips[place] += [self.end] if loop == DEAD else [self.end, places[loop]]
            for target, read in body.arrows(state).items():
                chars = [symbol for symbol in read if symbol < unfolding.num_atoms]
                if chars:
                    number = unfolding.number(frozenset(chars))
                    self.parts.reads[place].append((number, places[target]))
                for symbol in read[len(chars) :]:
                    other = unfolding.names[symbol - unfolding.num_atoms]
                    if loop != DEAD and state == FIRST and other == rule:
                        continue
                    is_last = bool(body.accepts[target]) and not body.table[target].any()
                    if is_last and (other == rule or (loop == DEAD and other in self.component)):
                        self.parts.skips[place].append(self.places(other)[FIRST])
                        continue
                    if (other, target) not in calls:
                        calls[other, target] = self.copy(other, places[target])
                    self.parts.skips[place].append(calls[other, target])

    def copy(self, rule: str, end: int) -> int:
        """Add a copy of a rule's machine that ends at a place; return where it begins."""
        machine = self.unfolding.machines[rule]
        self.unfolding.called.add(rule)
        places = [self.parts.place() for _ in machine.table]
        for state, place in enumerate(places):
            if machine.accepts[state]:
                self.parts.skips[place].append(end)
            for target, read in machine.arrows(state).items():
                number = self.unfolding.number(frozenset(read))
                self.parts.reads[place].append((number, places[target]))
        return places[FIRST]


def equivalent_states(table: np.ndarray, accepts: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the class of each state (S,), that of those with the same texts, and the rounds."""
    columns = table[:, table.any(0)]
    # States that differ in how far the end is are not the same; this cuts long chains at once.
    classes = np.where(accepts, 1, 0)
    while (reached := (classes[columns] > 0).any(1) & (classes == 0)).any():
        classes[reached] = classes.max() + 1
    num_classes, num_rounds = 0, int(classes.max()) // 8  # those above were quick
    while int(classes.max()) + 1 > num_classes:
        num_classes, num_rounds = int(classes.max()) + 1, num_rounds + 1
        known: dict[bytes, int] = {}
        rows = np.column_stack((classes, classes[columns])).astype(np.int32)
        classes = np.array([known.setdefault(row.tobytes(), len(known)) for row in rows])
    return classes, num_rounds


def smallest(table: np.ndarray, accepts: np.ndarray, classes: np.ndarray) -> Machine:
    """Return the machine with one state for each class; those with the same texts are equal."""
    number, found = {int(classes[DEAD]): DEAD}, [DEAD, FIRST]
    number.setdefault(int(classes[FIRST]), FIRST)
    for state in found:  # grows as states are found; DEAD leads nowhere else
        for after in dict.fromkeys(table[state].tolist()):
            if int(classes[after]) not in number:
                number[int(classes[after])] = len(found)
                found.append(after)
    renamed = np.zeros(int(classes.max()) + 1, dtype=np.int32)
    renamed[list(number)] = list(number.values())
    return Machine(renamed[classes[table[found]]], accepts[found])


def components(graph: Mapping[str, Sequence[str]], start: str) -> list[list[str]]:
    """Return the rules that a rule leads to, those that contain each other together.

    Who is referred to comes before who refers, as far as there is such an order.
    """
    order = post_order(graph, [start])
    callers: dict[str, list[str]] = {name: [] for name in order}
    for name in order:
        for other in graph[name]:
            callers[other].append(name)
    found: list[list[str]] = []
    seen: set[str] = set()
    for name in reversed(order):
        if name not in seen:
            reached = set(post_order(callers, [name], seen))
            found.append([one for one in order if one in reached])
    return found[::-1]


def post_order(
    graph: Mapping[str, Sequence[str]], roots: Sequence[str], seen: set[str] | None = None
) -> list[str]:
    """Return the names that one comes to, each after those that it leads to; `seen` grows."""
    seen = set() if seen is None else seen
    found: list[str] = []
    stack = [(root, iter(graph[root])) for root in roots]
    seen.update(roots)
    while stack:
        new = next((one for one in stack[-1][1] if one not in seen), None)
        if new is None:
            found.append(stack.pop()[0])
        else:
            seen.add(new)
            stack.append((new, iter(graph[new])))
    return found

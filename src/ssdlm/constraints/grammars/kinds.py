"""A machine of bytes as one of tokens, with tokens that behave alike stored once.

    utf8, token spellings -> [kinds] -> automaton

Between a state and a token of a large vocabulary there are far too many pairs for a table. But most
tokens fit nowhere, and most of the others differ in nothing that the machine can tell: to `[a-z]*`
all words in small letters are one. So tokens come in kinds, and only pairs of a state and a kind
that lead somewhere are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ssdlm.constraints.automaton import DEAD, ByKind
from ssdlm.constraints.grammars.machine import TooLarge
from ssdlm.constraints.grammars.utf8 import ByteMachine

MOST_ARROWS = 1 << 24
"""Pairs of a state and a kind of token that lead somewhere: 128 MB."""
MOST_REMEMBERED = 4096
"""Results of `spread` that are kept."""
NOWHERE = 0
"""The kind of tokens that fit nowhere."""


@dataclass(frozen=True)
class KindTable:
    """The state after each state and token, read like an array (S, V)."""

    kind_of: np.ndarray
    """The kind of each token (V,)."""
    first: np.ndarray
    """Where the arrows of each state begin, and where the last ones end (S + 1,)."""
    kinds: np.ndarray
    """The kind that each arrow reads; those of one state are in order."""
    targets: np.ndarray
    """The state to which each arrow leads."""
    remembered: dict[tuple[bytes, bytes], tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict, repr=False
    )

    @property
    def num_states(self) -> int:
        return len(self.first) - 1

    @cached_property
    def num_kinds(self) -> int:
        return int(self.kind_of.max()) + 1

    @cached_property
    def sources(self) -> np.ndarray:
        """The state from which each arrow leads."""
        return np.repeat(np.arange(self.num_states), np.diff(self.first))

    def __getitem__(self, place: int | tuple[int | slice, int]) -> np.ndarray | int:
        """Return what is after a state and a token, after a state (V,), or after a token (S,)."""
        if not isinstance(place, tuple):
            return self.after_kinds(place)[self.kind_of]
        state, token = place
        if isinstance(state, slice):
            column = np.full(self.num_states, DEAD)
            is_read = self.kinds == self.kind_of[token]
            column[self.sources[is_read]] = self.targets[is_read]
            return column
        begin, end = self.first[state : state + 2]
        found = begin + np.searchsorted(self.kinds[begin:end], self.kind_of[token])
        is_there = found < end and self.kinds[found] == self.kind_of[token]
        return int(self.targets[found]) if is_there else DEAD

    def after_kinds(self, state: int) -> np.ndarray:
        """Return the state after each kind of token (G,)."""
        row = np.full(self.num_kinds, DEAD)
        arrows = slice(*self.first[state : state + 2])
        row[self.kinds[arrows]] = self.targets[arrows]
        return row

    def leading(self, state: int, safe: np.ndarray) -> np.ndarray:
        """Return the tokens (V,) that lead from a state into `safe` (S,)."""
        return safe[self.after_kinds(state)][self.kind_of]

    def states_into(self, safe: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Return the states (S,) from which a token among those allowed (V,) leads into `safe`."""
        is_allowed = np.zeros(self.num_kinds, dtype=bool)
        is_allowed[self.kind_of[allowed]] = True
        found = np.zeros(self.num_states, dtype=bool)
        found[self.sources[is_allowed[self.kinds] & safe[self.targets]]] = True
        return found

    def by_kind(self, max_entries: int) -> ByKind | None:
        """Return the table with a column for each kind of token, None if that is too large."""
        if self.num_states * self.num_kinds > max_entries:
            return None
        next_state = np.full((self.num_states, self.num_kinds), DEAD, dtype=np.int32)
        next_state[self.sources, self.kinds] = self.targets
        return ByKind(self.kind_of, next_state)

    def arrays(self) -> Sequence[np.ndarray]:
        """Return arrays that the table follows from."""
        return [self.kind_of, self.first, self.kinds, self.targets]

    def spread(self, states: np.ndarray, safe: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the kinds (G,) that lead from some states (S,) into `safe`, and where to (S,)."""
        key = states.tobytes(), safe.tobytes()
        if key not in self.remembered:
            if len(self.remembered) == MOST_REMEMBERED:
                self.remembered.clear()
            is_taken = states[self.sources] & safe[self.targets]
            kinds = np.zeros(self.num_kinds, dtype=bool)
            kinds[self.kinds[is_taken]] = True
            reached = np.zeros(self.num_states, dtype=bool)
            reached[self.targets[is_taken]] = True
            self.remembered[key] = kinds, reached
        return self.remembered[key]

    def message(self, weights: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Return for each state (S,) the sum of w(x) a(s') over the kinds x that lead to s'.

        `weights` are those of the kinds (G,), `after` those of the states after them (S,).
        """
        products = weights[self.kinds] * after[self.targets]
        return np.bincount(self.sources, products, minlength=self.num_states)


def read_tokens(
    machine: ByteMachine, spellings: Sequence[bytes], *, never: Collection[int], end_of_text: int
) -> tuple[KindTable, np.ndarray]:
    """Return the table of tokens, and which of its states a text may end in.

    Tokens without a spelling and those in `never` fit nowhere. End-of-text fits where a text may
    end; after it anything does, for it is cut off: the last state, which is never left.
    """
    columns, class_of = byte_classes(machine.table)
    words = {
        token: spelling.translate(class_of)
        for token, spelling in enumerate(spellings)
        if spelling and token not in never and token != end_of_text
    }
    known: dict[tuple[bytes, bytes], int] = {}
    kind_of_word: dict[bytes, int] = {}
    arrows: list[tuple[np.ndarray, np.ndarray]] = []
    size = 0
    for word, sources, targets in walk_words(columns, sorted(set(words.values()))):
        key = sources.tobytes(), targets.tobytes()
        if key not in known:
            known[key] = len(known) + 1
            arrows.append((sources, targets))
            size += len(sources)
            if size > MOST_ARROWS:
                raise TooLarge(f"{MOST_ARROWS} pairs of a state and a kind of token")
        kind_of_word[word] = known[key]
    kind_of = np.full(len(spellings), NOWHERE, dtype=np.int32)
    for token, word in words.items():
        kind_of[token] = kind_of_word.get(word, NOWHERE)
    # One more kind, the end of the text, and one more state, all that is after it.
    end, over = len(arrows) + 1, len(machine.table)
    kind_of[end_of_text] = end
    ends = machine.accepts.nonzero()[0]
    every = np.arange(end + 1)
    lists = [*arrows, (ends, np.full_like(ends, over))]
    sources = np.concatenate([*(one for one, _ in lists), np.full_like(every, over)])
    targets = np.concatenate([*(one for _, one in lists), np.full_like(every, over)])
    kinds = np.concatenate(
        [*(np.full(len(one), kind) for kind, (one, _) in enumerate(lists, start=1)), every]
    )
    accepts = np.append(machine.accepts, True)
    return reachable(kind_of, sources, kinds, targets, accepts)


def byte_classes(table: np.ndarray) -> tuple[np.ndarray, bytes]:
    """Return the different columns of a table of bytes (n, S), and which of them each byte has."""
    known: dict[bytes, int] = {}
    columns = np.ascontiguousarray(table.T)
    numbers = [known.setdefault(column.tobytes(), len(known)) for column in columns]
    kept = [numbers.index(number) for number in range(len(known))]
    return columns[kept], bytes(numbers)


def walk_words(columns: np.ndarray, words: Sequence[bytes]):
    """Yield the words, of classes of bytes, that fit anywhere, with the states before and after.

    They are in order, so that what neighbours begin with is read once.
    """
    everywhere = np.arange(1, columns.shape[1])
    stack, before = [(everywhere, everywhere)], b""
    for word in words:
        shared = 0
        while (
            shared < min(len(word), len(before), len(stack) - 1) and word[shared] == before[shared]
        ):
            shared += 1
        is_cut = len(stack) - 1 < len(before) and before[: len(stack)] == word[: len(stack)]
        if is_cut:  # it begins like one that fits nowhere
            continue
        del stack[shared + 1 :]
        before = word
        for number in word[shared:]:
            sources, states = stack[-1]
            targets = columns[number][states]
            alive = targets != DEAD
            if not alive.any():
                break
            stack.append((sources[alive], targets[alive]))
        else:
            yield word, *stack[-1]


def reachable(
    kind_of: np.ndarray,
    sources: np.ndarray,
    kinds: np.ndarray,
    targets: np.ndarray,
    accepts: np.ndarray,
) -> tuple[KindTable, np.ndarray]:
    """Return the table of those states that tokens lead to from the start, numbered anew."""
    reached = np.zeros(len(accepts), dtype=bool)
    reached[[DEAD, 1]] = True
    while True:
        wider = reached.copy()
        wider[targets[reached[sources]]] = True
        if (wider == reached).all():
            break
        reached = wider
    number = np.cumsum(reached) - 1
    kept = reached[sources]
    sources, kinds, targets = number[sources[kept]], kinds[kept], number[targets[kept]]
    order = np.lexsort((kinds, sources))
    first = np.searchsorted(sources[order], np.arange(reached.sum() + 1))
    table = KindTable(
        kind_of, first, kinds[order].astype(np.int32), targets[order].astype(np.int32)
    )
    return table, accepts[reached]

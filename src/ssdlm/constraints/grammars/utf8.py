"""A machine of characters as one of bytes, since a token may be part of a character.

machine -> [utf8] -> kinds
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ssdlm.constraints.automaton import DEAD
from ssdlm.constraints.grammars.expression import Expression
from ssdlm.constraints.grammars.machine import TooLarge, determinise

MOST_BYTE_STATES = 1 << 16


@dataclass(frozen=True)
class ByteMachine:
    """A machine that reads bytes; state DEAD is never left, state 1 is the start."""

    table: np.ndarray
    """The state after each state and byte (S, 256)."""
    accepts: np.ndarray
    """The states in which a text may end (S,)."""


def byte_machine(expression: Expression) -> ByteMachine:
    """Return the machine that reads the bytes of the texts of an expression."""
    return in_bytes(*determinise(expression))


def in_bytes(table: np.ndarray, accepts: np.ndarray, atom_of: np.ndarray) -> ByteMachine:
    """Return the machine that reads the bytes of the characters that a machine of atoms reads."""
    tree = Utf8Tree.of(atom_of)
    byte_rows = [np.zeros(256, dtype=np.int32) for _ in table]
    known: dict[bytes, int] = {bytes(4 * 64): DEAD}

    def number(rows: np.ndarray) -> np.ndarray:
        """Return the states of characters under way, from those after their next byte (n, 64)."""
        found = np.zeros(len(rows) + 1, dtype=np.int32)  # the last is for bytes that cannot stand
        for index, row in enumerate(rows):
            key = row.tobytes()
            if key not in known:
                if len(byte_rows) == MOST_BYTE_STATES:
                    raise TooLarge(f"{MOST_BYTE_STATES} states")
                known[key] = len(byte_rows)
                byte_rows.append(np.zeros(256, dtype=np.int32))
                byte_rows[-1][0x80:0xC0] = row
            found[index] = known[key]
        return found

    for state, after in enumerate(table):
        row = byte_rows[state]
        row[:0x80] = after[atom_of[:0x80]]
        if after[tree.wide_atoms].any():
            one = number(after[tree.last])
            two = number(one[tree.third])
            three = number(two[tree.second])
            row[0xC0:0xE0], row[0xE0:0xF0], row[0xF0:0xF5] = (
                one[tree.leads_two],
                two[tree.leads_three],
                three[tree.leads_four],
            )
    padded = np.zeros(len(byte_rows), dtype=bool)
    padded[: len(accepts)] = accepts
    return ByteMachine(np.stack(byte_rows), padded)


@dataclass(frozen=True)
class Utf8Tree:
    """How the bytes of a character lead to its atom; alike branches are stored once.

    Every branch has 64 entries, one for each byte that may continue a character; -1 stands for
    none.
    """

    last: np.ndarray
    """The atom after the last byte (n, 64)."""
    third: np.ndarray
    """The branch of `last` after the last byte but one (n, 64)."""
    second: np.ndarray
    """The branch of `third` after the second of four bytes (n, 64)."""
    leads_two: np.ndarray
    """The branch of `last` after each first byte of two, from C0 on."""
    leads_three: np.ndarray
    """The branch of `third` after each first byte of three, from E0 on."""
    leads_four: np.ndarray
    """The branch of `second` after each first byte of four, from F0 on."""
    wide_atoms: np.ndarray
    """The atoms of characters of several bytes."""

    @classmethod
    def of(cls, atom_of: np.ndarray) -> Utf8Tree:
        """Return the tree for the atoms of all code points."""
        last, blocks = distinct(atom_of.reshape(-1, 64))
        blocks_of_three = np.where(np.arange(1024) < 32, -1, blocks[:1024])  # no overlong forms
        blocks_of_four = np.where(np.arange(len(blocks)) < 1024, -1, blocks)
        blocks_of_four = np.append(blocks_of_four, np.full(5 * 4096 - len(blocks), -1))
        rows = np.vstack((blocks_of_three.reshape(-1, 64), blocks_of_four.reshape(-1, 64)))
        third, leads = distinct(rows)
        second, leads_four = distinct(leads[16:].reshape(-1, 64))
        leads_two = np.where(np.arange(32) < 2, -1, blocks[:32])
        wide = np.unique(atom_of[0x80:])
        return cls(last, third, second, leads_two, leads[:16], leads_four, wide)


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different rows, and which of them each row is."""
    known: dict[bytes, int] = {}
    numbers = [known.setdefault(row.tobytes(), len(known)) for row in np.ascontiguousarray(rows)]
    kept = np.array([numbers.index(number) for number in range(len(known))])
    return rows[kept], np.array(numbers)


def intersection(one: ByteMachine, other: ByteMachine) -> ByteMachine:
    """Return the machine of the texts that two machines accept."""
    known = {(DEAD, DEAD): DEAD, (1, 1): 1}
    pairs, rows = [(1, 1)], [np.zeros(256, dtype=np.int32)]
    for first, second in pairs:  # grows as pairs are found
        after = np.stack((one.table[first], other.table[second]), 1)
        after[(after == DEAD).any(1)] = DEAD
        row = np.empty(256, dtype=np.int32)
        for byte, pair in enumerate(map(tuple, after.tolist())):
            if pair not in known:
                if len(known) == MOST_BYTE_STATES:
                    raise TooLarge(f"{MOST_BYTE_STATES} states")
                known[pair] = len(known)
                pairs.append(pair)
            row[byte] = known[pair]
        rows.append(row)
    accepts = [False] + [bool(one.accepts[a] and other.accepts[b]) for a, b in pairs]
    return ByteMachine(np.stack(rows), np.array(accepts))

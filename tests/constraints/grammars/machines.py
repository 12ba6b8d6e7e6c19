"""Reading and writing with machines of bytes, for the tests of grammars."""

from __future__ import annotations

import random

import numpy as np

from ssdlm.constraints.grammars.utf8 import ByteMachine


def accepts(machine: ByteMachine, text: str) -> bool:
    """Whether a machine accepts a text."""
    state = 1
    for byte in text.encode():
        state = machine.table[state, byte]
    return bool(machine.accepts[state])


def distances(machine: ByteMachine) -> np.ndarray:
    """The bytes from each state to the nearest end of a text."""
    far = len(machine.table) + 1
    distance = np.where(machine.accepts, 0, far)
    while True:
        nearer = np.minimum(distance, distance[machine.table].min(1) + 1)
        nearer[0] = far
        if (nearer == distance).all():
            return distance
        distance = nearer


def random_texts(machine: ByteMachine, rng: random.Random, size: int = 60) -> list[str]:
    """Texts that a machine accepts, not much longer than `size` bytes."""
    distance = distances(machine)
    return [random_text(machine, distance, rng, size) for _ in range(60)]


def random_text(machine: ByteMachine, distance: np.ndarray, rng: random.Random, size: int) -> str:
    """One of them, given how far each state is from an end."""
    state, text = 1, bytearray()
    while not (machine.accepts[state] and (len(text) >= size or rng.random() < 0.1)):
        row = machine.table[state]
        ways = row.nonzero()[0]
        if not len(ways):
            break
        if len(text) + distance[state] >= size:
            ways = ways[distance[row[ways]] == distance[row[ways]].min()]
        plain = ways[ways < 0x80]  # else half of all characters would be of four bytes
        if len(plain) and rng.random() < 0.9:
            ways = plain
        text.append(int(rng.choice(ways)))
        state = row[text[-1]]
    return text.decode()

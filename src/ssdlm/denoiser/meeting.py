"""Loops that meet where they ask the network, so that one pass answers all of them.

    loop of one text --+
    loop of one text --+--> [meeting]: what they ask alike is answered together --> and on they go
    loop of one text --+

A loop runs until it asks something or has done a step. On a CPU a matrix is read from memory once
for all who ask, which is most of what a pass costs. Each loop is the plain one, and knows nothing
of the others. Without the package greenlet every loop goes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch

try:
    from greenlet import getcurrent, greenlet
except ImportError:  # a machine without it writes the same texts, one by one
    getcurrent, greenlet = None, object

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
CAN_MEET = getcurrent is not None
"""Whether loops can wait for each other here."""


class Question(NamedTuple):
    """What a loop wants to know: a function from many arguments to as many results, and its own."""

    answer: Callable[[list[Any]], list[Any]]
    about: Any


class Loop(greenlet, Generic[T]):
    """Something that is done step by step, and may ask on the way."""

    def __init__(self, steps: Iterator[T]) -> None:
        super().__init__()
        self.steps = steps

    def run(self) -> None:
        try:
            for step in self.steps:
                self.parent.switch(step)
        finally:
            del self.steps  # what it holds is let go, also of a loop that was given up


def meet(answer: Callable[[list[A]], list[R]], about: A) -> R:
    """Return `answer([about])[0]`; loops that wait with the same question are answered together."""
    if getcurrent is None or not isinstance(here := getcurrent(), Loop):
        return answer([about])[0]
    is_recorded = torch.is_grad_enabled()
    found = here.parent.switch(Question(answer, about))
    torch.set_grad_enabled(is_recorded)  # others were at work in between
    return found


def next_steps(loops: Sequence[Loop[T]]) -> list[T]:
    """Let every loop do its next step, and return the steps."""
    is_recorded, done = torch.is_grad_enabled(), dict[Loop[T], T]()
    for loop in loops:
        loop.parent = getcurrent()
    said: list[tuple[Loop[T], Any]] = [(loop, loop.switch()) for loop in loops]
    while said:
        asked: dict[Callable[..., Any], list[tuple[Loop[T], Any]]] = {}
        for loop, word in said:
            if isinstance(word, Question):
                asked.setdefault(word.answer, []).append((loop, word.about))
            else:
                done[loop] = word
        said = []
        for answer, who in asked.items():
            with torch.no_grad():
                found = answer([about for _, about in who])
            said += [(loop, loop.switch(one)) for (loop, _), one in zip(who, found, strict=True)]
    torch.set_grad_enabled(is_recorded)
    return [done[loop] for loop in loops]

"""Loops that meet where they ask the network, so that one pass answers all of them.

    loop of one text --+
    loop of one text --+--> [meeting]: what they ask alike is answered together --> and on they go
    loop of one text --+

A loop runs until it asks something or has done a step. On a CPU a matrix is read from memory once
for all who ask, which is most of what a pass costs. Each loop is the plain one, and knows nothing
of the others. Without the package greenlet every loop goes alone.

Code of others is asked for, too, and not called within a loop: where torch throws, it walks down
the whole stack, and below a loop there is by then the stack of whoever let it go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch

try:
    import greenlet
except ImportError:  # a machine without it writes the same texts, one by one
    greenlets: Any = None
else:
    greenlets = greenlet

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
CAN_MEET = greenlets is not None
"""Whether loops can wait for each other here."""


class Question(NamedTuple):
    """What a loop wants to know: a function from many arguments to as many results, and its own."""

    answer: Callable[[list[Any]], list[Any]]
    about: Any


class Loop(Generic[T]):
    """Something that is done step by step, and may ask on the way."""

    def __init__(self, steps: Iterator[T]) -> None:
        self.steps = steps
        self.greenlet = greenlets.greenlet(self.work)
        self.greenlet.is_loop = True

    def work(self, word: object) -> None:
        del word  # nothing was asked yet
        try:
            for step in self.steps:
                self.greenlet.parent.switch(step)
        finally:
            del self.steps  # what it holds is let go, also of a loop that was given up

    def go_on(self, word: object = None) -> Any:
        """Run with an answer to its question, if it had one; return its next question or step."""
        return self.greenlet.switch(word)

    def give_up(self) -> None:
        """End it where it is."""
        self.greenlet.throw()


def meet(answer: Callable[[list[A]], list[R]], about: A) -> R:
    """Return `answer([about])[0]`; loops that wait with the same question are answered together."""
    here = greenlets and greenlets.getcurrent()
    if not getattr(here, "is_loop", False):
        return answer([about])[0]
    is_recorded = torch.is_grad_enabled()
    found = here.parent.switch(Question(answer, about))
    torch.set_grad_enabled(is_recorded)  # others were at work in between
    return found


def next_steps(loops: Sequence[Loop[T]]) -> list[T]:
    """Let every loop do its next step, and return the steps; one that has ended has none."""
    with torch.set_grad_enabled(torch.is_grad_enabled()):  # whatever loops leave behind
        for loop in loops:
            loop.greenlet.parent = greenlets.getcurrent()
        done = answered(loops)
    return [done[loop] for loop in loops if loop in done]


def answered(loops: Sequence[Loop[T]]) -> dict[Loop[T], T]:
    """Answer loops until each has done a step or ended; return the steps."""
    said, done = [(loop, loop.go_on()) for loop in loops], dict[Loop[T], T]()
    while said:
        asked: dict[Callable[..., Any], list[tuple[Loop[T], Any]]] = {}
        for loop, word in said:
            if isinstance(word, Question):
                asked.setdefault(word.answer, []).append((loop, word.about))
            elif not loop.greenlet.dead:
                done[loop] = word
        said = []
        for answer, who in asked.items():
            with torch.no_grad():
                found = answer([about for _, about in who])
            said += [(loop, loop.go_on(one)) for (loop, _), one in zip(who, found, strict=True)]
    return done

"""Which of several texts is kept: the likeliest, as the context stream rates them.

requests -> [choosing] -> plain, server. With `best_of` texts of one length compete; with `gap`
those of several lengths, rated by the mean over gap and suffix, since a sum prefers short gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ssdlm.engine.requests import Generation, Request

Rate = Callable[[Request, Generation], float]
"""From a text to its mean -log p."""


class Rated(NamedTuple):
    """A text that competes with others."""

    nll: float
    request: Request
    text: Generation


def by_length(request: Request) -> list[Request]:
    """Return the request for each length that is tried."""
    options = request.options
    if options.gap is None:
        return [request]
    return [replace(request, options=options.change(length=one)) for one in options.lengths]


def kept(
    rate: Rate, texts: Iterable[tuple[Request, Generation]]
) -> Iterator[tuple[Request, Generation]]:
    """Yield the texts that were asked for, each as soon as all that compete for it are there."""
    waiting: dict[int, list[Rated]] = {}
    for request, text in texts:
        if request.num_candidates == 1:
            yield request, text
            continue
        group = waiting.setdefault(request.number, [])
        group.append(Rated(rate(request, text), request, text))
        if len(group) == request.num_candidates:
            yield likeliest(waiting.pop(request.number))


def likeliest(group: Sequence[Rated]) -> tuple[Request, Generation]:
    """Return the best of those that compete for one text, with what all of them took."""
    best = min(group, key=lambda rated: rated.nll)
    texts = [rated.text for rated in group]
    passes = sum(text.passes_per_token * max(1, len(text.tokens)) + 1 for text in texts)
    return best.request, replace(
        best.text,
        sample=best.text.sample // best.request.options.best_of,
        calls=sum(text.calls + 1 for text in texts),
        passes_per_token=passes / max(1, len(best.text.tokens)),
    )

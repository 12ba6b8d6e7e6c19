"""Which of several texts is kept: the likeliest, as the context stream rates them.

requests -> [choosing] -> plain, server. With `best_of` texts of one length compete; with `gap`
those of several lengths, rated by the mean over gap and suffix, since a sum prefers short gaps.

Where an adapter fills a gap, a token of the gap counts a quarter of one behind it: the likeliest
words are seldom those that what follows needs. A text that doubles a word at an edge comes last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from ssdlm.engine.requests import Generation, Request
from ssdlm.shapes import Tensor
from ssdlm.tokenizer import Tokenizer

Candidate = tuple[Request, Generation]
GAP_SHARE = 0.25
"""What a token of a gap counts, where one behind it counts 1."""
DOUBLED = 1e6
"""Nats for a doubled word: more than any text has."""
NEAR = 64
"""Characters on each side of an edge, or tokens, in which its words are looked for."""
WORD = re.compile(r"[^\W\d_]+")
Rate = Callable[[Sequence[Candidate]], Sequence[float]]
"""From texts of one prompt to what each is worth, the lower the better."""


def by_length(request: Request) -> list[Request]:
    """Return the request for each length that is tried."""
    options = request.options
    if options.gap is None:
        return [request]
    return [replace(request, options=options.change(length=one)) for one in options.lengths]


def kept(rate: Rate, texts: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the texts that were asked for, each as soon as all that compete for it are there."""
    waiting: dict[int, list[Candidate]] = {}
    for request, text in texts:
        if request.num_candidates == 1:
            yield request, text
            continue
        group = waiting.setdefault(request.number, [])
        group.append((request, text))
        if len(group) == request.num_candidates:
            yield likeliest(rate, waiting.pop(request.number))


def likeliest(rate: Rate, group: Sequence[Candidate]) -> Candidate:
    """Return the best of those that compete for one text, with what all of them took."""
    nll = rate(group)
    request, best = group[min(range(len(group)), key=nll.__getitem__)]
    texts = [text for _, text in group]
    passes = sum(text.passes_per_token * max(1, len(text.tokens)) + 1 for text in texts)
    return request, replace(
        best,
        sample=best.sample // request.options.best_of,
        calls=sum(text.calls + 1 for text in texts),
        passes_per_token=passes / max(1, len(best.tokens)),
    )


def join_nll(tokenizer: Tokenizer, request: Request, text: Generation, nll: Tensor) -> float:
    """Return how ill a text fills its gap, of -log p of each of its tokens."""
    count = request.options.length
    weights = torch.ones_like(nll)
    weights[:count] = GAP_SHARE
    left, before = tokenizer.decode(request.context[-NEAR:]), request.context
    edges = (0, len(tokenizer.decode_after(before, text.tokens[:count])))
    is_doubled = any(doubles_word(left + text.text, len(left) + edge) for edge in edges)
    return ((weights * nll).sum() / weights.sum()).item() + DOUBLED * is_doubled


def doubles_word(text: str, edge: int) -> bool:
    """Tell whether the same word stands before and behind a place, with nothing but spaces."""
    found = list(WORD.finditer(text, max(0, edge - NEAR), edge + NEAR))
    before = [one for one in found if one.end() <= edge][-1:]
    after = [one for one in found if one.start() >= edge][:1]
    return any(
        one[0].lower() == other[0].lower() and text[one.end() : other.start()].isspace()
        for one in before
        for other in after
    )

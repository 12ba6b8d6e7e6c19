"""Where a text ends: at its end-of-text token, before a stop string, after a whole sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ssdlm.engine.requests import Request
from ssdlm.options import GenerateOptions
from ssdlm.tokenizer import HALF, Tokenizer


def unwritten(options: GenerateOptions, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Return the tokens that a text may not have: its end, where it is to be as long as asked."""
    if tokenizer is None or stops_at_end(options) or not options.never_end:
        return ()
    return tokenizer.ends


def stops_at_end(options: GenerateOptions) -> bool:
    """Tell whether a text is over at its end-of-text token; with a grammar it always is."""
    return options.stop_at_end or options.has_grammar


def end_token(options: GenerateOptions, tokenizer: Tokenizer | None) -> int | None:
    """Return the token at which a text is over, None where there is none."""
    return tokenizer.end_of_text if tokenizer and stops_at_end(options) else None


class Ended(NamedTuple):
    """A text as its reader gets it."""

    tokens: list[int]
    text: str
    is_over: bool
    """Whether nothing that is written later can change it."""


def text_of(tokenizer: Tokenizer | None, tokens: Sequence[int], context: Sequence[int] = ()) -> str:
    """Return what token ids add to a context; without a tokenizer, the ids themselves."""
    if tokenizer is None:
        return " ".join(map(str, tokens))
    return tokenizer.decode_after(context, tokens)


def ends_of(
    tokenizer: Tokenizer | None,
    context: Sequence[int],
    tokens: Sequence[int],
    whole: str,
    known: Sequence[int] = (),
) -> list[int]:
    """Return where each token's text ends within the whole one; those of the first are known.

    Half a character belongs to the token that completes it.
    """
    ends = list(known)
    for place in range(len(known), len(tokens)):
        before = text_of(tokenizer, tokens[: place + 1], context).rstrip(HALF)
        ends.append(min(len(before), len(whole)))
    return ends


def whole_text(tokenizer: Tokenizer | None, request: Request, tokens: Sequence[int]) -> str:
    """Return a text without a last character that is not whole; where a grammar holds, all are."""
    text = text_of(tokenizer, tokens, request.context)
    return text if request.options.has_grammar else text.rstrip(HALF)


def end(tokenizer: Tokenizer | None, request: Request, tokens: list[int]) -> Ended:
    """Return a text, whole or so far, cut where its request says."""
    options = request.options
    is_over = len(tokens) == sum(request.blocks())
    ends = tokenizer.ends if tokenizer and stops_at_end(options) else ()
    last = min((tokens.index(one) for one in ends if one in tokens), default=None)
    if last is not None:
        tokens, is_over = tokens[:last], True
    text = whole_text(tokenizer, request, tokens)
    found = [text.find(string) for string in options.stop if string in text]
    if found and tokenizer:
        text, is_over = text[: min(found)], True
        tokens = tokens[: count_within(tokenizer, request, tokens, len(text))]
    sentences = request.placement.constraint.automaton.sentences if request.placement else None
    if sentences and is_over:
        tokens = tokens[: sentences.cut(tokens)]
        text = whole_text(tokenizer, request, tokens)
    return Ended(tokens, text, is_over)


def count_within(tokenizer: Tokenizer, request: Request, tokens: list[int], length: int) -> int:
    """Return how many tokens are within a text's first `length` characters."""
    low, high = 0, len(tokens)
    while low < high:  # more tokens never make a shorter text
        middle = (low + high + 1) // 2
        if len(tokenizer.decode_after(request.context, tokens[:middle])) <= length:
            low = middle
        else:
            high = middle - 1
    return low


def num_certain(tokenizer: Tokenizer | None, request: Request, tokens: list[int]) -> int:
    """Return how many decided tokens are sure to be in the text, whatever comes after them."""
    ended = end(tokenizer, request, tokens)
    if ended.is_over:
        return len(ended.tokens)
    if request.options.end_at_sentence:
        return 0  # the last end of a sentence is known when the text is whole
    if not request.options.stop or tokenizer is None:
        return len(tokens)
    whole = ended.text.rstrip(HALF)  # a character on its way may be a stop string's
    held = max(overlap(whole, string) for string in request.options.stop)
    return count_within(tokenizer, request, tokens, len(whole) - held)


def overlap(text: str, string: str) -> int:
    """Return how much of a string's beginning a text ends with."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)

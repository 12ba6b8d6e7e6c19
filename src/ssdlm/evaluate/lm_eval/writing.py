"""Texts that end where a task says, written block by block.  scoring -> [writing] -> adapter"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ssdlm.evaluate.lm_eval.scoring import Scorer

DEFAULT_LENGTH = 256
"""Tokens written where a task does not say, as in lm_eval."""


@dataclass
class Wish:
    """A text that a task wants written."""

    context: list[int]
    until: list[str]
    left: int
    """Tokens that may still be written."""
    tokens: list[int]
    is_done: bool = False


def wish_of(scorer: Scorer, context: str, options: dict[str, Any]) -> Wish:
    """Return what a request asks for."""
    until = options.get("until") or []
    until = [until] if isinstance(until, str) else list(until)
    length = int(options.get("max_gen_toks") or DEFAULT_LENGTH)
    ids = scorer.tokenizer.encode(context) or [scorer.tokenizer.end_of_text]
    return Wish(ids, until, length, [])


def decoding_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the projection that a request's sampling options stand for; 0 degrees are greedy."""
    temperature = float(options.get("temperature") or 0.0)
    if not options.get("do_sample", temperature > 0):
        return {"projection": "greedy", "top_p": 0.0}
    if temperature not in (0.0, 1.0):
        raise ValueError(
            f"temperature={temperature} is not to be had here; use 0 or 1, and top_p below 1"
        )
    top_p = options.get("top_p")
    return {"projection": "sampling"} | ({} if top_p is None else {"top_p": float(top_p)})


def write(scorer: Scorer, wishes: Sequence[Wish], **options: Any) -> Iterator[Wish]:
    """Write wishes block by block, yielding each when it is done."""
    waiting = list(wishes)
    while waiting:
        length = min(scorer.B, waiting[0].left)
        now = [wish for wish in waiting if min(scorer.B, wish.left) == length]
        prompts = [wish.context + wish.tokens for wish in now]
        asked = {"length": length, "B": length, "seed": scorer.seed} | options
        texts = scorer.model.generate(prompts, batch_size=scorer.batch_size, **asked)
        for wish, text in zip(now, texts, strict=True):
            wish.tokens += text.tokens
            wish.left -= length
            wish.is_done = wish.left == 0 or has_ended(scorer, wish)
        yield from (wish for wish in now if wish.is_done)
        waiting = [wish for wish in waiting if not wish.is_done]


def has_ended(scorer: Scorer, wish: Wish) -> bool:
    """Say whether a text holds what ends it."""
    text = text_of(scorer, wish)
    return scorer.tokenizer.end_of_text in wish.tokens or any(stop in text for stop in wish.until)


def text_of(scorer: Scorer, wish: Wish) -> str:
    """Return what was written, up to the end-of-text token."""
    end, tokens = scorer.tokenizer.end_of_text, wish.tokens
    tokens = tokens[: tokens.index(end)] if end in tokens else tokens
    return scorer.tokenizer.decode_after(wish.context, tokens)


def cut(text: str, until: Sequence[str]) -> str:
    """Return a text up to the first of the strings that end it."""
    places = [text.find(stop) for stop in until if stop and stop in text]
    return text[: min(places, default=len(text))]

"""Texts that end where a task says, written block by block.  scoring -> [writing] -> adapter"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ssdlm.evaluate.lm_eval.scoring import Scorer

DEFAULT_LENGTH = 256
"""Tokens written where a task does not say, as in lm_eval."""


@dataclass
class UntilRequest:
    """A text that a task asks for, and what has been written of it."""

    context: list[int]
    until: list[str]
    left: int
    """Tokens that may still be written."""
    tokens: list[int]
    is_done: bool = False


def until_request(scorer: Scorer, context: str, options: dict[str, Any]) -> UntilRequest:
    """Return a task's context and options as a request."""
    until = options.get("until") or []
    until = [until] if isinstance(until, str) else list(until)
    length = int(options.get("max_gen_toks") or DEFAULT_LENGTH)
    return UntilRequest(list(scorer.model.context(context)), until, length, [])


def decoding_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the projection that a task's sampling options mean; temperature 0 is greedy."""
    temperature = float(options.get("temperature") or 0.0)
    if not options.get("do_sample", temperature > 0):
        return {"projection": "greedy", "top_p": 0.0}
    if temperature not in (0.0, 1.0):
        raise ValueError(
            f"temperature={temperature} is not supported; use 0 or 1, and top_p below 1"
        )
    top_p = options.get("top_p")
    drawn = {"projection": "sampling", "temperature": 1.0}
    return drawn | ({} if top_p is None else {"top_p": float(top_p)})


def write(
    scorer: Scorer, requests: Sequence[UntilRequest], **options: Any
) -> Iterator[UntilRequest]:
    """Continue requests block by block, yielding each when it is done."""
    waiting = list(requests)
    while waiting:
        length = min(scorer.B, waiting[0].left)
        now = [request for request in waiting if min(scorer.B, request.left) == length]
        prompts = [request.context + request.tokens for request in now]
        # A causal language model has no blocks.
        block = {"B": length} if scorer.model.denoiser.most_open is None else {}
        chosen = scorer.model.options.change(
            length=length, seed=scorer.seed, batch_size=scorer.batch_size, **block, **options
        )
        texts = scorer.model.generate(prompts, options=chosen)
        for request, text in zip(now, texts, strict=True):
            request.tokens += text.tokens
            request.left -= length
            is_over = request.left == 0 or text.finish_reason == "stop"
            request.is_done = is_over or has_ended(scorer, request)
        yield from (request for request in now if request.is_done)
        waiting = [request for request in waiting if not request.is_done]


def has_ended(scorer: Scorer, request: UntilRequest) -> bool:
    """Tell whether a text contains what ends it."""
    text = text_of(scorer, request)
    return scorer.tokenizer.end_of_text in request.tokens or any(
        stop in text for stop in request.until
    )


def text_of(scorer: Scorer, request: UntilRequest) -> str:
    """Return what was written, up to the end-of-text token."""
    end, tokens = scorer.tokenizer.end_of_text, request.tokens
    tokens = tokens[: tokens.index(end)] if end in tokens else tokens
    return scorer.tokenizer.decode_after(request.context, tokens)


def cut(text: str, until: Sequence[str]) -> str:
    """Return a text up to the first of the strings that end it."""
    places = [text.find(stop) for stop in until if stop and stop in text]
    return text[: min(places, default=len(text))]

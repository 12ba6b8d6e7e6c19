"""How likely texts are that somebody else wrote.  diffusion.likelihood -> [scoring] -> api"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ReferenceType

import torch

from ssdlm.diffusion.likelihood import next_token_nll
from ssdlm.engine.chains import check_stream
from ssdlm.engine.ending import ends_of, text_of
from ssdlm.engine.plain import Engine, Prompt
from ssdlm.engine.requests import Generation
from ssdlm.engine.showing import MOST_PIECES, Piece

MOST_AT_ONCE = 4096
"""Tokens that a model without a limit rates in one pass, with logits for each of them."""


@dataclass(frozen=True)
class Score:
    """What the context stream, or a language model, makes of a text."""

    text: str
    tokens: list[int]
    logprobs: list[float | None]
    """Of each token after those before it; None for one with nothing before it."""

    @property
    def known(self) -> list[float]:
        """The log-probabilities that there are."""
        return [one for one in self.logprobs if one is not None]

    @property
    def logprob(self) -> float:
        """The logarithm of the probability of the whole text."""
        return math.fsum(self.known)

    @property
    def perplexity(self) -> float:
        """exp of the mean -log p of a token."""
        return math.exp(-self.logprob / len(self.known)) if self.known else math.nan


def score(engine: Engine, text: Prompt, prompt: Prompt = "") -> Score:
    """Rate a text that goes on from a prompt; an empty prompt begins as the tokenizer says."""
    check_stream(engine.denoiser, "score", "rates texts; use another model")
    context, tokens = engine.context(prompt), tokens_of(engine, text)
    room, count = engine.denoiser.max_len or MOST_AT_ONCE, len(context) + len(tokens)
    if count > room:
        raise ValueError(f"{count} tokens are more than are read at once ({room}); rate a part")
    whole = torch.tensor([[*context, *tokens]], device=engine.device)
    found = (-next_token_nll(engine.chains.denoiser, whole))[0].tolist() if count > 1 else []
    logprobs = [None, *found] if not context and tokens else found[len(context) - 1 :]
    shown = str(text) if isinstance(text, str) else text_of(engine.tokenizer, tokens, context)
    return Score(shown, list(tokens), logprobs if tokens else [])


def tokens_of(engine: Engine, text: Prompt) -> Sequence[int]:
    """Return a text's ids, without what begins a prompt."""
    if isinstance(text, str) and engine.tokenizer is not None:
        engine.context(text, "text")  # refuses what is no text
        return engine.tokenizer.encode(text)
    return engine.context(text, "text")


def pieces_of(
    owner: ReferenceType[Engine], context: Sequence[int], text: Generation
) -> list[Piece]:
    """Return what each token adds to a text, and how likely it is where the model can tell."""
    engine, tokens, whole = owner(), text.tokens[:MOST_PIECES], text.text
    if engine is None:
        return [Piece(whole)]
    ends = ends_of(engine.tokenizer, context, tokens, whole)
    try:
        logprobs = score(engine, tokens, context).logprobs
    except ValueError:  # no context stream, or a text that is too long for it
        logprobs = [None] * len(tokens)
    found = zip([0, *ends], ends, logprobs, strict=False)
    pieces = [Piece(whole[a:b], None if log is None else math.exp(log)) for a, b, log in found]
    return [*pieces, Piece(whole[ends[-1] if ends else 0 :])]

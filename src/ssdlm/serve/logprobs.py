"""What the context stream makes of each token of a text, in the form of OpenAI's `logprobs`.

likelihood -> [logprobs] -> completions. Runs in the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ssdlm.engine.ending import text_of
from ssdlm.engine.plain import Engine

LEAST = -9999.0
"""What stands for the logarithm of nothing: JSON has no infinity."""
NEAR = 8
"""Tokens before one that may matter for how it is spelled."""


@torch.no_grad()
def logprobs_of(
    engine: Engine, context: Sequence[int], tokens: Sequence[int], *, top: int, has_echo: bool
) -> dict[str, Any]:
    """Return the log-probability of each token after those before it, and of the `top` likeliest.

    With `has_echo` the context's tokens count too. A first token has nothing before it, and none.
    """
    ids = [*context, *tokens]
    first = 0 if has_echo else len(context)
    spelled = spellings(engine, ids)
    offset = sum(map(len, spelled[:first]))
    found: dict[str, Any] = {
        "tokens": spelled[first:],
        "token_logprobs": [None] * min(1, len(ids) - first) if first == 0 else [],
        "top_logprobs": [None] * min(1, len(ids) - first) if first == 0 else [],
        "text_offset": [],
    }
    for text in spelled[first:]:
        found["text_offset"].append(offset)
        offset += len(text)
    start = max(1, first)
    if len(ids) > start:
        whole = torch.tensor([ids], device=engine.device)
        denoiser = engine.chains.denoiser
        logits = denoiser.next_logits(denoiser.prefill(whole[:, :0]), whole[:, :-1])
        logs = logits[0, start - 1 :].float().log_softmax(-1).clamp(min=LEAST)
        own = logs.gather(-1, whole[0, start:].unsqueeze(-1))[:, 0]
        found["token_logprobs"] += own.tolist()
        best = logs.topk(min(top, logs.shape[-1]))
        for values, indices in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            names = [text_of(engine.tokenizer, [index]) for index in indices]
            found["top_logprobs"].append(dict(zip(names, values, strict=True)))
    if top == 0:
        found["top_logprobs"] = None
    return found


def spellings(engine: Engine, ids: Sequence[int]) -> list[str]:
    """Return what each token adds to the text of those before it."""
    spelled = []
    for index in range(len(ids)):
        near = list(ids[max(0, index - NEAR) : index])
        before, after = (text_of(engine.tokenizer, part) for part in (near, [*near, ids[index]]))
        spelled.append(after[len(before) :])
    return spelled

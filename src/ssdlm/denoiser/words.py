"""Networks that read words, and what they keep of a context.  [words] -> causal, slots"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ssdlm.denoiser import DenoiserModule, RowDenoiser
from ssdlm.shapes import Block, Context, Simplex, Tensor


@dataclass(frozen=True)
class WordCache:
    """A context, what the network keeps of it, and the logits (N, V) of what comes next."""

    context: Context
    past: Any = None
    logits: Tensor | None = None
    blank: Any = None
    """What a noisy position without evidence reads."""


class WordReader(DenoiserModule, RowDenoiser):
    """A network with a context stream; a subclass has `run_words`."""

    def run_words(self, tokens: Block, past: Any, num_read: int) -> tuple[Tensor, Any]:
        """Return the logits (N, num_read, V) after the last of some words, and what is kept."""
        raise NotImplementedError

    def prefill(self, context: Context) -> WordCache:
        return self.extend(WordCache(context[:, :0]), context)

    def extend(self, cache: WordCache, block: Block) -> WordCache:
        return self.read_next(cache, block)[1] if block.shape[1] else cache

    def read_next(self, cache: WordCache, tokens: Block) -> tuple[Tensor, WordCache]:
        """Return the logits (N, V) for the token after some new ones, and the longer cache."""
        logits, past = self.run_words(tokens, cache.past, 1)
        context = torch.cat((cache.context, tokens), 1)
        return logits[:, -1], replace(cache, context=context, past=past, logits=logits[:, -1])

    def next_logits(self, cache: WordCache, block: Block) -> Simplex:
        """Return the logits for the token after each token of a block."""
        return self.run_words(block, cache.past, block.shape[1])[0]

"""A causal language model as a denoiser with one open position: the one after its last word.

    words -> network -> next-token logits + ell -> logits

An open position without evidence starts from the word before it, at that word's place. Where all
before it is certain and nothing comes after it, its row is the last word's, and its evidence is
what its state says by itself. So no training is needed, and noise alone gives the model's own text.
[causal] -> llama, on layers of ours; foreign, by transformers
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ssdlm.denoiser import DenoiserModule, RowDenoiser
from ssdlm.shapes import Block, Context, Simplex, Tensor


@dataclass(frozen=True)
class CausalCache:
    """A context, what the network keeps of it, and the logits (N, V) of what comes next."""

    context: Context
    past: Any
    logits: Tensor | None


class CausalDenoiser(DenoiserModule, RowDenoiser):
    """logits_theta of Eq. 13 as next-token logits + ell; a subclass has `run_words`."""

    K = 5.0
    most_open = 1
    num_given = 1
    has_evidence = True

    def run_words(self, tokens: Block, past: Any, num_read: int) -> tuple[Tensor, Any]:
        """Return the logits (N, num_read, V) after the last of some words, and what is kept."""
        raise NotImplementedError

    def prefill(self, context: Context) -> CausalCache:
        return self.extend(CausalCache(context[:, :0], None, None), context)

    def extend(self, cache: CausalCache, block: Block) -> CausalCache:
        return self.read_next(cache, block)[1] if block.shape[1] else cache

    def read_next(self, cache: CausalCache, tokens: Block) -> tuple[Tensor, CausalCache]:
        """Return the logits (N, V) for the token after some new ones, and the longer cache."""
        logits, past = self.run_words(tokens, cache.past, 1)
        context = torch.cat((cache.context, tokens), 1)
        return logits[:, -1], CausalCache(context, past, logits[:, -1])

    def next_logits(self, cache: CausalCache, block: Block) -> Simplex:
        """Return the logits for the token after each token of a block."""
        return self.run_words(block, cache.past, block.shape[1])[0]

    def denoise(
        self, cache: CausalCache, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        del previous
        if w_t.shape[1] != 1 or cache.logits is None:
            raise ValueError(
                f"{w_t.shape[1]} open positions after {cache.context.shape[1]} words: a causal "
                "language model denoises the one after its last word; more need an adapter"
            )
        return cache.logits.unsqueeze(1) + self.evidence(w_t, progress)

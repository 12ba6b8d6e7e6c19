"""A causal language model as a denoiser with one open position: the one after its last word.

    words -> network -> next-token logits + ell -> logits

An open position without evidence starts from the word before it, at that word's place. Where all
before it is certain and nothing comes after it, its row is the last word's, and its evidence is
what its state says by itself. So no training is needed, and noise alone gives the model's own text.
words -> [causal] -> llama, on layers of ours; foreign, by transformers
"""

from __future__ import annotations

from ssdlm.denoiser.words import WordCache, WordReader
from ssdlm.shapes import Simplex, Tensor


class CausalDenoiser(WordReader):
    """logits_theta of Eq. 13 as next-token logits + ell; a subclass has `run_words`."""

    K = 5.0
    most_open = 1
    num_given = 1
    has_evidence = True

    def denoise(
        self, cache: WordCache, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        del previous
        if w_t.shape[1] != 1 or cache.logits is None:
            raise ValueError(
                f"{w_t.shape[1]} open positions after {cache.context.shape[1]} words: a causal "
                "language model denoises the one after its last word; more need an adapter"
            )
        return cache.logits.unsqueeze(1) + self.evidence(w_t, progress)

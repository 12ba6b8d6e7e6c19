"""How varied the continuations are: distinct n-grams, Zipf's coefficient, repetition, entropy.

samples -> [diversity] -> run

Each measure is first reduced to a few numbers a prompt, so that a bootstrap over prompts only has
to weigh them again: every `of` takes the number of times each prompt counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssdlm.evaluate.samples import Pool, Sample

ZIPF_RANKS = 5000
"""Only the most frequent token ids enter the fit of Zipf's coefficient."""

LONGEST_PHRASE = 90
"""Repeated endings are looked for up to this many tokens."""

GPT2_END = 50256
"""The authors drop one trailing id equal to GPT-2's end of text before looking for repetition."""


@dataclass(frozen=True)
class PromptMean:
    """A number for each prompt, or for each of its samples, averaged."""

    total: np.ndarray
    count: np.ndarray

    def of(self, weights: np.ndarray) -> float:
        return float(weights @ self.total / (weights @ self.count))


@dataclass(frozen=True)
class TokenCounts:
    """Every token that occurs, renumbered without gaps, and the index of its prompt."""

    tokens: np.ndarray
    owner: np.ndarray

    def of(self, weights: np.ndarray) -> np.ndarray:
        """How often each token occurs."""
        return np.bincount(self.tokens, weights=weights[self.owner])


def distinct(pools: Sequence[Pool], n: int) -> PromptMean:
    """dist-n: a pool's distinct n-grams over its number of WORDS, whatever n; mean over prompts.

    Words are what lies between single spaces, so two spaces in a row enclose an empty word.
    """
    ratios = [_distinct_ratio([sample.text for sample in pool.samples], n) for pool in pools]
    return PromptMean(np.array(ratios), np.ones(len(pools)))


def _distinct_ratio(texts: Sequence[str], n: int) -> float:
    split = [text.split(" ") for text in texts]
    # Joined by underscores, as the authors do: "a_b c" and "a b_c" are one bigram to them.
    grams = {"_".join(gram) for words in split for gram in ngrams(words, n)}
    return len(grams) / sum(len(words) for words in split)


def ngrams(items: Sequence, n: int) -> list[tuple]:
    """All runs of n neighbours."""
    return [tuple(items[start : start + n]) for start in range(len(items) - n + 1)]


def token_counts(pools: Sequence[Pool]) -> TokenCounts:
    """Gather the token ids of all samples."""
    rows = [_all_tokens(pool) for pool in pools]
    _, tokens = np.unique(np.concatenate(rows), return_inverse=True)
    return TokenCounts(tokens, np.repeat(np.arange(len(rows)), [len(row) for row in rows]))


def zipf(counts: np.ndarray) -> float:
    """Minus the slope of log count over log rank, least squares over the 5000 commonest ids."""
    commonest = np.sort(counts[counts > 0])[::-1][:ZIPF_RANKS]
    if len(commonest) < 2:
        return float("nan")
    x = np.log(np.arange(1, len(commonest) + 1))
    y = np.log(commonest.astype(np.float64))
    x_centred = x - x.mean()
    # Counts fall with rank, so only rounding can bring the slope above zero.
    return max(0.0, float(-(x_centred @ y) / (x_centred @ x_centred)))


def repetition(pools: Sequence[Pool]) -> PromptMean:
    """The share of samples that end in a repeated phrase."""
    flags = [[ends_repeating(tokens_of(sample)) for sample in pool.samples] for pool in pools]
    return PromptMean(
        np.array([sum(row) for row in flags], dtype=float),
        np.array([len(row) for row in flags], dtype=float),
    )


def ends_repeating(tokens: Sequence[int]) -> bool:
    """Whether the last phrase, of 3 tokens or more, stands there at least twice in a row.

    The phrase is the one repeated most often, the shortest of those; a phrase of one or two tokens
    counts from its 51st time.
    """
    if tokens and tokens[-1] == GPT2_END:
        tokens = tokens[:-1]
    times = [_times_at_end(tokens, n) for n in range(1, LONGEST_PHRASE + 1)]
    most = max(times)
    n = times.index(most) + 1
    return most > 1 and (n >= 3 or most > 50)


def _times_at_end(tokens: Sequence[int], n: int) -> int:
    """How many times the last n tokens stand in a row at the end: at least once."""
    phrase = tokens[-n:]
    times, end = 1, len(tokens) - n
    while end >= n and tokens[end - n : end] == phrase:
        times, end = times + 1, end - n
    return times


def entropy(pools: Sequence[Pool]) -> PromptMean:
    """Nats of the token frequencies within one sample, mean over samples.

    It falls when a sample repeats itself; log of the length is the most it can be.
    """
    nats = [[_sample_entropy(tokens_of(sample)) for sample in pool.samples] for pool in pools]
    return PromptMean(
        np.array([sum(row) for row in nats]),
        np.array([len(row) for row in nats], dtype=float),
    )


def _sample_entropy(tokens: Sequence[int]) -> float:
    if not tokens:
        return 0.0
    _, counts = np.unique(np.array(tokens), return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum())


def _all_tokens(pool: Pool) -> np.ndarray:
    tokens = [token for sample in pool.samples for token in tokens_of(sample)]
    return np.array(tokens, dtype=np.int64)


def tokens_of(sample: Sample) -> tuple[int, ...]:
    """A sample's token ids, which must be there."""
    assert sample.tokens is not None, "checked by run before any token is asked for"
    return sample.tokens

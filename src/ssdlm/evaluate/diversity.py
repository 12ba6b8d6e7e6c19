"""How varied the continuations are: distinct n-grams, Zipf's coefficient, repetition, entropy.

samples -> [diversity] -> run

Each metric is first reduced to a few numbers per prompt, so that a bootstrap over prompts only has
to weigh them again: a statistic is called with the number of times each prompt counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """The mean of a number over prompts, or over their samples: a statistic for the bootstrap."""

    total: np.ndarray
    """The sum within each prompt."""
    count: np.ndarray
    """How many numbers that is."""

    def __call__(self, weights: np.ndarray) -> float:
        """Return the mean where each prompt counts so often."""
        return float(weights @ self.total / (weights @ self.count))


@dataclass(frozen=True)
class TokenCounts:
    """Every token that occurs, renumbered without gaps, and the index of its prompt."""

    tokens: np.ndarray
    prompt_index: np.ndarray

    def weighted(self, weights: np.ndarray) -> np.ndarray:
        """Return how often each token occurs where each prompt counts so often."""
        return np.bincount(self.tokens, weights=weights[self.prompt_index])


def mean_over_samples(pools: Sequence[Pool], score: Callable[[Sample], float]) -> PromptMean:
    """Return the mean of a score of single samples."""
    scores = [[score(sample) for sample in pool.samples] for pool in pools]
    return PromptMean(
        np.array([sum(row) for row in scores], dtype=float),
        np.array([len(row) for row in scores], dtype=float),
    )


def distinct(pools: Sequence[Pool], n: int) -> PromptMean:
    """Return dist-n: distinct n-grams of a pool over its number of WORDS, mean over prompts.

    Words are what lies between single spaces, so two spaces in a row enclose an empty word.
    """
    ratios = [distinct_ratio([sample.text for sample in pool.samples], n) for pool in pools]
    return PromptMean(np.array(ratios), np.ones(len(pools)))


def distinct_ratio(texts: Sequence[str], n: int) -> float:
    """Return the number of distinct n-grams of texts over their number of words."""
    split = [text.split(" ") for text in texts]
    # Joined by underscores, as the authors do: "a_b c" and "a b_c" are one bigram to them.
    grams = {"_".join(gram) for words in split for gram in ngrams(words, n)}
    return len(grams) / sum(len(words) for words in split)


def ngrams(items: Sequence, n: int) -> list[tuple]:
    """Return all runs of n neighbours."""
    return [tuple(items[start : start + n]) for start in range(len(items) - n + 1)]


def token_counts(pools: Sequence[Pool]) -> TokenCounts:
    """Return the token ids of all samples, by prompt."""
    rows = [
        np.array([token for sample in pool.samples for token in tokens_of(sample)], dtype=np.int64)
        for pool in pools
    ]
    _, tokens = np.unique(np.concatenate(rows), return_inverse=True)
    return TokenCounts(tokens, np.repeat(np.arange(len(rows)), [len(row) for row in rows]))


def zipf(counts: np.ndarray) -> float:
    """Return minus the slope of log count over log rank, fitted to the 5000 commonest ids."""
    commonest = np.sort(counts[counts > 0])[::-1][:ZIPF_RANKS]
    if len(commonest) < 2:
        return float("nan")
    x = np.log(np.arange(1, len(commonest) + 1))
    y = np.log(commonest.astype(np.float64))
    x_centred = x - x.mean()
    # Counts fall with rank, so only rounding can bring the slope above zero.
    return max(0.0, float(-(x_centred @ y) / (x_centred @ x_centred)))


def repetition(pools: Sequence[Pool]) -> PromptMean:
    """Return the share of samples that end in a repeated phrase."""
    return mean_over_samples(pools, lambda sample: ends_repeating(tokens_of(sample)))


def ends_repeating(tokens: Sequence[int]) -> bool:
    """Tell whether the last phrase, of 3 tokens or more, occurs at least twice in a row.

    The phrase is the one repeated most often, the shortest of those; a phrase of one or two tokens
    counts from its 51st time.
    """
    if tokens and tokens[-1] == GPT2_END:
        tokens = tokens[:-1]
    times = [times_at_end(tokens, n) for n in range(1, LONGEST_PHRASE + 1)]
    most = max(times)
    n = times.index(most) + 1
    return most > 1 and (n >= 3 or most > 50)


def times_at_end(tokens: Sequence[int], n: int) -> int:
    """Return how many times in a row the last n tokens occur at the end: at least once."""
    phrase = tokens[-n:]
    times, end = 1, len(tokens) - n
    while end >= n and tokens[end - n : end] == phrase:
        times, end = times + 1, end - n
    return times


def entropy(pools: Sequence[Pool]) -> PromptMean:
    """Return the nats of the token frequencies within one sample, mean over samples.

    It falls when a sample repeats itself; log of the length is the most it can be.
    """
    return mean_over_samples(pools, lambda sample: token_entropy(tokens_of(sample)))


def token_entropy(tokens: Sequence[int]) -> float:
    """Return the nats of the token frequencies in a text."""
    if not tokens:
        return 0.0
    _, counts = np.unique(np.array(tokens), return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum())


def tokens_of(sample: Sample) -> tuple[int, ...]:
    """Return a sample's token ids, which must be there."""
    assert sample.tokens is not None, "checked by run before any token is asked for"
    return sample.tokens

"""Self-BLEU: how much a continuation looks like all the others.

samples -> [self_bleu] -> run

BLEU of a sample against every other one as references, over token ids, smoothed by adding 0.1 to a
match count of zero (Chen and Cherry's method 1). With M samples the plain way compares M^2 pairs.
Here the two largest counts of each n-gram in one sample are kept: the clip that "all the others"
impose on a sample is one of the two.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ssdlm.evaluate.diversity import PromptMean, ngrams, tokens_of
from ssdlm.evaluate.samples import Pool

ORDERS = (1, 2, 3, 4, 5)
"""Self-BLEU is given up to each of these n-gram orders, with equal weights."""

MAX_SCORED = 1000
"""At most this many samples are scored for each order, against all others."""

EPSILON = 0.1


def self_bleu(pools: Sequence[Pool]) -> dict[int, PromptMean]:
    """Return self-BLEU up to n-grams of each order, mean over the authors' draws of 1000 samples.

    The authors divide by 1000 even when there are fewer samples; here by how many there are.
    """
    samples = [tokens_of(sample) for pool in pools for sample in pool.samples]
    prompt_index = np.repeat(np.arange(len(pools)), [len(pool.samples) for pool in pools])
    others = Others(samples)
    generator = random.Random(0)
    means = {}
    for order in ORDERS:
        scored = generator.sample(range(len(samples)), min(MAX_SCORED, len(samples)))
        bleu = [others.bleu(index, order) for index in scored]
        total = np.bincount(prompt_index[scored], weights=bleu, minlength=len(pools))
        count = np.bincount(prompt_index[scored], minlength=len(pools))
        means[order] = PromptMean(total, count.astype(float))
    return means


class Others:
    """A set of samples, each of which can be scored against all the others."""

    def __init__(self, samples: Sequence[Sequence[int]]) -> None:
        self.samples = samples
        self.clips = [Clip(samples, n) for n in ORDERS]
        self.lengths = Counter(len(sample) for sample in samples)

    def bleu(self, index: int, order: int) -> float:
        """Return BLEU of one sample up to n-grams of `order`, with all others as references."""
        if len(self.samples) < 2:
            return float("nan")
        sample = self.samples[index]
        matches = [clip.matches(sample, index) for clip in self.clips[:order]]
        if matches[0] == 0:
            return 0.0
        logs = [
            math.log((match or EPSILON) / max(len(sample) - n, 1))
            for n, match in enumerate(matches)
        ]
        return brevity_penalty(len(sample), self.lengths) * math.exp(sum(logs) / order)


def brevity_penalty(length: int, lengths: Counter[int]) -> float:
    """Return the penalty for being shorter than the reference nearest in length."""
    others = [other for other, count in lengths.items() if count > (other == length)]
    # Of two references that are equally near the shorter counts.
    nearest = min(others, key=lambda other: (abs(other - length), other))
    return 1.0 if length > nearest else math.exp(1 - nearest / length)


class Clip:
    """The two largest counts of each n-gram in one sample."""

    def __init__(self, samples: Sequence[Sequence[int]], n: int) -> None:
        self.n = n
        self.most: dict[tuple, tuple[int, int, int]] = {}
        """The largest count, the index of the sample that has it, and the second largest."""
        for index, sample in enumerate(samples):
            for gram, count in Counter(ngrams(sample, n)).items():
                first, first_index, second = self.most.get(gram, (0, -1, 0))
                if count > first:
                    self.most[gram] = (count, index, first)
                elif count > second:
                    self.most[gram] = (first, first_index, count)

    def matches(self, sample: Sequence[int], index: int) -> int:
        """Return how many n-grams of a sample the others have, each clipped by its count there."""
        total = 0
        for gram, count in Counter(ngrams(sample, self.n)).items():
            first, first_index, second = self.most[gram]
            total += min(count, second if first_index == index else first)
        return total

"""Self-BLEU by hand, and against the plain way of comparing all pairs."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from ssdlm.evaluate.diversity import ngrams
from ssdlm.evaluate.samples import Pool, Sample
from ssdlm.evaluate.self_bleu import ORDERS, Others, self_bleu


def plain_bleu(hypothesis, references, order):
    """BLEU as Papineni et al. define it, with 0.1 for a match count of zero."""
    logs = []
    for n in range(1, order + 1):
        counts = Counter(ngrams(hypothesis, n))
        clip = Counter()
        for reference in references:
            clip |= Counter(ngrams(reference, n))
        matches = sum((counts & clip).values())
        if n == 1 and matches == 0:
            return 0.0
        logs.append(math.log((matches or 0.1) / max(sum(counts.values()), 1)))
    length = len(hypothesis)
    nearest = min((abs(len(r) - length), len(r)) for r in references)[1]
    brevity = 1.0 if length > nearest else math.exp(1 - nearest / length)
    return brevity * math.exp(sum(logs) / order)


def test_bleu_by_hand():
    others = Others([[1, 2, 3], [1, 2, 4], [9]])
    assert others.bleu(0, 1) == pytest.approx(2 / 3)
    assert others.bleu(0, 2) == pytest.approx(math.sqrt(2 / 3 * 1 / 2))
    # No trigram matches: 0.1 of one.
    assert others.bleu(0, 3) == pytest.approx((2 / 3 * 1 / 2 * 0.1) ** (1 / 3))
    assert others.bleu(2, 1) == 0.0


def test_a_shorter_sample_pays_for_its_brevity():
    assert Others([[1, 2], [1, 2, 3, 4]]).bleu(0, 1) == pytest.approx(math.exp(1 - 4 / 2))


def test_a_sample_that_holds_a_ngram_most_often_is_clipped_by_the_second():
    assert Others([[1, 1, 1, 1], [1, 1, 2, 2]]).bleu(0, 1) == pytest.approx(2 / 4)


@pytest.mark.parametrize("order", ORDERS)
def test_scoring_against_others_matches_comparing_all_pairs(order):
    generator = random.Random(order)
    for _ in range(5):
        lengths = [generator.choice([1, 2, 3, 8, 9, 12]) for _ in range(12)]
        samples = [[generator.randrange(6) for _ in range(length)] for length in lengths]
        others = Others(samples)
        for index, sample in enumerate(samples):
            references = samples[:index] + samples[index + 1 :]
            plain = plain_bleu(sample, references, order)
            assert others.bleu(index, order) == pytest.approx(plain)


def test_self_bleu_averages_over_as_many_samples_as_there_are():
    pools = [
        Pool("a", (Sample("", (1, 2, 3)), Sample("", (1, 2, 3)))),
        Pool("b", (Sample("", (7, 8, 9)),)),
    ]
    scores = self_bleu(pools)
    assert list(scores) == [1, 2, 3, 4, 5]
    assert scores[1](np.ones(2)) == pytest.approx(2 / 3)
    assert scores[3](np.array([1.0, 0.0])) == pytest.approx(1.0)


def test_self_bleu_of_one_sample_is_undefined():
    assert math.isnan(self_bleu([Pool("a", (Sample("", (1, 2)),))])[4](np.ones(1)))

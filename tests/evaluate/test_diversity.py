"""Each measure on an example worked by hand."""

import math

import numpy as np
import pytest

from ssdlm.evaluate.diversity import (
    GPT2_END,
    distinct,
    ends_repeating,
    entropy,
    repetition,
    token_counts,
    zipf,
)
from ssdlm.evaluate.samples import Pool, Sample


def pools_of(*prompts):
    """Each prompt a list of texts or of token lists."""
    return [
        Pool(
            str(index),
            tuple(
                Sample(sample, None) if isinstance(sample, str) else Sample("", tuple(sample))
                for sample in samples
            ),
        )
        for index, samples in enumerate(prompts)
    ]


def test_dist_n_pools_a_prompt_and_divides_by_words_whatever_n():
    # First prompt: 6 words; a b c; ab ba bc; aba abc. Second: 1 word, no bigram.
    pools = pools_of(["a b a", "a b c"], ["x"])
    both = np.ones(2)
    assert distinct(pools, 1)(both) == pytest.approx((3 / 6 + 1) / 2)
    assert distinct(pools, 2)(both) == pytest.approx((3 / 6 + 0) / 2)
    assert distinct(pools, 3)(both) == pytest.approx((2 / 6 + 0) / 2)
    assert distinct(pools, 1)(np.array([2.0, 0.0])) == pytest.approx(3 / 6)


def test_dist_n_splits_at_single_spaces_only():
    # " a  b\n" is the words "", "a", "", "b\n".
    assert distinct(pools_of([" a  b\n"]), 1)(np.ones(1)) == pytest.approx(3 / 4)


def test_dist_n_joins_words_by_underscores_as_the_authors_do():
    assert distinct(pools_of(["a_b c", "a b_c"]), 2)(np.ones(1)) == pytest.approx(1 / 4)


def test_zipf_of_counts_that_fall_as_one_over_rank_is_one():
    assert zipf(np.array([3.0, 12.0, 0.0, 4.0, 6.0])) == pytest.approx(1.0)


def test_zipf_of_two_counts_is_their_slope():
    # log 9 - log 3 over log 2 - log 1.
    assert zipf(np.array([9, 3])) == pytest.approx(math.log(3) / math.log(2))


def test_zipf_fits_the_5000_commonest_only():
    commonest = 1e6 / np.arange(1, 5001)
    assert zipf(np.concatenate([commonest, np.ones(3000)])) == pytest.approx(1.0)


@pytest.mark.parametrize("number", range(2, 60))
def test_zipf_of_equal_counts_is_not_below_zero(number):
    assert 0 <= zipf(np.full(number, 3.0)) < 1e-12


def test_zipf_of_a_single_token_is_undefined():
    assert math.isnan(zipf(np.array([7.0])))


def test_token_counts_weigh_prompts():
    counts = token_counts(pools_of([[5, 5, 9]], [[9], [2]]))
    assert counts.weighted(np.array([1.0, 1.0])).tolist() == [1, 2, 2]
    assert counts.weighted(np.array([0.0, 3.0])).tolist() == [3, 0, 3]


@pytest.mark.parametrize(
    ("tokens", "repeats"),
    [
        ([9, 1, 2, 3, 1, 2, 3], True),
        ([9, 1, 2, 3, 1, 2, 4], False),
        ([1, 2, 3, 1, 2, 3, 9], False),
        ([1, 2, 3], False),
        ([], False),
        ([8, 1, 2, 1, 2], False),
        # One token fifty times is not yet a repetition: the phrase repeated most often is short.
        ([7] * 50, False),
        ([7] * 51, True),
        ([7, 8] * 51, True),
        # 1 1 ends the sample twice and 2 1 1 ends it twice: the shorter phrase comes first.
        ([2, 1, 1, 2, 1, 1], False),
        (list(range(90)) * 2, True),
        (list(range(91)) * 2, False),
        ([1, 2, 3, 1, 2, 3, GPT2_END], True),
        ([1, 2, 3, 1, 2, 3, GPT2_END, GPT2_END], False),
    ],
)
def test_a_sample_ends_repeating(tokens, repeats):
    assert ends_repeating(tuple(tokens)) is repeats


def test_repetition_is_the_share_of_samples():
    pools = pools_of([[1, 2, 3, 1, 2, 3], [1, 2, 3]], [[4, 5, 6], [7, 8, 9]])
    assert repetition(pools)(np.ones(2)) == pytest.approx(1 / 4)
    assert repetition(pools)(np.array([2.0, 0.0])) == pytest.approx(1 / 2)


def test_entropy_is_the_mean_over_samples():
    pools = pools_of([[1, 1, 2, 2], [1, 2, 3, 4]], [[6, 6, 6], []])
    assert entropy(pools)(np.ones(2)) == pytest.approx((math.log(2) + math.log(4)) / 4)

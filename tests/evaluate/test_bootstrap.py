"""Intervals that are where theory puts them."""

import numpy as np
import pytest

from ssdlm.evaluate.bootstrap import Bootstrap, clipped, folded


def test_the_interval_of_a_mean_is_two_standard_errors_wide():
    values = np.random.default_rng(1).normal(size=400)
    bootstrap = Bootstrap(400)
    low, high = bootstrap.interval(lambda weights: float(weights @ values / weights.sum()))
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.25 * error)


def test_the_interval_lies_around_the_figure_even_where_resampling_is_biased():
    # The share of prompts drawn at all is 1 for the figure, about 0.63 for any draw.
    low, high = Bootstrap(200).interval(lambda weights: float((weights > 0).mean()))
    assert low < 1.0 < high
    assert high - low < 0.2


def test_each_draw_has_as_many_prompts_as_there_are():
    seen = []
    Bootstrap(7, num_resamples=5).interval(lambda weights: seen.append(weights.sum()) or 0.0)
    assert seen == [7.0] * 6


def test_the_same_seed_gives_the_same_interval():
    values = np.arange(10.0)
    intervals = [Bootstrap(10).interval(lambda weights: float(weights @ values)) for _ in range(2)]
    assert intervals[0] == intervals[1]


def test_one_prompt_has_no_interval():
    assert Bootstrap(1).interval(lambda weights: 3.0) is None


def test_an_undefined_figure_has_no_interval():
    assert Bootstrap(5).interval(lambda weights: float("nan")) is None


def test_clipping_and_folding():
    assert clipped((-0.1, 1.2), 0.0, 1.0) == (0.0, 1.0)
    assert clipped(None, 0.0, 1.0) is None
    assert folded((-2.0, 1.0)) == (0.0, 2.0)
    assert folded((-3.0, -1.0)) == (1.0, 3.0)
    assert folded(None) is None

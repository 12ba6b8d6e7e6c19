"""Rounding passes, and nothing larger does."""

import numpy as np
import pytest
import torch

from tests.closeness import assert_close

EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.bfloat16, torch.float32, torch.float64)}


@pytest.mark.parametrize("dtype", EPS)
def test_the_tolerance_follows_from_the_dtype_and_the_largest_value(dtype):
    expected = torch.tensor([100.0, 0.0, -1.0], dtype=dtype)
    nearly, off = expected.clone(), expected.clone()
    nearly[1], off[1] = 90 * EPS[dtype], 110 * EPS[dtype]
    assert_close(nearly, expected, roundings=1)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(off, expected, roundings=1)


def test_the_coarser_of_two_dtypes_decides():
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert_close(third.float(), third)
    with pytest.raises(AssertionError):
        assert_close(third.float().double(), third)


def test_what_is_left_of_larger_values_is_as_good_as_those():
    left = (torch.tensor([1000.1]) - 1000, torch.tensor([0.1]))
    assert_close(*left, size=1000)
    with pytest.raises(AssertionError):
        assert_close(*left)


def test_floats_arrays_and_nested_parts_are_compared():
    assert_close(1.0 + 1e-7, 1.0)
    assert_close([1.0, 2.0 + 1e-6], [1.0, 2.0])
    assert_close(np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-15]))
    assert_close((torch.ones(2), [torch.zeros(3)]), (torch.ones(2), [torch.zeros(3)]))
    for wrong in (1.001, np.nan, np.inf):
        with pytest.raises(AssertionError):
            assert_close(wrong, 1.0)
    with pytest.raises(AssertionError, match="shape"):
        assert_close(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="zip"):
        assert_close((torch.ones(2),), (torch.ones(2), torch.ones(2)))


def test_infinities_must_be_the_same_ones():
    expected = torch.tensor([1.0, torch.inf])
    assert_close(expected.clone(), expected)
    with pytest.raises(AssertionError):
        assert_close(torch.tensor([1.0, 1e30]), expected)

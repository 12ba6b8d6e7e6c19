"""The share that is held out, and that it keeps no rhythm."""

import numpy as np
import pytest

from ssdlm.data.writer import is_held_out


@pytest.mark.parametrize("holdout", [0.01, 0.1, 0.25, 0.37, 0.5, 0.9])
def test_the_held_out_share_is_exact(holdout):
    held = [is_held_out(i, holdout) for i in range(1000)]
    assert sum(held) == round(1000 * holdout)
    for number in range(1, 1000):
        assert abs(sum(held[:number]) - number * holdout) <= 1


def test_held_out_documents_keep_no_rhythm():
    held = np.flatnonzero([is_held_out(i, 0.1) for i in range(1000)])
    assert len(set(held % 10)) == 10

"""Where the steps of a decoding run lie."""

import pytest
import torch

from ssdlm import schedule
from ssdlm.grid import Staggered, Uniform


def test_a_uniform_grid_is_the_papers_schedule():
    grid = Uniform(40)(25)
    assert grid.T == 40
    assert torch.equal(grid.alpha_bar, schedule.alpha_bar(40))
    assert torch.equal(grid.progress, torch.arange(41).double() / 40)


@pytest.mark.parametrize("width", [0.5, 3.0, 25.0, 60.0])
@pytest.mark.parametrize("B", [1, 2, 25])
def test_a_window_begins_in_noise_and_leaves_nothing_behind(B, width):
    grid = Staggered(30, width)(B)
    assert grid.progress.shape == (31, B)
    assert (grid.progress[0] == 0).all()
    assert (grid.progress[-1] == 1).all()
    assert (grid.progress.diff(dim=0) >= 0).all()
    assert (grid.progress.diff(dim=1) >= 0).all()


def test_a_wide_window_moves_all_positions_and_a_narrow_one_few():
    def most_at_once(width):
        progress = Staggered(100, width)(25).progress
        return ((progress > 0) & (progress < 1)).sum(1).max()

    assert most_at_once(100.0) == 25
    assert most_at_once(2.0) <= 3

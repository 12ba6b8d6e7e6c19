"""Where the steps of a decoding run lie."""

import pytest
import torch

from ssdlm.diffusion import schedule
from ssdlm.diffusion.grid import Staggered, Tilted, Uniform, Warped


def test_a_uniform_grid_is_the_papers_schedule():
    grid = Uniform(40)(25)
    assert grid.T == 40
    assert torch.equal(grid.alpha_bar, schedule.alpha_bar(40))
    assert torch.equal(grid.progress, torch.arange(41).double() / 40)


def test_a_warped_grid_spends_most_steps_where_tokens_are_decided():
    progress = Warped(50)(25).progress
    assert progress[0] == 0
    assert progress[-1] == 1
    assert (progress.diff() > 0).all()
    assert ((progress > 0.0999) & (progress < 0.6201)).sum() == 40


def test_a_window_much_wider_than_the_block_is_the_warped_grid():
    wide = Staggered(20, 1e9)(3).progress
    torch.testing.assert_close(  # a window of 1e9 is not endless: what is left is 1e-9
        wide, Warped(20)(3).progress.unsqueeze(1).expand(21, 3)
    )


@pytest.mark.parametrize("width", [0.5, 3.0, 25.0, 60.0])
@pytest.mark.parametrize("B", [1, 2, 25])
def test_tilted_levels_rise_to_the_right_and_end_together(B, width):
    progress, window = Tilted(30, width)(B).progress, Staggered(30, width)(B).progress
    assert (progress.diff(dim=1) >= 0).all()
    assert (progress[0] == 0).all() and (progress[-1] == 1).all()
    assert (progress[1:] > 0).all(), "nothing is certain before the last step"
    # A state is drawn anew in each step: until its level is that of text, it moves.
    assert ((progress.diff(dim=0) > 0) | (progress[1:] == 1)).all()
    assert torch.equal(progress[window > 0], window[window > 0])
    assert (progress[window == 0] <= 0.1).all()


def test_a_tilted_window_much_wider_than_the_block_is_the_warped_grid():
    tilted = Tilted(20, 1e9)(3).progress
    torch.testing.assert_close(tilted, Warped(20)(3).progress.unsqueeze(1).expand(21, 3))
    torch.testing.assert_close(Tilted(20, 2.0)(1).progress[:, 0], Warped(20)(1).progress)


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


@pytest.mark.parametrize("width", [0.2, 1.0, 3.0, 60.0])
@pytest.mark.parametrize("B", [1, 2, 25])
def test_outside_a_steps_window_nothing_moves_and_all_is_clean_or_noise(B, width):
    progress, windows = Staggered(70, width)(B).progress, Staggered(70, width)(B).windows(B)
    assert len(windows) == 71
    for t in range(1, 71):
        outside = torch.ones(B, dtype=torch.bool)
        outside[windows[t]] = False
        assert torch.equal(progress[t, outside], progress[t - 1, outside])
        assert ((progress[t, outside] == 0) | (progress[t, outside] == 1)).all()
        assert 1 <= windows[t].stop - windows[t].start <= width + 2


def test_positions_that_share_a_level_move_together():
    assert Uniform(5)(7).windows(7) == [slice(0, 7)] * 6
    grid = Uniform(5)(7)
    assert grid.part(slice(2, 3)) is grid

"""Noise levels are where they should be, for any uniforms."""

import pytest
import torch

from ssdlm.config import TrainConfig
from ssdlm.train import levels
from ssdlm.train.examples import Examples
from ssdlm.train.levels import LevelSampler


def uniforms(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def test_blocks_are_numbered_from_the_left():
    assert levels.block_index(7, B=3).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert levels.block_index(7, B=3, offset=2).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert levels.block_index(7, B=3, offset=3).tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_places_restart_with_every_block():
    blocks = levels.block_index(7, B=3, offset=2)
    assert levels.place_in_block(blocks).tolist() == [0, 1, 0, 1, 2, 0, 1]


def test_most_levels_are_in_the_band_and_no_end_is_starved():
    progress = levels.banded((torch.arange(10000) + 0.5) / 10000)
    low, high = levels.BAND
    assert progress.min() >= 0
    assert progress.max() <= 1
    assert ((progress > low) & (progress < high)).float().mean() > 0.89
    assert (progress > 0.9).float().mean() > 0.01
    assert (progress < low).float().mean() > 0.01


def test_a_shared_level_is_shared():
    blocks = levels.block_index(10, B=5)
    progress = levels.shared(uniforms(3, 2), blocks)
    assert (progress[:, :5] == progress[:, :1]).all()
    assert (progress[:, 0] != progress[:, 5]).all()


def test_ramps_never_fall_within_a_block():
    blocks = levels.block_index(50, B=10)
    progress = levels.ramps(uniforms(200, 5), uniforms(200, 5).flip(0), blocks)
    rise = progress[:, 1:] - progress[:, :-1]
    inside = blocks[1:] == blocks[:-1]
    assert rise[:, inside].min() >= 0
    assert (progress == 0).any()
    assert (progress == 1).any()
    assert ((progress > 0.15) & (progress < 0.6)).float().mean() > 0.1


def widest_of(progress, *, B):
    """The most positions of any block that are on a ramp: neither clean nor noise alone."""
    return ((progress > 0) & (progress < 1)).unflatten(1, (-1, B)).sum(-1).max().item()


def test_a_ramp_is_no_wider_than_the_widest():
    blocks = levels.block_index(75, B=25)
    u_front, u_width = uniforms(2, 2000, 3)
    u_width[:200] = 1.0
    for widest, most in ((0.32, 8), (0.08, 2), (0.001, 1)):
        progress = levels.ramps(u_front, u_width, blocks, widest=widest)
        assert widest_of(progress, B=25) == most
    assert widest_of(levels.ramps(u_front, u_width, blocks), B=25) == 25


def test_a_mixture_keeps_its_ramps_as_narrow():
    blocks = levels.block_index(50, B=25)
    u, u_own = uniforms(3, 1000, 2), uniforms(1000, 50)
    for widest, most in ((0.32, 8), (2.0, 25)):
        progress = levels.mixed(u, u_own, blocks, own_share=0.0, ramp_share=1.0, widest=widest)
        assert widest_of(progress, B=25) == most


def test_a_run_draws_ramps_as_wide_as_its_settings_allow():
    rows = torch.arange(400)
    examples = Examples(torch.zeros(400, 50, dtype=torch.long), rows, rows, step_seed=0)
    for widest, most in ((0.32, 8), (2.0, 25)):
        train = TrainConfig(levels="band", ramp_share=1.0, widest_ramp=widest)
        progress = LevelSampler.of(train, T=50).draw(examples, levels.block_index(50, B=25))
        assert widest_of(progress, B=25) == most
    with pytest.raises(ValueError, match=r"train\.widest_ramp=0\.0 is out of range"):
        TrainConfig(widest_ramp=0.0)


def test_every_shape_is_drawn():
    blocks = levels.block_index(10, B=5)
    progress = levels.mixed(
        uniforms(3, 300, 2), uniforms(300, 10), blocks, own_share=0.2, ramp_share=0.5
    )
    first = progress[:, :5]
    is_flat = (first == first[:, :1]).all(1)
    is_rising = (first[:, 1:] >= first[:, :-1]).all(1) & ~is_flat
    assert 0.2 < is_flat.float().mean() < 0.45
    assert 0.3 < is_rising.float().mean() < 0.55


def test_spread_draws_cover_the_unit_interval_evenly():
    u = levels.spread(torch.tensor(0.3), torch.arange(100)).sort().values
    assert (u[1:] - u[:-1]).max() < 0.02


def test_earlier_noise_is_the_same_path_seen_earlier():
    z, fresh = torch.randn(2, 1, 1, 100_000, generator=torch.Generator().manual_seed(0)).unbind(0)
    before = levels.earlier_noise(z, fresh, torch.full((1, 1), 0.25))
    assert abs(before.std() - 1) < 0.02
    assert abs((before * z).mean() - 0.5) < 0.02

"""Noise belongs to a place, not to a moment."""

import math

import pytest
import torch
from tests.closeness import NETWORK, assert_close

from ssdlm.diffusion import noise
from ssdlm.ops import counters
from ssdlm.ops.where import has_triton


@pytest.mark.parametrize("philox", [counters.philox, counters.words_of])
def test_philox_gives_its_published_answers(philox):
    def words(counter, key):
        counter, key = (tuple(torch.tensor(part) for part in parts) for parts in (counter, key))
        return [int(word) for word in philox(counter, key)]

    assert words((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert words((ones,) * 4, (ones,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert words(*pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_words_by_numpy_are_those_of_tensors():
    generator = torch.Generator().manual_seed(0)
    key = tuple(torch.randint(1 << 32, (3, 1, 1), generator=generator) for _ in range(2))
    places = torch.arange(70), torch.arange(5, 9).unsqueeze(1), torch.tensor(3), torch.tensor([2])
    for plain, quick in zip(
        counters.philox(places, key), counters.words_of(places, key), strict=True
    ):
        assert torch.equal(plain, quick) and quick.shape == (3, 4, 70)


def test_normals_are_normal():
    z = counters.normal(torch.tensor([3, 4]), block=1, step=2, B=25, V=4001).flatten().double()
    n = len(z)
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs(z.var() - 1) < 6 / math.sqrt(n)
    assert abs((z**3).mean()) < 0.05
    assert abs((z**4).mean() - 3) < 0.1


def test_neighbouring_places_share_nothing():
    def at(seed=1, block=0, step=0):
        return counters.normal(torch.tensor([seed]), block=block, step=step, B=4, V=4096).flatten()

    first = at()
    for other in (at(seed=2), at(block=1), at(step=1), first.roll(4096), first.roll(1)):
        correlation = torch.corrcoef(torch.stack((first, other)))[0, 1]
        assert abs(correlation) < 0.04


def test_a_rows_noise_is_its_own_whatever_the_batch_the_block_and_the_vocabulary():
    seeds = torch.tensor([5, 2**62 + 11, 7])
    z = counters.normal(seeds, block=1, step=3, B=9, V=50)
    alone = counters.normal(seeds[1:2], block=1, step=3, B=4, V=33)
    assert torch.equal(z[1:2, :4, :33], alone)


def test_noise_from_a_position_on_is_the_noise_there():
    seeds, where = torch.tensor([5, 7]), {"block": 1, "step": 3, "V": 50}
    whole = counters.normal(seeds, B=9, **where)
    assert torch.equal(counters.normal(seeds, B=2, first=6, **where), whole[:, 6:8])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("block", "step", "B", "V", "first"),
    [(1, 3, 9, 50, 0), (0, 0, 2, 8192, 6), (3, 64, 1, 4097, 24), (2, 1, 3, 1, 0)],
)
def test_a_gpus_own_kernel_draws_the_same_normals(block, step, B, V, first):
    assert has_triton()
    seeds = torch.tensor([5, 2**62 + 11, 7], device="cuda")
    where = {"block": block, "step": step, "B": B, "V": V, "first": first}
    drawn = noise.RowNoise(seeds).normal(**where)
    plain = counters.normal(seeds.cpu(), **where)
    assert drawn.shape == plain.shape
    assert_close(drawn.cpu(), plain, roundings=NETWORK)
    alone = noise.RowNoise(seeds[1:2]).normal(**where)
    assert torch.equal(drawn[1:2], alone)


def test_uniforms_drawn_together_match_those_of_each_step():
    seeds, size = torch.tensor([5, 2**62 + 11]), noise.STEPS_TOGETHER
    row_noise = noise.RowNoise(seeds)
    for block, step, B in ((0, 1, 4), (0, 2, 4), (0, size, 4), (1, 2, 4), (1, 2, 3), (0, 1, 4)):
        alone = counters.uniform(seeds, block=block, step=step, B=B)
        assert torch.equal(row_noise.uniform(block=block, step=step, B=B), alone)


def test_uniforms_lie_strictly_between_zero_and_one():
    u = counters.uniform(torch.arange(100), block=0, step=0, B=100)
    assert u.shape == (100, 100)
    assert u.min() > 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.02


def test_mix_depends_on_every_part_and_on_their_order():
    seeds = {noise.mix(*parts) for parts in ((), (0,), (1,), (0, 1), (1, 0), (1, 0, 0), (-1,))}
    assert len(seeds) == 7
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_rows_that_are_mixed_together_get_the_seeds_that_they_get_alone():
    rows = [(7, 0, 5, 8191), (2**63 - 1, 3), (0,), (-1, 2, 2, 2, 2), (2**62, 0, 1)]
    assert noise.mix_rows(rows) == [noise.mix(*row) for row in rows]
    assert noise.mix_rows([]) == []


def test_gumbel_numbers_have_their_moments_and_are_finite_at_both_ends():
    g = counters.gumbel(torch.tensor([3, 4]), position=7, V=4001, count=40).flatten().double()
    assert bool(g.isfinite().all())
    n = len(g)
    assert abs(g.mean() - 0.5772) < 4 * 1.28 / math.sqrt(n)
    assert abs(g.var() - math.pi**2 / 6) < 12 / math.sqrt(n)


def test_the_greatest_of_log_p_and_gumbel_numbers_is_a_draw_from_p():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    drawn = (p.log() + counters.gumbel(torch.tensor([5]), position=0, V=4, count=20000)).argmax(-1)
    shares = drawn.flatten().bincount(minlength=4) / 20000
    assert bool(((shares - p).abs() < 4 * (p * (1 - p) / 20000).sqrt()).all())


def test_gumbel_numbers_belong_to_a_position_whatever_else_is_asked_for():
    seeds = torch.tensor([5, 2**62 + 11, 7])
    rows = noise.RowNoise(seeds)
    whole = rows.gumbel(position=0, V=50, count=9)
    assert whole.dtype == torch.float32
    alone = noise.RowNoise(seeds[1:2]).gumbel(position=6, V=33, count=2)
    assert torch.equal(whole[1:2, 6:8, :33], alone)
    assert torch.equal(rows.gumbel(position=8, V=50), whole[:, 8:])


def test_gumbel_numbers_share_nothing_with_the_other_streams():
    seeds = torch.tensor([1])
    g = counters.gumbel(seeds, position=0, V=4096, count=4).flatten()
    z = counters.normal(seeds, block=0, step=0, B=4, V=4096).flatten()
    for other in (
        z,
        g.roll(4096),
        counters.gumbel(seeds + 1, position=0, V=4096, count=4).flatten(),
    ):
        assert abs(torch.corrcoef(torch.stack((g, other)))[0, 1]) < 0.04

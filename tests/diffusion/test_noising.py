"""The forward process."""

import torch
from tests.closeness import assert_close

from ssdlm.diffusion import schedule, simplex
from ssdlm.diffusion.noising import add_noise


def setup(N=4, B=6, V=4000, K=5.0):
    generator = torch.Generator().manual_seed(0)
    w_0 = simplex.to_logits(torch.randint(V, (N, B), generator=generator), V=V, K=K)
    return w_0, torch.randn(N, B, V, generator=generator)


def test_no_step_is_no_noise():
    w_0, z = setup()
    assert torch.equal(add_noise(w_0, schedule.alpha_bar(10)[0], K=5.0, z=z), w_0)


def test_the_last_step_is_noise_of_scale_k():
    w_0, z = setup()
    w_T = add_noise(w_0, schedule.alpha_bar(10)[10], K=5.0, z=z)
    assert_close(w_T, 5.0 * z)


def test_moments_in_between_are_those_of_eq_7():
    w_0, z = setup()
    a = schedule.alpha_bar(10)[4]
    rest = add_noise(w_0, a, K=5.0, z=z) - a.sqrt() * w_0
    assert abs(rest.mean().item()) < 0.05
    assert abs(rest.std().item() - 5.0 * (1 - a).sqrt().item()) < 0.05


def test_a_level_each_is_as_good_as_one_at_a_time():
    w_0, z = setup()
    levels = torch.linspace(0.1, 0.9, 24).view(4, 6)
    together = add_noise(w_0, levels, K=5.0, z=z)
    for n, b in ((0, 0), (1, 3), (3, 5)):
        alone = add_noise(w_0, levels[n, b], K=5.0, z=z)
        assert_close(together[n, b], alone[n, b])
    by_row = add_noise(w_0, levels[:, 0], K=5.0, z=z)
    assert_close(by_row[2], add_noise(w_0, levels[2, 0], K=5.0, z=z)[2])

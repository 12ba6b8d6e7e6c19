"""alpha_bar, its signal-to-noise ratio, and back."""

import math

import pytest
import torch
from tests.closeness import assert_close

from ssdlm.diffusion import schedule


@pytest.mark.parametrize("T", [1, 2, 25, 1000, 5000])
def test_alpha_bar_falls_strictly_from_one_to_nothing(T):
    a = schedule.alpha_bar(T)
    assert a.shape == (T + 1,)
    assert a[0] == 1.0
    assert (a.diff() < 0).all()
    assert 0 <= a[-1] < 1e-30


def test_alpha_bar_is_the_papers_cosine():
    T, s = 5000, 1e-4
    r = [math.cos((t / T + s) / (1 + s) * math.pi / 2) ** 2 for t in (0, 1250, 2500, 3750)]
    expected = torch.tensor([value / r[0] for value in r], dtype=torch.float64)
    assert_close(schedule.alpha_bar(T)[[0, 1250, 2500, 3750]], expected)


def test_snr_is_the_ratio_of_signal_to_noise():
    u = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    a = schedule.cosine(u)
    assert torch.allclose(schedule.snr(u), a / (1 - a), rtol=1e-9)


def test_snr_does_not_cancel_where_little_noise_is():
    u = torch.tensor([1e-6], dtype=torch.float64)
    small = math.pi / 2 * 1e-6 / (1 + 1e-4)
    start = schedule.ANGLE_0
    expected = math.cos(start + small) ** 2 / (small * (2 * start + small))
    assert schedule.snr(u).item() == pytest.approx(expected, rel=1e-6)
    assert schedule.snr(torch.zeros(1)).isinf().all()


def test_progress_of_snr_inverts_snr():
    u = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    assert torch.allclose(schedule.progress_of_snr(schedule.snr(u)), u, atol=1e-9)

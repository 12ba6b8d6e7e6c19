"""The step rules, each against its equation."""

import pytest
import torch
from tests.closeness import assert_close

from ssdlm.diffusion import schedule, simplex
from ssdlm.diffusion.grid import Uniform
from ssdlm.diffusion.noising import add_noise
from ssdlm.diffusion.steps import Ddpm, Renoise

K, V = 5.0, 64


def test_the_papers_step_is_eq_18():
    grid, z = Uniform(10)(4), torch.randn(2, 4, V)
    w_t, ids = torch.randn(2, 4, V), torch.randint(V, (2, 4))
    w_hat = simplex.to_logits(ids, V=V, K=K)
    for t in (10, 5, 1):
        expected = add_noise(w_hat, schedule.alpha_bar(10)[t - 1], K=K, z=z)
        assert_close(Renoise(0.0)(w_t, w_hat, grid=grid, t=t, K=K, z=z), expected)


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0, "adaptive"])
def test_every_rho_lands_on_the_forward_process_of_the_next_level(rho):
    """Whatever is kept, w' given the truth has the mean and variance of Eq. 7."""
    generator = torch.Generator().manual_seed(0)
    grid, N = Uniform(10)(1), 60_000
    w_0 = simplex.to_logits(torch.zeros(N, 1, dtype=torch.long), V=2, K=K)
    for t in (9, 5, 2):
        w_t = add_noise(w_0, grid.alpha_bar[t], K=K, z=torch.randn(N, 1, 2, generator=generator))
        z = torch.randn(N, 1, 2, generator=generator)
        w_next = Renoise(rho)(w_t, w_0, grid=grid, t=t, K=K, z=z)
        a = grid.alpha_bar[t - 1].item()
        assert w_next[:, 0, 0].mean().item() == pytest.approx(K * a**0.5, abs=0.08)
        assert w_next[:, 0, 1].var().item() == pytest.approx(K**2 * (1 - a), rel=0.03, abs=1e-6)


def test_rho_one_moves_the_evidence_as_brownian_motion_with_drift():
    """The two-noise form of the family, written out for one step, agrees with the merged one."""
    grid, t, rho = Uniform(10)(3), 6, 0.4
    a, b = grid.alpha_bar[t], grid.alpha_bar[t - 1]
    snr, snr_next = grid.snr[t], grid.snr[t - 1]
    w_t, w_hat = torch.randn(1, 3, V), simplex.to_logits(torch.tensor([[1, 2, 3]]), V=V, K=K)
    ell = 2 * a.sqrt() / (K * (1 - a)) * w_t
    d = (w_hat / K + 1) / 2
    kept = rho * ell
    moved = kept + 4 * d * (snr_next - rho * snr) - 2 * (snr_next - rho * snr)
    w_next = moved * K * (1 - b) / (2 * b.sqrt())
    rule = Renoise(rho)(w_t, w_hat, grid=grid, t=t, K=K, z=torch.zeros_like(w_t))
    assert_close(rule, w_next.float())


def test_ddpm_infers_the_noise_it_keeps():
    grid, ids = Uniform(10)(4), torch.tensor([[1, 2, 3, 4]])
    w_0, z = simplex.to_logits(ids, V=V, K=K), torch.randn(1, 4, V)
    w_t = add_noise(w_0, grid.alpha_bar[6], K=K, z=z)
    expected = add_noise(w_0, grid.alpha_bar[5], K=K, z=z)
    moved = Ddpm(simplified=True)(w_t, w_0, grid=grid, t=6, K=K, z=torch.zeros_like(z))
    assert_close(moved, expected)


@pytest.mark.parametrize("t", [1, 4, 9])
def test_each_step_rule_is_its_equation(t):
    levels, K = Uniform(10)(3), 5.0
    a, before = levels.alpha_bar[t].item(), levels.alpha_bar[t - 1].item()
    w_t, w_hat, z = torch.randn(3, 2, 3, 7, generator=torch.Generator().manual_seed(t))
    fresh = before**0.5 * w_hat + (1 - before) ** 0.5 * K * z  # Eq. 18
    inferred = (1 - before) ** 0.5 * (w_t - a**0.5 * w_hat) / (1 - a) ** 0.5
    factor = ((a / before) * (1 - before) / (1 - a)) ** 0.5  # Eq. 21 has it, Eq. 22 has not
    wanted = {
        Renoise(): fresh,
        Ddpm(): before**0.5 * w_hat + factor * inferred,
        Ddpm(simplified=True): before**0.5 * w_hat + inferred,
    }
    for rule, expected in wanted.items():
        assert_close(rule(w_t, w_hat, grid=levels, t=t, K=K, z=z), expected)

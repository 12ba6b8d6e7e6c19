"""Control wraps a denoiser and is one."""

import pytest
import torch

from ssdlm.control import guided, weighted
from tests import tiny


def likes(token):
    """A control function whose gradient is known: log p(token), summed over the block."""

    def log_prob(context, logits):
        return logits.log_softmax(-1)[..., token].sum(-1)

    return log_prob


def setup(N=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    denoiser = tiny.encoder()
    cache = denoiser.prefill(torch.randint(tiny.V, (N, 4), generator=generator))
    return denoiser, cache, 5.0 * torch.randn(N, 5, tiny.V, generator=generator)


def test_lam_zero_is_the_bare_denoiser():
    denoiser, cache, w_t = setup()
    bare = denoiser.denoise(cache, w_t, torch.tensor(0.5))
    assert torch.equal(guided(denoiser, likes(7), 0.0).denoise(cache, w_t, torch.tensor(0.5)), bare)


def test_the_nudge_is_lam_times_the_gradient_of_eq_23():
    denoiser, cache, w_t = setup()
    bare = denoiser.denoise(cache, w_t, torch.tensor(0.5))
    moved = guided(denoiser, likes(7), 2.0).denoise(cache, w_t, torch.tensor(0.5))
    by_hand = -bare.softmax(-1)
    by_hand[..., 7] += 1
    assert torch.allclose(moved - bare, 2.0 * by_hand, atol=1e-5)
    assert (likes(7)(cache.context, moved) > likes(7)(cache.context, bare)).all()


def test_the_context_reaches_the_control_function():
    denoiser, cache, w_t = setup()
    seen = []

    def log_prob(context, logits):
        seen.append(context)
        return logits.sum((-1, -2))

    guided(denoiser, log_prob, 1.0).denoise(cache, w_t, torch.tensor(0.5))
    assert torch.equal(torch.cat(seen), cache.context)


def test_a_mean_divides_lam_by_the_rows_and_a_sum_does_not():
    denoiser, cache, w_t = setup()
    progress = torch.tensor(0.5)
    bare = denoiser.denoise(cache, w_t, progress)
    summed = guided(denoiser, likes(7), 6.0, "sum").denoise(cache, w_t, progress) - bare
    averaged = guided(denoiser, likes(7), 6.0, "mean").denoise(cache, w_t, progress) - bare
    assert torch.allclose(summed, 3 * averaged, atol=1e-5)
    alone = guided(denoiser, likes(7), 6.0).denoise(
        denoiser.prefill(cache.context[:1]), w_t[:1], progress
    )
    assert torch.equal(alone[0], (bare + summed)[0]) or torch.allclose(
        alone[0], bare[0] + summed[0], atol=1e-6
    )


def test_guides_compose_by_weight():
    denoiser, cache, w_t = setup()
    progress = torch.tensor(0.5)
    bare = denoiser.denoise(cache, w_t, progress)

    def nudge(log_prob, lam):
        return guided(denoiser, log_prob, lam).denoise(cache, w_t, progress) - bare

    both = nudge(weighted((likes(7), 2.0), (likes(9), -1.0)), 1.0)
    assert torch.allclose(both, nudge(likes(7), 2.0) + nudge(likes(9), -1.0), atol=1e-5)


def test_a_guided_denoiser_can_be_guided_again():
    denoiser, cache, w_t = setup()
    twice = guided(guided(denoiser, likes(7), 1.0), likes(9), 1.0)
    assert (twice.V, twice.K, twice.max_len) == (denoiser.V, denoiser.K, denoiser.max_len)
    assert twice.device == denoiser.device
    grown = twice.extend(twice.prefill(cache.context), torch.zeros(3, 1, dtype=torch.long))
    assert twice.denoise(grown, w_t, torch.tensor(0.5)).shape == w_t.shape


@pytest.mark.parametrize("is_grad", [True, False])
def test_gradients_are_taken_whatever_mode_the_caller_is_in(is_grad):
    denoiser, cache, w_t = setup()
    with torch.set_grad_enabled(is_grad):
        moved = guided(denoiser, likes(7), 1.0).denoise(cache, w_t, torch.tensor(0.5))
        assert torch.is_grad_enabled() == is_grad
    assert not moved.requires_grad

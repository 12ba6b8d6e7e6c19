"""All projections, and the nucleus they share."""

import pytest
import torch

from ssdlm.diffusion.projection import (
    Truncation,
    greedy,
    mean,
    multi_hot,
    sampling,
)
from ssdlm.ops.nucleus import nucleus, nucleus_by_sort, nucleus_without_sort

K = 5.0
HARD = [greedy(K), sampling(K, 0.9), sampling(K, 0.0), sampling(K, 1.0), multi_hot(K, 0.5)]


def logits_and_u(N=3, B=5, V=300, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(N, B, V, generator=generator), torch.rand(N, B, generator=generator)


@pytest.mark.parametrize("project", HARD, ids=repr)
def test_hard_projections_hold_plus_and_minus_k_only(project):
    logits, u = logits_and_u()
    w_hat = project(logits, u)
    assert w_hat.shape == logits.shape
    assert set(w_hat.unique().tolist()) == {-K, K}


@pytest.mark.parametrize("project", [greedy(K), multi_hot(K, 0.3), mean(K, 0.9)], ids=repr)
def test_projections_without_chance_rate_the_argmax_highest(project):
    logits, u = logits_and_u()
    w_hat = project(logits, u)
    best = w_hat.gather(-1, logits.argmax(-1, keepdim=True))
    assert torch.equal(best, w_hat.amax(-1, keepdim=True))


@pytest.mark.parametrize("kind", [sampling, multi_hot, mean])
def test_top_p_zero_is_greedy(kind):
    logits, u = logits_and_u()
    logits[0, 0, :7] = 50.0  # ties, as bf16 makes them
    assert torch.equal(kind(K, 0.0)(logits, u), greedy(K)(logits, u))


def test_the_nucleus_keeps_the_crossing_token():
    logits = torch.tensor([[[0.5, 0.3, 0.15, 0.05]]]).log()
    for top_p, size in ((0.0, 1), (0.4, 1), (0.6, 2), (0.79, 2), (0.81, 3), (0.99, 4), (1.0, 4)):
        assert nucleus(logits, top_p).sum() == size, top_p
        assert nucleus(logits, top_p)[0, 0, :size].all()


def on_the_edge(logits, top_p):
    """The tokens where rounding may decide: they, or tokens as likely, cross top_p."""
    probs, ids = logits.double().softmax(-1).sort(-1, descending=True)
    before = probs.cumsum(-1) - probs
    last = torch.where(before < top_p, probs, 1.0).amin(-1, keepdim=True)
    near = ((before - top_p).abs() < 1e-5) | ((probs / last - 1).abs() < 1e-5)
    return torch.zeros_like(near).scatter(-1, ids, near)


@pytest.mark.parametrize("top_p", [0.0, 0.2, 0.5, 0.9, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_nucleus_without_sort_matches_nucleus_by_sort(top_p, scale):
    logits, _ = logits_and_u(V=2000, scale=scale)
    plain = nucleus_by_sort(logits, top_p)
    edge = on_the_edge(logits, top_p)
    assert top_p == 1 or edge.sum() < 50, "of 30,000"
    assert torch.equal(nucleus(logits, top_p) | edge, plain | edge)
    if 0 < top_p < 1:
        found = nucleus_without_sort(logits, top_p)
        assert torch.equal(found | edge, plain | edge)


def test_equal_probabilities_share_their_fate_without_a_sort():
    logits = torch.tensor([[[3.0, 1.0, 1.0, 1.0, -9.0]]])
    assert nucleus_without_sort(logits, 0.8)[0, 0].tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("top_p", [0.3, 0.7, 1.0])
def test_draws_follow_the_renormalised_nucleus(top_p):
    logits = torch.tensor([0.4, 0.05, 0.3, 0.15, 0.1]).log().expand(1, 20000, 5)
    u = torch.rand(1, 20000, generator=torch.Generator().manual_seed(1))
    drawn = sampling(K, top_p).draw(logits, u)
    inside = nucleus(logits[:, :1], top_p)[0, 0]
    expected = torch.where(inside, logits[0, 0].exp(), 0.0)
    counts = drawn.flatten().bincount(minlength=5) / drawn.numel()
    assert torch.allclose(counts, expected / expected.sum(), atol=0.015)
    assert (counts[~inside] == 0).all()


def test_the_extremes_of_u_draw_tokens_inside():
    logits, _ = logits_and_u(N=50, B=8, V=1000)
    inside = nucleus(logits, 0.9)
    for edge in (0.0, 2.0**-24, 1 - 2.0**-24, 1.0):
        drawn = sampling(K, 0.9).draw(logits, torch.full((50, 8), edge))
        assert inside.gather(-1, drawn.unsqueeze(-1)).all()


def test_mean_is_the_average_of_many_draws():
    logits, _ = logits_and_u(N=1, B=1, V=6, scale=1.0)
    u = torch.rand(1, 40000, generator=torch.Generator().manual_seed(2))
    draws = sampling(K, 0.9)(logits.expand(1, 40000, 6), u).mean(1)
    assert torch.allclose(draws, mean(K, 0.9)(logits, u[:, :1])[:, 0], atol=0.1)


def quarters(seed):
    """Numbers that floats add and halve exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-40, 41, (2, 3, 9), generator=generator) / 4


def fading(w_t, progress):
    """Evidence that depends on state and level."""
    return (1 - progress) * w_t


def test_a_temperature_divides_what_the_network_adds_and_leaves_the_evidence():
    share, w_t, progress = quarters(0), quarters(1), torch.tensor(0.5)
    logits = share + 0.5 * w_t
    assert torch.equal(Truncation(fading, 1.0, 0.5)(logits, w_t, progress), 2 * share + 0.5 * w_t)
    assert torch.equal(Truncation(fading, 1.0, 4.0)(logits, w_t, progress), share / 4 + 0.5 * w_t)
    assert torch.equal(Truncation(fading, 1.0)(logits, w_t, progress), logits)


def test_a_temperature_of_one_leaves_a_trim_as_it_was_to_the_last_bit():
    (logits, _), (w_t, _) = logits_and_u(seed=0), logits_and_u(seed=1)
    progress = torch.tensor(0.3)
    outside = ~nucleus(logits - fading(w_t, progress), 0.6)
    expected = logits.masked_fill(outside, -torch.inf)
    for truncate in (Truncation(fading, 0.6), Truncation(fading, 0.6, 1.0)):
        assert torch.equal(truncate(logits, w_t, progress), expected)


def test_a_nucleus_is_cut_from_the_sharpened_share():
    share = torch.tensor([[[0.5, 0.3, 0.15, 0.05]]]).log()
    w_t = torch.tensor([[[0.0, 9.0, 0.0, 9.0]]])  # squared, the first alone has 0.68
    for temperature, size in ((1.0, 2), (0.5, 1), (4.0, 3)):
        trimmed = Truncation(fading, 0.6, temperature)(share + w_t, w_t, torch.zeros(()))
        assert trimmed.isfinite().flatten().tolist() == [i < size for i in range(4)], temperature

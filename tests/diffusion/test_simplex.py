"""Tokens to almost-one-hot logits and back."""

import torch

from ssdlm.diffusion import simplex


def test_ids_survive_the_round_trip():
    ids = torch.randint(64, (3, 7), generator=torch.Generator().manual_seed(0))
    assert torch.equal(simplex.to_ids(simplex.to_logits(ids, V=64, K=5.0)), ids)


def test_logits_are_plus_k_once_and_minus_k_elsewhere():
    w_0 = simplex.to_logits(torch.tensor([[2, 0]]), V=4, K=5.0)
    expected = torch.tensor([[[-5.0, -5.0, 5.0, -5.0], [5.0, -5.0, -5.0, -5.0]]])
    assert torch.equal(w_0, expected)


def test_mean_of_certainty_is_the_almost_one_hot_itself():
    ids = torch.tensor([[1, 3]])
    probs = torch.nn.functional.one_hot(ids, 5).float()
    assert torch.equal(simplex.from_probs(probs, K=5.0), simplex.to_logits(ids, V=5, K=5.0))


def test_mass_on_the_right_token_is_what_k_allows():
    w_0 = simplex.to_logits(torch.tensor([[7]]), V=50265, K=5.0)
    assert abs(w_0.softmax(-1)[0, 0, 7].item() - 0.305) < 1e-3

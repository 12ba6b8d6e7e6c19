"""A sampler of one's own: a step rule or a projection is a function, and nothing to register."""

import torch
from tests import tiny

from ssdlm import Strategy, generate, sampling
from ssdlm.diffusion.grid import Uniform
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.simplex import to_logits
from ssdlm.diffusion.steps import Renoise


def keep_more_and_more(w_t, w_hat, *, grid, t, K, z):
    """A step rule: fresh noise at first (the paper), the state kept towards the end."""
    return Renoise(rho=1 - t / grid.T)(w_t, w_hat, grid=grid, t=t, K=K, z=z)


def second_best(logits, u):
    """A projection: the runner-up at each position."""
    return to_logits(logits.topk(2, -1).indices[..., 1], V=logits.shape[-1], K=5.0)


def tokens_of(strategy):
    """The tokens that a tiny denoiser ends with under a strategy."""
    denoiser, context = tiny.block(), torch.tensor([[3, 4, 5]])
    noise = RowNoise(torch.tensor([7]))
    *_, last = generate(denoiser, context, strategy, blocks=[6], noise=noise)
    return last.tokens


def test_a_step_rule_of_ones_own_moves_the_state():
    K, grid = tiny.block().K, Uniform(12)
    paper = tokens_of(Strategy(grid, sampling(K, 0.9)))
    own = tokens_of(Strategy(grid, sampling(K, 0.9), rule=keep_more_and_more))
    same = tokens_of(Strategy(grid, sampling(K, 0.9), rule=Renoise(0.0)))
    assert own.shape == paper.shape == (1, 6)
    assert not torch.equal(own, paper)
    assert torch.equal(same, paper)


def test_a_projection_of_ones_own_decides_the_tokens():
    strategy = Strategy(Uniform(1), second_best, returns="w_0")
    best = Strategy(Uniform(1), sampling(tiny.block().K, 0.0), returns="w_0")
    assert not (tokens_of(strategy) == tokens_of(best)).any()

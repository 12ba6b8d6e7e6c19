"""What nucleus=network and projection=mean give with an exact denoiser: a chain of three tokens.

With one position open at a time it is what top-p means to an autoregressive model. With all open
at once each position is cut while the others are noise, and the text is another.
"""

import itertools

import pytest
import torch

from ssdlm.denoiser import Denoiser
from ssdlm.denoiser.words import WordCache
from ssdlm.diffusion import schedule
from ssdlm.diffusion.grid import Staggered, Uniform
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import Truncation, mean, nucleus, sampling
from ssdlm.diffusion.sampler import Strategy, generate
from ssdlm.diffusion.steps import Renoise

V, B, K, TOP_P, N = 6, 3, 5.0, 0.6, 3000
VALUES = torch.tensor(list(itertools.product(range(V), repeat=B)))
"""All 216 texts."""


def chain() -> torch.Tensor:
    """Log-probabilities of the next token after each (rows 0..V-1), and of the first (row V).

    Mostly the next letter follows; which is the first is nearly open.
    """
    steps = 0.1 * torch.randn(V + 1, V, generator=torch.Generator().manual_seed(0)).double()
    steps[torch.arange(V), (torch.arange(V) + 1) % V] += 3.0
    return steps.log_softmax(-1)


def log_probs_of(steps: torch.Tensor) -> torch.Tensor:
    """The log-probability of each text under a chain."""
    a, b, c = VALUES.T
    return steps[V, a] + steps[a, b] + steps[b, c]


class Exact(Denoiser):
    """A Bayes-optimal denoiser of the chain; its logits are the prior of a position given what is
    known of the others, plus the evidence of its own."""

    V, K, B, max_len, device = V, K, B, None, torch.device("cpu")
    has_windows = has_evidence = True

    def prefill(self, context):
        return WordCache(context)

    def extend(self, cache, block):
        return self.prefill(torch.cat((cache.context, block), 1))

    def evidence(self, w_t, progress):
        a = schedule.cosine(progress.double()).reshape(*progress.shape, 1)
        return 2 * a.sqrt() / (K * (1 - a).clamp(min=1e-4)) * w_t.double()

    def denoise(self, cache, w_t, progress, previous=None):
        progress = progress.expand(len(w_t), B) if progress.dim() < 2 else progress
        ell = self.evidence(w_t, progress)
        chosen = ell.gather(2, VALUES.T.expand(len(w_t), B, -1))
        log_joint = log_probs_of(chain()) + chosen.sum(1)
        shares = []
        for place in range(B):
            others = log_joint - chosen[:, place]
            parts = [others[:, VALUES[:, place] == token].logsumexp(-1) for token in range(V)]
            shares.append(torch.stack(parts, -1))
        return torch.stack(shares, 1) + ell


def written(grid) -> torch.Tensor:
    """The share of each text among many that were written with nucleus=network."""
    truncate = Truncation(Exact().evidence, TOP_P)
    return shares_of(Strategy(grid, sampling(K, 1.0), truncate=truncate, returns="w_0"))


def shares_of(strategy: Strategy) -> torch.Tensor:
    """The share of each text among many that were written."""
    context, noise = torch.zeros(N, 0, dtype=torch.long), RowNoise(torch.arange(N))
    *_, last = generate(Exact(), context, strategy, blocks=[B], noise=noise)
    numbers = (last.tokens * torch.tensor([V * V, V, 1])).sum(1)
    return numbers.bincount(minlength=V**B).double() / N


def autoregressive() -> torch.Tensor:
    """The probability of each text where every token is drawn from its own nucleus."""
    steps = chain()
    cut = steps.masked_fill(~nucleus(steps[None].float(), TOP_P)[0], -torch.inf)
    return log_probs_of(cut.log_softmax(-1)).exp()


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Total variation."""
    return (one - other).abs().sum().item() / 2


def nll(shares: torch.Tensor) -> float:
    """Mean -log p of texts under the whole chain."""
    return -(shares * log_probs_of(chain())).sum().item()


@pytest.mark.parametrize("T", [6, 18])
def test_one_open_position_at_a_time_is_a_draw_from_the_cut_prior(T):
    found = written(Staggered(T, 0.5))
    assert distance(found, autoregressive()) < 0.05
    assert nll(found) == pytest.approx(nll(autoregressive()), abs=0.1)


@pytest.mark.parametrize("T", [6, 18])
def test_all_at_once_is_another_distribution_and_less_likely(T):
    found = written(Uniform(T))
    assert distance(found, autoregressive()) > 0.3
    assert nll(found) > nll(autoregressive()) + 0.5


def test_the_mean_needs_a_state_that_is_kept():
    def nll_with(rho) -> float:
        return nll(shares_of(Strategy(Uniform(40), mean(K, 1.0), rule=Renoise(rho))))

    entropy = nll(log_probs_of(chain()).exp())
    assert nll_with(1.0) == pytest.approx(entropy, abs=0.2)
    assert nll_with("adaptive") == pytest.approx(entropy, abs=0.2)
    assert nll_with(0.5) < entropy - 0.2, "too safe"
    assert nll_with(0.0) < entropy - 0.5, "safer still"

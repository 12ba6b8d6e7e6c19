"""The bound, on a block whose exact posterior can be computed by adding up all its values."""

import itertools

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.config import BlockConfig
from ssdlm.denoiser import Denoiser
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.words import WordCache
from ssdlm.diffusion import likelihood, schedule, simplex
from ssdlm.train.levels import block_index, place_in_block

V, B, K = 4, 3, 5.0


class Exact(Denoiser):
    """A Bayes-optimal denoiser of blocks drawn from a known table of probabilities."""

    V, K, max_len, device = V, K, None, torch.device("cpu")

    def __init__(self, log_probs: torch.Tensor, bias: float = 0.0) -> None:
        self.values = torch.tensor(list(itertools.product(range(V), repeat=B)))
        self.log_probs = log_probs
        self.bias = bias

    def prefill(self, context):
        return WordCache(context)

    def denoise(self, cache, w_t, progress):
        a = schedule.cosine(progress).unsqueeze(-1)
        ell = 2 * a.sqrt() / (K * (1 - a)) * w_t.double()
        chosen = ell.gather(2, self.values.T.expand(len(w_t), B, -1))
        joint = (self.log_probs + chosen.sum(1)).softmax(-1)
        logits = (
            torch.stack(
                [
                    torch.stack([joint[:, self.values[:, j] == v].sum(-1) for v in range(V)], -1)
                    for j in range(B)
                ],
                1,
            )
            .clamp(min=1e-300)
            .log()
        )
        return logits + self.bias * torch.arange(V)


@pytest.fixture
def known():
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.randn(V**B, generator=generator)).double().log_softmax(-1)


def draw(log_probs, N):
    generator = torch.Generator().manual_seed(1)
    index = torch.multinomial(log_probs.exp(), N, replacement=True, generator=generator)
    return torch.tensor(list(itertools.product(range(V), repeat=B)))[index], -log_probs[index]


def noise(shape):
    return lambda k: torch.randn(shape, generator=torch.Generator().manual_seed(100 + k))


def bound_of(denoiser, blocks, path, rule):
    context = torch.zeros(len(blocks), 0, dtype=torch.long)
    measure = likelihood.one_block(denoiser, context, blocks, noise((len(blocks), B, V)))
    return likelihood.bound(measure, path, rule).sum(1)


def test_the_bound_is_close_to_the_exact_nll_for_an_exact_denoiser(known):
    blocks, exact = draw(known, 2000)
    rule = likelihood.gauss_legendre(16)
    bound = bound_of(Exact(known), blocks, likelihood.parallel(), rule)
    assert bound.mean() == pytest.approx(exact.mean().item(), abs=0.08)


def test_random_points_agree_with_gauss_legendre(known):
    blocks, exact = draw(known, 2000)
    u = torch.rand(32, generator=torch.Generator().manual_seed(3))
    rule = likelihood.stratified(u)
    bound = bound_of(Exact(known), blocks, likelihood.parallel(), rule)
    assert bound.mean() == pytest.approx(exact.mean().item(), abs=0.08)


@pytest.mark.parametrize("width", [0.5, 2.0])
def test_a_path_from_left_to_right_gives_the_same_for_an_exact_denoiser(known, width):
    blocks, exact = draw(known, 2000)
    path = likelihood.staggered(torch.arange(B), B=B, width=width)
    rule = likelihood.gauss_legendre(8, panels=7)
    bound = bound_of(Exact(known), blocks, path, rule)
    assert bound.mean() == pytest.approx(exact.mean().item(), abs=0.08)


def test_a_worse_denoiser_has_a_larger_bound(known):
    blocks, exact = draw(known, 1000)
    rule = likelihood.gauss_legendre(16)
    bound = bound_of(Exact(known, bias=0.7), blocks, likelihood.parallel(), rule)
    assert bound.mean() > exact.mean() + 0.1


def test_rules_integrate_polynomials():
    for rule in (likelihood.gauss_legendre(4), likelihood.gauss_legendre(3, panels=5)):
        total = (rule.weights * rule.points**5).sum()
        assert total.item() == pytest.approx(1 / 6)


def test_staggered_paths_start_at_nothing_and_end_everywhere():
    path = likelihood.staggered(torch.arange(4), B=4, width=2.0)
    start, end = path(torch.tensor(0.0)), path(torch.tensor(1.0))
    assert start.tolist() == [0.0] * 4
    assert end.tolist() == [likelihood.MAX_SNR] * 4


def test_squared_errors_are_what_they_say():
    logits, tokens = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    onehot = (simplex.to_logits(tokens, V=5, K=1.0) + 1) / 2
    expected = (onehot - logits.softmax(-1)).square().sum(-1)
    assert_close(likelihood.errors_of(logits, tokens).squared, expected)


def test_all_blocks_at_once_measure_what_single_blocks_do():
    denoiser = BlockDenoiser(BlockConfig(V=11, D=16, num_layers=1, num_heads=2))
    denoiser.requires_grad_(False)
    tokens = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
    blocks = block_index(6, B=3)
    path = likelihood.staggered(place_in_block(blocks), B=3, width=2.0)
    rule = likelihood.gauss_legendre(4)
    z = noise((2, 6, 11))
    together = likelihood.bound(likelihood.all_blocks(denoiser, tokens, blocks, z), path, rule)
    last = likelihood.one_block(denoiser, tokens[:, :3], tokens[:, 3:], lambda k: z(k)[:, 3:])
    path = likelihood.staggered(torch.arange(3), B=3, width=2.0)
    alone = likelihood.bound(last, path, rule)
    assert_close(together[:, 3:].float(), alone.float(), roundings=NETWORK)


def test_the_context_stream_is_scored_exactly():
    denoiser = BlockDenoiser(BlockConfig(V=11, D=16, num_layers=1, num_heads=2))
    tokens = torch.randint(11, (2, 6))
    nll = likelihood.next_token_nll(denoiser, tokens)
    assert_close(nll, -denoiser.log_unigram[tokens[:, 1:]], roundings=NETWORK)


def test_all_blocks_of_an_adapter_measure_what_single_blocks_do():
    denoiser, tokens = tiny.adapted(), torch.randint(tiny.V, (2, 7))
    rule, z, path = likelihood.gauss_legendre(4), noise((2, 6, tiny.V)), likelihood.parallel()
    ask = likelihood.all_blocks(denoiser, tokens, block_index(6, B=3), z)
    together = likelihood.bound(ask, path, rule)
    last = likelihood.one_block(denoiser, tokens[:, :4], tokens[:, 4:], lambda k: z(k)[:, 3:])
    alone = likelihood.bound(last, path, rule)
    assert_close(together[:, 3:].float(), alone.float(), roundings=NETWORK)


def test_with_blocks_of_one_the_bound_of_an_adapter_is_its_language_models_likelihood():
    denoiser, generator = tiny.adapted(), torch.Generator().manual_seed(2)
    before = torch.randint(tiny.V, (3000, 2), generator=generator)
    said = denoiser.prefill(before).logits
    block = torch.multinomial(said.softmax(-1), 1, generator=generator)
    exact = said.log_softmax(-1).gather(1, block).neg().mean().item()
    measure = likelihood.one_block(denoiser, before, block, noise((3000, 1, tiny.V)))
    bound = likelihood.bound(measure, likelihood.parallel(), likelihood.gauss_legendre(16))
    assert exact > 1.0 and bound.mean() == pytest.approx(exact, abs=0.08)


def test_while_the_first_position_alone_has_evidence_an_adapter_is_measured_as_its_model():
    denoiser, z = tiny.adapted(), noise((4, 3, tiny.V))
    before, block = torch.randint(tiny.V, (4, 5)), torch.randint(tiny.V, (4, 3))
    path = likelihood.staggered(torch.arange(3), B=3, width=4.0)
    whole = likelihood.one_block(denoiser, before, block, z)
    first = likelihood.one_block(denoiser, before, block[:, :1], lambda k: z(k)[:, :1])
    for time, is_alone in ((0.1, True), (0.14, True), (0.25, False)):
        progress = schedule.progress_of_snr(path(torch.tensor(time)))
        found, alone = whole(progress, 0).nll[:, 0], first(progress[:1], 0).nll[:, 0]
        assert (progress[1] == 1) == is_alone
        assert torch.equal(found, alone) == is_alone
    bound = likelihood.bound(whole, path, likelihood.gauss_legendre(4, panels=4))
    assert bound.isfinite().all() and bound.sum() > 0

"""The two loops, under denoisers whose answers are known."""

from dataclasses import dataclass, replace

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.denoiser import Denoiser, remember
from ssdlm.diffusion import schedule, simplex
from ssdlm.diffusion.grid import Grid, Staggered, Uniform
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import Truncation, greedy, mean, multi_hot, nucleus, sampling
from ssdlm.diffusion.sampler import Strategy, denoise_block, generate
from ssdlm.diffusion.steps import Ddpm, Renoise
from ssdlm.diffusion.stopping import stable
from ssdlm.guidance.gradient import guided

K, V = 5.0, 64
PROJECTIONS = [greedy(K), sampling(K, 0.9), multi_hot(K, 0.9), mean(K, 0.9)]
RULES = [Renoise(0.0), Renoise(0.5), Renoise(1.0), Renoise("adaptive"), Ddpm(), Ddpm(True)]


@dataclass
class Cache:
    context: torch.Tensor


@dataclass
class Oracle(Denoiser):
    """A denoiser that knows the text: row by row, position by position."""

    target: torch.Tensor
    V: int = V
    K: float = K
    max_len: int | None = None

    @property
    def device(self):
        return self.target.device

    def prefill(self, context):
        return Cache(context)

    def extend(self, cache, block):
        return Cache(torch.cat((cache.context, block), 1))

    def denoise(self, cache, w_t, progress):
        start, B = cache.context.shape[1], w_t.shape[1]
        return simplex.to_logits(self.target[:, start : start + B], V=V, K=20.0)


def noise_for(N, seed=0):
    return RowNoise(torch.arange(seed, seed + N))


def last(steps):
    *_, step = steps
    return step


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("project", PROJECTIONS, ids=repr)
@pytest.mark.parametrize("grid", [Uniform(7), Staggered(9, 3.0), Staggered(5, 0.5)], ids=repr)
@pytest.mark.parametrize("returns", ["logits", "w_0"])
def test_an_oracle_decodes_to_its_target_exactly(project, rule, grid, returns):
    target = torch.randint(V, (3, 17), generator=torch.Generator().manual_seed(0))
    strategy = Strategy(grid, project, rule, returns=returns)
    steps = list(
        generate(Oracle(target), target[:, :4], strategy, blocks=[5, 5, 3], noise=noise_for(3))
    )
    written = torch.cat([step.tokens for step in steps if step.is_last], 1)
    assert torch.equal(written, target[:, 4:])
    w_0 = next(step.w_t for step in steps if step.is_last)
    assert_close(w_0, simplex.to_logits(target[:, 4:9], V=V, K=K))


def test_a_block_takes_t_calls_from_t_to_zero():
    target = torch.zeros(1, 5, dtype=torch.long)
    steps = list(
        denoise_block(
            Oracle(target),
            Cache(target[:, :0]),
            Strategy(Uniform(9), greedy(K)),
            B=5,
            noise=noise_for(1),
        )
    )
    assert [step.t for step in steps] == list(range(8, -1, -1))
    assert [step.is_last for step in steps] == [False] * 8 + [True]


def test_levels_of_their_own_equal_one_shared_level():
    denoiser, context = tiny.encoder(), torch.tensor([[3, 4, 5]])
    shared = Uniform(6)

    def each(B):
        return Grid.through(shared(B).progress.unsqueeze(1).expand(-1, B))

    for rule in (Renoise(0.0), Renoise(1.0), Ddpm()):
        texts = [
            last(
                denoise_block(
                    denoiser,
                    denoiser.prefill(context),
                    Strategy(grid, sampling(K, 0.9), rule),
                    B=5,
                    noise=noise_for(1),
                )
            ).logits
            for grid in (shared, each)
        ]
        assert_close(*texts, roundings=NETWORK)


def test_end_of_text_stops_when_every_row_has_ended():
    target = torch.full((2, 12), 9)
    target[0, 1], target[1, 5] = 63, 63
    steps = generate(
        Oracle(target),
        target[:, :0],
        Strategy(Uniform(2), greedy(K), end_of_text=63),
        blocks=[3] * 4,
        noise=noise_for(2),
    )
    assert {step.block for step in steps} == {0, 1}


def test_a_block_is_left_where_every_row_has_decided_on_its_end():
    target = torch.full((2, 12), 9)
    target[0, 1], target[1, 5] = 63, 63
    whole, cut = (
        list(
            denoise_block(
                Oracle(target),
                Cache(target[:, :0]),
                Strategy(Staggered(12, 1.0), greedy(K), end_of_text=end),
                B=12,
                noise=noise_for(2),
            )
        )
        for end in (None, 63)
    )
    assert len(whole) == 12
    assert len(cut) == 6  # the second row's end is decided by then
    assert [step.is_last for step in cut] == [False] * 5 + [True]
    assert torch.equal(cut[-1].tokens[:, :6], target[:, :6])


def test_a_settled_block_leaves_early_with_the_same_tokens():
    target = torch.randint(V, (2, 6), generator=torch.Generator().manual_seed(1))
    strategy = Strategy(Uniform(50), greedy(K), stop=stable(patience=3))
    steps = list(
        denoise_block(Oracle(target), Cache(target[:, :0]), strategy, B=6, noise=noise_for(2))
    )
    assert len(steps) == 3
    assert steps[-1].is_last
    assert torch.equal(steps[-1].tokens, target)


def test_a_settled_row_keeps_its_tokens_while_its_neighbour_goes_on():
    @dataclass
    class Restless(Oracle):
        calls: int = 0

        def denoise(self, cache, w_t, progress):
            self.calls += 1
            logits = super().denoise(cache, w_t, progress)
            logits[1] = logits[1].roll(self.calls, -1)
            if self.calls > 4:
                logits[0] = logits[0].roll(1, -1)
            return logits

    target = torch.zeros(2, 4, dtype=torch.long)
    strategy = Strategy(Uniform(9), greedy(K), stop=stable(patience=3))
    steps = list(
        denoise_block(Restless(target), Cache(target[:, :0]), strategy, B=4, noise=noise_for(2))
    )
    assert len(steps) == 9
    assert torch.equal(steps[-1].tokens[0], target[0])


def test_a_long_context_keeps_its_latest_tokens():
    denoiser = tiny.encoder(max_len=10)
    context = torch.arange(20).view(1, 20)
    assert remember(denoiser, None, context, B=4).context.tolist() == [list(range(14, 20))]
    assert remember(denoiser, None, context, B=10).context.shape == (1, 0)
    with pytest.raises(ValueError, match="B=11 is longer than the model's 10 positions; lower B"):
        remember(denoiser, None, context, B=11)


def test_many_blocks_run_past_the_models_length():
    denoiser = tiny.encoder(max_len=12)
    steps = generate(
        denoiser,
        torch.zeros(1, 5, dtype=torch.long),
        Strategy(Uniform(2), greedy(K)),
        blocks=[5, 1, 7, 2],
        noise=noise_for(1),
    )
    assert sum(step.tokens.shape[1] for step in steps if step.is_last) == 15


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_a_row_is_independent_of_its_neighbours_to_the_last_bit(kind):
    denoiser = tiny.encoder(kind)
    context = torch.randint(V, (5, 1), generator=torch.Generator().manual_seed(3))
    strategy = Strategy(Uniform(8), sampling(K, 0.9))

    def run(rows):
        noise = RowNoise(torch.tensor(rows))
        return last(generate(denoiser, context[rows], strategy, blocks=[3, 1], noise=noise))

    together = run([0, 1, 2, 3, 4])
    for row in range(5):
        assert torch.equal(run([row]).logits[0], together.logits[row])
    assert torch.equal(run([4, 2]).w_t[0], together.w_t[4])


def test_a_decided_position_stays_and_later_ones_see_its_token():
    denoiser, seen = tiny.encoder(), []

    class Watching(Oracle):
        def denoise(self, cache, w_t, progress):
            seen.append((w_t.clone(), progress.clone()))
            return denoiser.denoise(cache, w_t, progress)

    strategy = Strategy(Staggered(12, 2.0), sampling(K, 0.9), returns="logits")
    context = torch.tensor([[3, 4]])
    *_, end = denoise_block(
        Watching(context), denoiser.prefill(context), strategy, B=6, noise=noise_for(1)
    )
    decided = simplex.to_logits(end.tokens, V=V, K=K)
    for w_t, progress in seen:
        assert torch.equal(w_t[progress == 0], decided[progress == 0])
    assert (seen[-1][1] == 0).sum() >= 4


@pytest.mark.parametrize("rule", [Renoise(0.0), Renoise(0.7), Ddpm()], ids=repr)
@pytest.mark.parametrize("grid", [Staggered(17, 1.0), Staggered(9, 4.0), Uniform(4)], ids=repr)
@pytest.mark.parametrize("returns", ["logits", "w_0"])
def test_looking_at_windows_matches_looking_at_whole_blocks(grid, rule, returns):
    denoiser = tiny.block()

    class Whole(Oracle):
        """The same denoiser, which cannot be asked for a window."""

        def denoise(self, cache, w_t, progress):
            return denoiser.denoise(cache, w_t, progress)

    whole = Whole(torch.zeros(1, dtype=torch.long))
    strategy = Strategy(grid, sampling(K, 0.9), rule, returns=returns)
    cache = denoiser.prefill(torch.tensor([[3, 4], [5, 6]]))
    steps, twins = (
        list(denoise_block(one, cache, strategy, B=6, noise=noise_for(2), block=1))
        for one in (denoiser, whole)
    )
    assert any(step.logits.shape[1] < 6 for step in steps) == isinstance(grid, Staggered)
    for step, twin in zip(steps, twins, strict=True):
        assert_close(step.logits, twin.logits[:, step.window], roundings=NETWORK)
        assert torch.equal(step.tokens[:, : step.window.stop], twin.tokens[:, : step.window.stop])
    assert torch.equal(steps[-1].tokens, twins[-1].tokens)
    assert_close(steps[-1].w_t, twins[-1].w_t, roundings=NETWORK)


def test_rows_that_share_windows_are_independent_to_the_last_bit():
    denoiser, strategy = tiny.block(), Strategy(Staggered(13, 1.0), sampling(K, 0.9))
    context = torch.randint(V, (4, 3), generator=torch.Generator().manual_seed(3))

    def run(rows):
        noise = RowNoise(torch.tensor(rows))
        return last(generate(denoiser, context[rows], strategy, blocks=[5, 4], noise=noise))

    together = run([0, 1, 2, 3])
    for row in range(4):
        alone = run([row])
        assert torch.equal(alone.w_t[0], together.w_t[row])
        assert torch.equal(alone.tokens[0], together.tokens[row])


def test_a_step_leaves_the_state_of_the_step_before_as_it_was():
    denoiser = tiny.block()
    strategy = Strategy(Staggered(9, 1.0), sampling(K, 0.9))
    steps = denoise_block(
        denoiser, denoiser.prefill(torch.tensor([[3]])), strategy, B=6, noise=noise_for(1)
    )
    seen = [(step.w_t, step.w_t.clone(), step.tokens, step.tokens.clone()) for step in steps]
    assert all(torch.equal(a, b) and torch.equal(c, d) for a, b, c, d in seen)


def evidence(w_t, progress):
    """ell of a state at one level: 2 sqrt(a) / (K (1 - a)) w_t."""
    a = schedule.cosine(progress).float()
    return 2 * a.sqrt() / (K * (1 - a)) * w_t


class Exact(Oracle):
    """Bayes' rule for independent tokens: log prior + evidence."""

    prior = torch.linspace(0, -6, V).softmax(-1)

    def denoise(self, cache, w_t, progress):
        return self.prior.log() + evidence(w_t, progress)


def shares(strategy, count=6000):
    """How often each token is written, one a row."""
    target = torch.zeros(count, 1, dtype=torch.long)
    cache = Cache(target[:, :0])
    steps = denoise_block(Exact(target), cache, strategy, B=1, noise=noise_for(count))
    return list(steps)[-1].tokens.flatten().bincount(minlength=V) / count


def test_a_nucleus_of_the_network_is_what_many_steps_end_in():
    inside = nucleus(Exact.prior.log().view(1, 1, -1), 0.8).flatten()
    expected = torch.where(inside, Exact.prior, 0.0) / Exact.prior[inside].sum()
    strategy = Strategy(Uniform(12), sampling(K, 1.0), returns="w_0")
    trimmed = shares(replace(strategy, truncate=Truncation(evidence, 0.8)))
    assert trimmed[~inside].sum() == 0
    assert (trimmed - expected).abs().sum() / 2 < 0.05
    cut = shares(replace(strategy, project=sampling(K, 0.8)))
    assert cut[~inside].sum() > 0.02, "a nucleus of the logits lets noise in"


def test_a_temperature_of_the_network_is_what_many_steps_end_in():
    expected = (Exact.prior.log() / 0.5).softmax(-1)
    strategy = Strategy(Uniform(12), sampling(K, 1.0), returns="w_0")
    sharpened = shares(replace(strategy, truncate=Truncation(evidence, 1.0, 0.5)))
    assert (sharpened - expected).abs().sum() / 2 < 0.05
    assert (sharpened - Exact.prior).abs().sum() / 2 > 0.2, "as it would be without"


def test_trimmed_windows_are_those_of_the_whole_block():
    denoiser = tiny.block()
    truncate = Truncation(denoiser.evidence, 0.7)
    strategy = Strategy(Staggered(12, 2.0), sampling(K, 1.0), truncate=truncate, returns="w_0")
    context = torch.arange(6).view(2, 3)
    cache = denoiser.prefill(context)
    found = [
        list(denoise_block(chosen, cache, strategy, B=5, noise=noise_for(2)))[-1].tokens
        for chosen in (denoiser, guided(denoiser, lambda context, logits: 0 * logits.sum(), 0.0))
    ]
    assert torch.equal(*found)

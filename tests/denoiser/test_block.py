"""The BlockDenoiser: cached equals uncached, all blocks at once equal one by one, nothing leaks."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.closeness import NETWORK, assert_close

from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser, Earlier
from ssdlm.denoiser.layer import norm, project
from ssdlm.denoiser.network import MAX_SNR
from ssdlm.denoiser.words import WordCache
from ssdlm.diffusion import schedule, simplex
from ssdlm.diffusion.grid import Uniform
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.noising import add_noise
from ssdlm.diffusion.projection import greedy
from ssdlm.diffusion.sampler import Strategy, denoise_block
from ssdlm.ops.noisy_logits import noisy_logits
from ssdlm.ops.rotary import rotate, rotation
from ssdlm.train.levels import block_index, earlier_noise

CONFIG = BlockConfig(V=40, D=32, num_layers=2, num_heads=2)
VARIANTS = {
    "default": CONFIG,
    "paper input": replace(CONFIG, has_evidence=False),
    "unshifted": replace(CONFIG, is_shifted=False),
    "untied": replace(CONFIG, has_tied_simplex=False),
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def denoiser(request) -> BlockDenoiser:
    return lively(request.param)


@pytest.fixture
def plain() -> BlockDenoiser:
    return lively(CONFIG)


def lively(config: BlockConfig) -> BlockDenoiser:
    """A denoiser none of whose parts is silent, as zero-initialised ones are at first."""
    generator = torch.Generator().manual_seed(0)
    made = BlockDenoiser(config)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    made.set_unigram(torch.randint(100, (config.V,), generator=generator))
    return made.requires_grad_(False)


def example(N: int = 2, L: int = 13, V: int = 40):
    """Tokens, a level and noise for each position."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(V, (N, L), generator=generator)
    progress = torch.rand(N, L, generator=generator)
    return tokens, progress, torch.randn(N, L, V, generator=generator)


def noised(denoiser, tokens, progress, z):
    w_0 = simplex.to_logits(tokens, V=denoiser.V, K=denoiser.K)
    return add_noise(w_0, schedule.cosine(progress), K=denoiser.K, z=z)


@pytest.mark.parametrize("offset", [0, 2])
def test_all_blocks_at_once_equal_block_by_block(denoiser, offset):
    tokens, progress, z = example()
    blocks = block_index(13, B=5, offset=offset)
    together = denoiser.all_logits(tokens, progress, z=z, blocks=blocks)
    w_t = noised(denoiser, tokens, progress, z)
    for number in blocks.unique():
        (places,) = torch.where(blocks == number)
        mine = slice(int(places[0]), int(places[-1]) + 1)
        cache = denoiser.prefill(tokens[:, : mine.start])
        alone = denoiser.denoise(cache, w_t[:, mine], progress[:, mine])
        assert_close(
            together[:, mine].log_softmax(-1),
            alone.log_softmax(-1),
            roundings=NETWORK,
            size=alone.abs().max(),
        )


def test_the_loss_is_the_cross_entropy_of_all_logits(denoiser):
    tokens, progress, z = example()
    blocks = block_index(13, B=5)
    nll = denoiser(tokens, progress, z=z, blocks=blocks)
    logits = denoiser.all_logits(tokens, progress, z=z, blocks=blocks)
    expected = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    largest = logits.abs().max()
    assert_close(nll.block, expected.mean(), roundings=NETWORK, size=largest)


def test_decoding_with_a_cache_equals_decoding_without(denoiser):
    tokens, progress, z = example()
    w_t = noised(denoiser, tokens, progress, z)[:, 10:]
    grown = denoiser.extend(denoiser.prefill(tokens[:, :4]), tokens[:, 4:10])
    at_once = denoiser.prefill(tokens[:, :10])
    assert grown.context.equal(tokens[:, :10])
    assert_close(
        denoiser.denoise(grown, w_t, progress[:, 10:]),
        denoiser.denoise(at_once, w_t, progress[:, 10:]),
        roundings=NETWORK,
    )


@pytest.mark.parametrize("at", [slice(0, 1), slice(2, 4), slice(4, 5)])
def test_a_window_matches_the_whole_block(denoiser, at):
    denoiser, (tokens, _, z) = denoiser.double(), example(L=9)  # rounding is not what is tested
    levels = torch.tensor([0.0] * at.start + [0.3, 1.0][: at.stop - at.start] + [1.0] * 5)[:5]
    levels, block = levels.expand(2, 5), tokens[:, 4:]
    cache, w_t = denoiser.prefill(tokens[:, :4]), noised(denoiser, block, levels, z[:, 4:])
    whole = denoiser.denoise(cache, w_t, levels)
    window = denoiser.denoise_window(cache, w_t, levels, block, at)
    torch.testing.assert_close(window, whole[:, at], atol=1e-5, rtol=1e-5)  # levels are float32


def test_matrices_stored_by_columns_have_the_same_values_and_results(denoiser):
    tokens, progress, z = example(L=9)
    w_t, before = noised(denoiser, tokens, progress, z)[:, 4:], denoiser.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    expected = denoiser.denoise(denoiser.prefill(tokens[:, :4]), w_t, progress[:, 4:])
    denoiser.store_for_cpu()
    assert not any(layer.up.is_contiguous() for layer in denoiser.transformer_layers())
    assert not denoiser.head.is_contiguous()
    assert all(torch.equal(value, before[name]) for name, value in denoiser.state_dict().items())
    logits = denoiser.denoise(denoiser.prefill(tokens[:, :4]), w_t, progress[:, 4:])
    assert_close(logits, expected, roundings=NETWORK)


def test_later_blocks_do_not_leak_into_earlier_ones(denoiser):
    tokens, progress, z = example()
    blocks = block_index(13, B=5)
    before = denoiser.all_logits(tokens, progress, z=z, blocks=blocks)
    changed = tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % denoiser.V
    after = denoiser.all_logits(changed, progress, z=z, blocks=blocks)
    moved = (before - after).abs().amax((0, 2))
    assert moved[:5].max() == 0, "block 0 must not see token 6"
    assert moved[10:].min() > 0, "block 2 must see token 6"


def test_the_context_stream_is_causal(plain):
    tokens, _, _ = example()
    nothing = plain.prefill(tokens[:, :0])
    before = plain.next_logits(nothing, tokens)
    changed = tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % plain.V
    after = plain.next_logits(nothing, changed)
    moved = (before - after).abs().amax((0, 2))
    assert moved[:6].max() == 0
    assert moved[6:].min() > 0


def test_a_noisy_block_sees_all_of_itself(plain):
    tokens, _, z = example(L=5)
    progress = torch.full((2, 5), 0.3)
    cache = plain.prefill(tokens[:, :0])
    before = plain.denoise(cache, noised(plain, tokens, progress, z), progress)
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % plain.V
    after = plain.denoise(cache, noised(plain, changed, progress, z), progress)
    assert (before - after).abs().amax((0, 2))[0] > 0


def test_evidence_is_the_log_likelihood_of_what_is_seen(plain):
    tokens, progress, z = example()
    w_t = noised(plain, tokens, progress, z).double()
    a = schedule.cosine(progress).unsqueeze(-1)
    candidates = simplex.to_logits(torch.arange(40).unsqueeze(0), V=40, K=plain.K)[0].double()
    mean = a.unsqueeze(-1).sqrt() * candidates
    spread = 2 * plain.K**2 * (1 - a)
    log_likelihood = -(w_t.unsqueeze(2) - mean).square().sum(-1) / spread
    snr = schedule.snr(progress).unsqueeze(-1)
    expected = (log_likelihood * (MAX_SNR / snr).clamp(max=1.0)).log_softmax(-1)
    got = (plain.gain(progress).unsqueeze(-1) * w_t).log_softmax(-1)
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-4)


def test_noised_tokens_in_factors_equal_the_forward_process(denoiser):
    tokens, progress, z = example()
    progress[0, 0], progress[0, 1] = 0.0, 1.0
    read = denoiser.gain(progress).unsqueeze(-1) * noised(denoiser, tokens, progress, z)
    factors = noisy_logits(*denoiser.noised(tokens, progress, z).parts()).view_as(read)
    difference = read.log_softmax(-1) - factors.log_softmax(-1)
    assert difference.abs().max() < 1e-3


def test_evidence_decides_alone_where_it_is_strong(plain):
    tokens, _, z = example()
    progress = torch.full((2, 13), 0.02)
    logits = plain.all_logits(tokens, progress, z=z, blocks=block_index(13, B=5))
    assert F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none").max() < 1e-3


def test_a_fresh_network_predicts_the_unigram_posterior():
    tokens, progress, z = example()
    fresh = BlockDenoiser(CONFIG).requires_grad_(False)
    fresh.set_unigram(torch.arange(40))
    w_t = noised(fresh, tokens, progress, z)
    logits = fresh.denoise(fresh.prefill(tokens[:, :0]), w_t, progress)
    expected = fresh.log_unigram + fresh.gain(progress).unsqueeze(-1) * w_t
    assert_close(logits, expected, roundings=NETWORK)


def test_next_to_a_clean_left_side_the_block_starts_as_the_context_stream_does(plain):
    tokens, _, z = example(L=1)
    context, noise_level = torch.randint(40, (2, 6)), torch.ones(2, 1)
    w_t = noised(plain, tokens, noise_level, z)
    simplex_in = (plain.prior + plain.gain(noise_level).unsqueeze(-1) * w_t).softmax(-1)
    entering = plain.embed_noisy(
        simplex_in @ plain.tables(), plain.word_before(context), noise_level, plain.blank()
    )
    assert_close(entering, plain.embed(context[:, -1:]), roundings=NETWORK)


def test_no_context_at_all_is_enough(denoiser):
    tokens, progress, z = example()
    cache = denoiser.prefill(tokens[:, :0])
    logits = denoiser.denoise(cache, noised(denoiser, tokens, progress, z), progress)
    assert isinstance(cache, WordCache)
    assert logits.shape == (2, 13, 40)
    assert logits.isfinite().all()


def test_a_row_is_independent_of_its_neighbours(plain):
    tokens, progress, z = example(N=3)
    w_t = noised(plain, tokens, progress, z)[:, 8:]
    together = plain.denoise(plain.prefill(tokens[:, :8]), w_t, progress[:, 8:])
    alone = plain.denoise(plain.prefill(tokens[1:2, :8]), w_t[1:2], progress[1:2, 8:])
    assert together[1:2].equal(alone)


def test_one_level_for_all_may_be_a_scalar(plain):
    tokens, _, z = example()
    progress = torch.full((2, 13), 0.4)
    w_t = noised(plain, tokens, progress, z)
    cache = plain.prefill(tokens[:, :0])
    scalar = plain.denoise(cache, w_t, torch.tensor(0.4))
    assert_close(scalar, plain.denoise(cache, w_t, progress), roundings=NETWORK)


def test_levels_zero_and_one_are_finite(denoiser):
    tokens, _, z = example()
    for level in (0.0, 1.0):
        progress = torch.full((2, 13), level)
        w_t = noised(denoiser, tokens, progress, z)
        logits = denoiser.denoise(denoiser.prefill(tokens[:, :0]), w_t, progress)
        assert logits.isfinite().all()


def test_lengths_past_training_work(plain):
    tokens, progress, z = example(L=400)
    nll = plain(tokens, progress, z=z, blocks=block_index(400, B=25))
    assert nll.block.isfinite()


def test_every_weight_learns(denoiser):
    denoiser.requires_grad_(True)
    tokens, progress, z = example()
    nll = denoiser(tokens, progress, z=z, blocks=block_index(13, B=5))
    nll.total.backward()
    still = {name for name, weight in denoiser.named_parameters() if weight.grad is None}
    assert still == set()
    assert all(weight.grad.abs().max() > 0 for weight in denoiser.parameters())


def test_mini_has_the_size_that_was_asked_for():
    with torch.device("meta"):
        mini = BlockDenoiser(BlockConfig())
    assert 30e6 < sum(weight.numel() for weight in mini.parameters()) < 36e6


def self_conditioned():
    made = lively(replace(CONFIG, has_self_conditioning=True))
    tokens, progress, z = example()
    share = torch.full_like(progress, 0.5)
    before = schedule.progress_of_snr(share * schedule.snr(progress)).float()
    fresh = torch.randn(z.shape, generator=torch.Generator().manual_seed(2))
    return made, tokens, progress, z, Earlier(before, earlier_noise(z, fresh, share))


def test_a_belief_enters_alike_in_training_and_in_decoding():
    denoiser, tokens, progress, z, earlier = self_conditioned()
    blocks = block_index(13, B=13)
    nll = denoiser(tokens, progress, z=z, blocks=blocks, earlier=earlier).block
    cache = denoiser.prefill(tokens[:, :0])
    w_before = noised(denoiser, tokens, earlier.progress, earlier.z)
    said = denoiser.denoise(cache, w_before, earlier.progress)
    w_t = noised(denoiser, tokens, progress, z)
    logits = denoiser.denoise(cache, w_t, progress, previous=said)
    expected = F.cross_entropy(logits.transpose(1, 2), tokens)
    assert_close(nll, expected, roundings=NETWORK, size=logits.abs().max())
    without = denoiser(tokens, progress, z=z, blocks=blocks).block
    assert (without - nll).abs() > 1e-3


def test_the_sampler_tells_a_denoiser_with_memory_what_it_said():
    denoiser, tokens, *_ = self_conditioned()
    strategy = Strategy(Uniform(3), greedy(K=denoiser.K))
    cache, noise = denoiser.prefill(tokens[:, :4]), RowNoise(torch.arange(len(tokens)))
    steps = list(denoise_block(denoiser, cache, strategy, B=5, noise=noise))
    previous, w_t = None, denoiser.K * noise.normal(block=0, step=0, B=5, V=denoiser.V)
    for step in steps:
        level = torch.tensor((step.t + 1) / 3)
        said = denoiser.denoise(cache, w_t, level, previous=previous)
        assert_close(step.logits, said, roundings=NETWORK)
        previous, w_t = said, step.w_t
    alone = denoiser.denoise(cache, steps[-2].w_t, torch.tensor(1 / 3))
    assert (alone - steps[-1].logits).abs().max() > 1e-3


def test_a_belief_is_silent_until_it_is_trained():
    denoiser, tokens, progress, z, earlier = self_conditioned()
    denoiser.self_embed.zero_()
    blocks = block_index(13, B=5)
    nll = denoiser(tokens, progress, z=z, blocks=blocks, earlier=earlier)
    without = denoiser(tokens, progress, z=z, blocks=blocks)
    assert_close(nll.block, without.block, roundings=NETWORK)
    denoiser.requires_grad_(True)
    denoiser(tokens, progress, z=z, blocks=blocks, earlier=earlier).total.backward()
    assert denoiser.self_embed.grad.abs().max() > 0


def test_a_position_without_evidence_reads_as_the_mean_word(denoiser):
    progress, blank = torch.ones(1, 3), denoiser.blank()
    soft = denoiser.read_state(torch.zeros(1, 3, denoiser.V), progress, blank)
    assert torch.equal(soft, blank.expand(1, 3, -1))
    weak = torch.zeros(1, 3, denoiser.V)
    weak[0, 1, 2] = 1e-20  # too little to matter, and yet the long way is taken
    assert_close(denoiser.read_state(weak, progress, blank), soft)


def test_queries_and_keys_are_normed_and_turned_together_as_they_are_one_by_one():
    x, qkv = torch.randn(2, 3, 32), torch.randn(3, 32, 32)
    rotary = rotation(torch.arange(3), 8)
    parts = [F.linear(norm(x), weight).unflatten(-1, (4, 8)) for weight in qkv]
    turned = [rotate(norm(part), rotary) for part in parts[:2]] + parts[2:]
    assert_close(project(x, rotary, qkv, 4), [part.transpose(1, 2) for part in turned])

"""The sliding window: what it moves over, what it sees, and that it needs one pass a token."""

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.diffusion import simplex
from ssdlm.diffusion.grid import Sliding, Uniform
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import Truncation, greedy, sampling, untruncated
from ssdlm.diffusion.sampler import Strategy
from ssdlm.diffusion.sliding import slide
from ssdlm.guidance.gradient import guided

K, V = 5.0, tiny.V


def strategy_for(denoiser, project=None):
    cut = Truncation(denoiser.evidence, 0.9) if denoiser.has_evidence else untruncated
    return Strategy(Uniform(1), project or sampling(K, 1.0), truncate=cut, returns="w_0")


def run(denoiser, context, path, blocks, B=None, seed=0, project=None):
    noise = RowNoise(torch.arange(seed, seed + len(context)))
    strategy = strategy_for(denoiser, project)
    return list(slide(denoiser, context, strategy, path, blocks=blocks, B=B or blocks, noise=noise))


def text(steps):
    return torch.cat([step.tokens for step in steps if step.is_last], 1)


@pytest.mark.parametrize("width", [0.5, 1.0, 2.5, 4.0])
@pytest.mark.parametrize(("T", "B"), [(6, 6), (3, 6), (15, 6), (1, 6), (6, 1)])
def test_every_position_goes_from_noise_to_clean_and_never_back(T, B, width):
    blocks, level = [B, B, max(1, B - 4)], {}
    whole = [B, B, B]
    for move in Sliding(T, width).moves(blocks, whole):
        window, (after, before) = move.window, move.levels.progress
        for place, old, new in zip(range(window.start, window.stop), before, after, strict=True):
            assert level.get(place, 1.0) == old >= new
            level[place] = float(new)
        assert (after[: move.num_decided] == 0).all()
        assert (after[move.num_decided :] > 0).all()
    assert all(level[place] == 0 for place in range(sum(blocks)))


@pytest.mark.parametrize("width", [1.0, 3.0])
def test_a_text_takes_as_many_passes_as_tokens(width):
    steps = run(
        tiny.block(), torch.zeros(1, 4, dtype=torch.long), Sliding(6, width), [6, 6, 3], [6] * 3
    )
    assert len(steps) == sum(step.num_passes for step in steps) == 15
    assert [step.block for step in steps if step.is_last] == [0, 1, 2]
    assert [step.tokens.shape[1] for step in steps if step.is_last] == [6, 6, 3]


@pytest.mark.parametrize("variant", [{}, {"has_evidence": False}, {"is_shifted": False}])
def test_reading_and_denoising_in_one_pass_is_both_after_each_other(variant):
    denoiser, tokens = tiny.block(**variant), torch.arange(14).reshape(2, 7)
    w_t = 3 * torch.randn(2, 3, V)
    progress = torch.tensor([[0.3, 0.6, 1.0]]).expand(2, 3)
    cache = denoiser.prefill(tokens[:, :4])
    longer, logits = denoiser.read_and_denoise(cache, tokens[:, 4:], w_t, progress)
    apart = denoiser.extend(cache, tokens[:, 4:])
    assert_close(longer.past, apart.past, roundings=NETWORK)
    assert_close(logits, denoiser.denoise(apart, w_t, progress), roundings=NETWORK)


@pytest.mark.parametrize("width", [1.0, 2.0, 3.0])
def test_a_row_does_not_depend_on_its_batch(width):
    denoiser, context = tiny.block(), torch.arange(12).reshape(3, 4)
    together = text(run(denoiser, context, Sliding(6, width), [6, 6]))
    for row in range(3):
        alone = text(run(denoiser, context[row : row + 1], Sliding(6, width), [6, 6], seed=row))
        assert torch.equal(alone[0], together[row])


def test_how_much_is_asked_for_does_not_change_the_beginning():
    denoiser, context = tiny.block(), torch.arange(4).reshape(1, 4)
    short = text(run(denoiser, context, Sliding(6, 3.0), [6, 2], [6, 6]))
    long = text(run(denoiser, context, Sliding(6, 3.0), [6, 6, 6]))
    assert torch.equal(short, long[:, :8])


def test_a_window_of_one_draws_from_what_the_network_says_of_the_next_position():
    denoiser, context = tiny.block(), torch.arange(4).reshape(1, 4)
    tokens = text(run(denoiser, context, Sliding(6, 1.0), [6], project=greedy(K)))
    for place in range(6):
        cache = denoiser.prefill(torch.cat((context, tokens[:, :place]), 1))
        logits = denoiser.denoise(cache, torch.zeros(1, 1, V), torch.ones(1, 1))
        assert int(logits.argmax()) == int(tokens[0, place])


def test_decided_tokens_are_context_and_open_ones_carry_evidence():
    denoiser, context = tiny.block(), torch.arange(4).reshape(1, 4)
    steps = run(denoiser, context, Sliding(6, 3.0), [6, 6])
    assert [step.w_t.shape[1] for step in steps] == [2] * 12
    whole = text(steps)
    for number, step in enumerate(steps):
        start = 6 * step.block
        decided = step.tokens[0, : step.window.start + 1]
        assert torch.equal(decided, whole[0, start : number + 1])


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_any_denoiser_can_slide_and_room_is_kept(kind):
    denoiser = tiny.encoder(kind, max_len=16)
    steps = run(denoiser, torch.zeros(1, 10, dtype=torch.long), Sliding(6, 2.0), [6, 6])
    assert text(steps).shape == (1, 12)


def test_a_guide_steers_the_window():
    denoiser, context = tiny.block(), torch.arange(4).reshape(1, 4)
    target = simplex.to_logits(torch.tensor([[7]]), V=V, K=K)[0, 0]
    seen = []

    def log_prob(context, logits):
        seen.append((context.shape[1], logits.shape[1]))
        return (logits.softmax(-1) * target).sum((1, 2))

    steered = guided(denoiser, log_prob, lam=1e4, has_windows=True)
    noise = RowNoise(torch.arange(1))
    path, strategy = Sliding(6, 1.0), strategy_for(denoiser, greedy(K))
    steps = slide(steered, context, strategy, path, blocks=[6], B=[6], noise=noise)
    assert (text(list(steps)) == 7).all()
    assert seen == [(4 + place, 1) for place in range(6)]


def test_a_window_of_one_needs_neither_normals_nor_soft_words(monkeypatch):
    denoiser, context = tiny.block(), torch.tensor([[5, 9, 3]])
    usual = text(run(denoiser, context, Sliding(6, 1.0), [6, 4], [6, 6]))
    blank = denoiser.blank()
    monkeypatch.setattr(denoiser, "blank", lambda: blank)
    monkeypatch.setattr(denoiser, "tables", lambda: pytest.fail("a V-wide product"))
    monkeypatch.setattr(RowNoise, "normal", lambda *_, **__: pytest.fail("normals were drawn"))
    assert torch.equal(text(run(denoiser, context, Sliding(6, 1.0), [6, 4], [6, 6])), usual)

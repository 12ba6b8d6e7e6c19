"""Control wraps a denoiser and is one."""

import math

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm import SSDLM
from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.diffusion.simplex import to_logits
from ssdlm.guidance.gradient import (
    guided,
    logit_gradient,
    soft_threshold,
    weighted,
    without_implausible,
    without_repeats,
)
from ssdlm.options import DecodeConfig


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
    assert_close(moved, bare + 2.0 * by_hand, roundings=NETWORK)
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
    assert_close(summed, 3 * averaged, roundings=NETWORK, size=bare.abs().max())
    alone = guided(denoiser, likes(7), 6.0).denoise(
        denoiser.prefill(cache.context[:1]), w_t[:1], progress
    )
    assert_close(alone[0], bare[0] + summed[0], roundings=NETWORK)


def test_guides_compose_by_weight():
    denoiser, cache, w_t = setup()
    progress = torch.tensor(0.5)
    bare = denoiser.denoise(cache, w_t, progress)

    def nudge(log_prob, lam):
        return guided(denoiser, log_prob, lam).denoise(cache, w_t, progress) - bare

    both = nudge(weighted((likes(7), 2.0), (likes(9), -1.0)), 1.0)
    apart = nudge(likes(7), 2.0) + nudge(likes(9), -1.0)
    assert_close(both, apart, roundings=NETWORK, size=bare.abs().max())


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


def of_words(context, logits):
    """A control function whose gradient in the simplex is known: sum of p * place in the list."""
    worth = torch.linspace(-1, 1, logits.shape[-1], dtype=logits.dtype)
    return (logits.softmax(-1) * worth).sum((-1, -2))


def test_in_the_simplex_a_token_is_nudged_by_what_it_adds():
    denoiser, cache, w_t = setup()
    bare = denoiser.denoise(cache, w_t, torch.tensor(0.5))
    moved = guided(denoiser, of_words, 3.0, gradient="simplex").denoise(
        cache, w_t, torch.tensor(0.5)
    )
    worth = torch.linspace(-1, 1, tiny.V)
    by_hand = worth - (bare.softmax(-1) * worth).sum(-1, keepdim=True)
    assert_close(moved, bare + 3.0 * by_hand, roundings=4 * NETWORK)


def test_a_small_step_in_the_simplex_is_bayes_rule():
    """p(token | label) is p(token) p(label | token) where log p(label | token) is linear."""
    logits = torch.randn(1, 1, 9, generator=torch.Generator().manual_seed(0))
    worth = torch.linspace(-0.5, 0.0, 9)
    wrapped = guided(tiny.encoder(), lambda _, x: (x.softmax(-1) * worth).sum((-1, -2)), 1.0,
                     gradient="simplex")  # fmt: skip
    moved = wrapped.steer(torch.zeros(1, 1, dtype=torch.long), logits, torch.tensor(0.5))
    exact = (logits.softmax(-1) * worth.exp()).log()
    assert_close(moved.log_softmax(-1), exact.log_softmax(-1), roundings=NETWORK)


def test_only_what_stands_out_is_nudged_and_by_no_more_than_lam():
    gain = torch.tensor([[[0.1, -0.1, 0.2, -0.2, 0.0, 3.0, -4.0, 0.1, 0.0, 0.0]]])
    kept = soft_threshold(gain, 1.0)
    assert (kept != 0).flatten().tolist() == [False] * 5 + [True, True] + [False] * 3
    spread = (gain - gain.mean()).square().mean().sqrt()
    assert_close(kept[0, 0, 5], (3.0 - gain.mean()) / spread - 1, size=3.0)
    assert kept[0, 0, 6] == -1.0
    assert torch.allclose(soft_threshold(1e-4 * gain + 3, 1.0), kept, atol=1e-2)
    assert not soft_threshold(torch.zeros(1, 2, 5), 2.0).any()


def test_no_token_is_helped_that_is_far_from_the_likeliest():
    logits = torch.tensor([[[0.0, -1.0, -2.0, -3.0, -9.0]]])
    nudge = torch.tensor([[[1.0, 1.0, 1.0, 1.0, -1.0]]])
    kept = without_implausible(nudge, logits, 0.1)  # log 0.1 is -2.3
    assert kept.tolist() == [[[1, 1, 1, 0, -1]]]
    assert without_implausible(nudge, logits, 1.0).tolist() == [[[1, 0, 0, 0, -1]]]
    assert torch.equal(without_implausible(nudge, logits, 0.0), nudge)


@pytest.mark.parametrize("plausible", [0.0, 0.5])
def test_words_are_helped_where_the_model_might_write_them(plausible):
    denoiser, cache, w_t = setup()
    progress, how = torch.tensor(0.5), {"gradient": "words", "threshold": 0.5}
    bare = denoiser.denoise(cache, w_t, progress)
    moved = guided(denoiser, of_words, 3.0, plausible=plausible, **how)
    nudge = moved.denoise(cache, w_t, progress) - bare
    is_likely = bare >= bare.amax(-1, keepdim=True) + math.log(0.5)
    assert (nudge[is_likely] > 0).any() and (nudge[~is_likely] < 0).any()
    assert bool((nudge[~is_likely] > 1e-4).any()) == (not plausible)


def test_a_token_of_the_context_gets_no_more_help():
    nudge = torch.tensor([[[1.0, 2.0, -3.0, 4.0]], [[1.0, 2.0, -3.0, 4.0]]])
    context = torch.tensor([[3, 2], [0, 0]])
    assert without_repeats(nudge, context).tolist() == [[[1, 2, -3, 0]], [[0, 2, -3, 4]]]
    assert torch.equal(without_repeats(nudge, context[:, :0]), nudge)


def test_each_term_has_a_threshold_of_its_own():
    denoiser, cache, w_t = setup()
    progress, how = torch.tensor(0.5), {"gradient": "words", "threshold": 1.0}
    bare = denoiser.denoise(cache, w_t, progress)

    def nudge(log_prob):
        return guided(denoiser, log_prob, 1.0, **how).denoise(cache, w_t, progress) - bare

    both = nudge(weighted((of_words, 1.0), (likes(7), 100.0)))
    assert torch.allclose(
        both, nudge(of_words) + nudge(weighted((likes(7), 100.0))), rtol=1e-3, atol=1e-3
    )


def test_outside_its_band_a_classifier_is_not_asked():
    denoiser, cache, w_t = setup()
    asked = []

    def log_prob(context, logits):
        asked.append(len(logits))
        return likes(7)(context, logits)

    wrapped = guided(denoiser, log_prob, 2.0, band=(0.2, 0.6))
    for level in (0.1, 0.7):
        bare = denoiser.denoise(cache, w_t, torch.tensor(level))
        assert torch.equal(wrapped.denoise(cache, w_t, torch.tensor(level)), bare)
    assert not asked
    mixed = torch.tensor([0.0, 0.1, 0.4, 0.6, 1.0]).expand(3, 5)
    moved = wrapped.steer(cache.context, bare, mixed) != bare
    assert moved.any(-1)[0].tolist() == [False, False, True, True, False]


def windowed(N=2):
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    denoiser = BlockDenoiser(BlockConfig(V=17, D=32, num_layers=1, num_heads=2, B=5))
    torch.nn.init.normal_(denoiser.head)
    cache = denoiser.prefill(torch.randint(denoiser.V, (N, 4), generator=generator))
    tokens = torch.randint(denoiser.V, (N, 5), generator=generator)
    w_t = denoiser.K * torch.randn(N, 5, denoiser.V, generator=generator)
    w_t[:, :2] = to_logits(tokens[:, :2], V=denoiser.V, K=denoiser.K)
    return denoiser, cache, w_t, tokens, torch.tensor([0.0, 0.0, 0.3, 0.7, 1.0]).expand(N, 5)


def test_in_a_window_the_classifier_reads_what_is_decided_and_what_moves():
    denoiser, cache, w_t, tokens, progress = windowed()
    seen = []

    def log_prob(context, logits):
        seen.append((context, logits.shape[1]))
        return likes(3)(context, logits)

    wrapped = guided(denoiser, log_prob, 2.0, has_windows=True)
    at = slice(2, 4)
    bare = denoiser.denoise_window(cache, w_t, progress, tokens, at)
    moved = wrapped.denoise_window(cache, w_t, progress, tokens, at)
    assert torch.equal(seen[0][0][0], torch.cat((cache.context, tokens[:, :2]), 1)[0])
    assert {shown for _, shown in seen} == {2}
    by_hand = -bare.softmax(-1)
    by_hand[..., 3] += 1
    assert_close(moved, bare + 2.0 * by_hand, roundings=NETWORK)


def test_a_guide_has_windows_where_it_and_the_denoiser_allow_them():
    denoiser = windowed()[0]
    assert guided(denoiser, likes(3), 1.0, has_windows=True).has_windows
    assert not guided(denoiser, likes(3), 1.0).has_windows
    assert not guided(tiny.encoder(), likes(3), 1.0, has_windows=True).has_windows


@pytest.mark.filterwarnings("ignore::ssdlm.engine.controls.ControlWarning")  # one lam for all
@pytest.mark.parametrize("gradient", ["logits", "simplex", "words"])
@pytest.mark.parametrize("band", [(0.0, 1.0), (0.3, 1.0)])
def test_controlled_rows_in_a_moving_window_do_not_depend_on_their_batch(gradient, band, tmp_path):
    torch.manual_seed(0)
    denoiser = BlockDenoiser(BlockConfig(V=tiny.V, D=32, num_layers=1, num_heads=2, B=4))
    torch.nn.init.normal_(denoiser.head, std=0.05)
    model = SSDLM(denoiser, tiny.tokenizer(), DecodeConfig(length=8, B=(4,), T=9))
    folder = tiny.save_classifier(tmp_path / "c")
    options = {"grid": "staggered", "width": 1.0, "returns": "w_0", "seed": 5}
    steered = {"gradient": gradient, "band": band}
    steered |= {"threshold": 1.0} if gradient == "words" else {}
    steered["control"] = [f"{folder}=positive:90", f"{folder}!=neutral:60"]
    prompts = ["the river", "the movie", "a", "no"]
    together = model.generate(prompts, **options, **steered)
    assert [model.generate(prompt, **options, **steered) for prompt in prompts] == together
    assert together != model.generate(prompts, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gradient": "words"} | {"threshold": -1.0}, "threshold=-1.0"),
        ({"gradient": "words", "plausible": 1.5}, "plausible=1.5"),
        ({"band": (0.6, 0.2)}, "band=0.6,0.2"),
        ({"band": (0.5,)}, r"band=\(0.5,\) is not two numbers"),
        ({"gradient": "word"}, "gradient='word'"),
    ],
)
def test_settings_of_control_that_cannot_be_meant_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        DecodeConfig().change(**wrong)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda logits: None, "depends on the logits; return a tensor"),
        (lambda logits: torch.zeros(len(logits)), "depends on the logits; return a tensor"),
        (lambda logits: (logits * math.nan).sum((1, 2)), "has a gradient that is not finite"),
    ],
)
def test_functions_that_say_nothing_usable_are_refused_by_name(returned, message):
    def mine(context, logits):
        return returned(logits)

    context, logits = torch.tensor([[1, 2]]), torch.randn(1, 3, 8)
    with pytest.raises(ValueError, match=f"control mine .*{message}"):
        logit_gradient(mine, context, logits)

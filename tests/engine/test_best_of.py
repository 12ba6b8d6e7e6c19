"""The likeliest of several texts, as the context stream sees them."""

import math
from dataclasses import replace

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm import SSDLM, DecodeConfig
from ssdlm.diffusion import likelihood
from ssdlm.engine.requests import Written

PROMPTS = ["the river", "a", "no"]


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=4, B=(4,), T=3))


def likeliest(model, texts):
    """The text of the lowest NLL, rated one by one."""
    return min(
        texts,
        key=lambda text: likelihood.text_nll(
            model.denoiser, model.context(text.prompt), text.tokens
        ),
    )


def test_a_texts_nll_is_the_mean_over_its_own_tokens(model):
    denoiser, context, tokens = model.denoiser, [3, 4, 5], [6, 40, 6, 9]
    nothing = denoiser.prefill(torch.zeros(1, 0, dtype=torch.long))
    surprises = []
    for count, token in enumerate(tokens):
        before = torch.tensor([context + tokens[:count]])
        log_probs = denoiser.next_logits(nothing, before)[0, -1].log_softmax(-1)
        surprises.append(-log_probs[token].item())
    expected = sum(surprises) / len(tokens)
    assert_close(likelihood.text_nll(denoiser, context, tokens), expected, roundings=NETWORK)


def test_a_text_of_no_tokens_is_the_last_to_be_chosen(model):
    assert likelihood.text_nll(model.denoiser, [3, 4], []) == math.inf


def test_the_best_of_one_is_that_one(model):
    alone = model.generate(PROMPTS, num_samples=2)
    assert model.generate(PROMPTS, num_samples=2, best_of=1) == alone
    assert model.generate(["a"], best_of=1) == model.generate(["a"])
    assert alone[0].calls == 3 + 1


def test_the_best_of_several_is_the_likeliest_of_so_many_samples(model):
    chosen = set()
    for seed in range(4):
        candidates = model.generate(["the river"], seed=seed, num_samples=4)
        best = model.generate("the river", seed=seed, best_of=4)
        expected = likeliest(model, candidates)
        assert (best.tokens, best.text) == (expected.tokens, expected.text)
        chosen.add(expected.sample)
    assert len(chosen) > 1, "or the first would do"


def test_samples_are_numbered_after_the_choice_and_keep_the_order_of_their_prompts(model):
    prompts = PROMPTS[:2]
    candidates = model.generate(prompts, seed=[5, 6], num_samples=6)
    best = model.generate(prompts, seed=[5, 6], num_samples=2, best_of=3)
    first, second = prompts
    assert [(text.prompt, text.seed, text.sample) for text in best] == [
        (first, 5, 0),
        (first, 5, 1),
        (second, 6, 0),
        (second, 6, 1),
    ]
    groups = [candidates[start : start + 3] for start in range(0, 12, 3)]
    assert [text.tokens for text in best] == [likeliest(model, group).tokens for group in groups]


def test_the_passes_of_every_candidate_are_counted_and_one_to_rate_it(model):
    (one,) = model.generate(["a"])
    (best,) = model.generate(["a"], best_of=3)
    assert best.calls == 3 * (one.calls + 1) == 3 * (3 + 1 + 1)


def test_a_choice_does_not_depend_on_how_candidates_are_batched(model):
    options = {"num_samples": 2, "best_of": 3}
    alone = model.generate(["a", "no", "b"], **options)
    # An averaged control takes rows together on a CPU too: here four, where a choice is of three.
    own = model.options.change(reduction="mean", batch_size=4)
    together = SSDLM(model.denoiser, model.tokenizer, own).generate(["a", "no", "b"], **options)
    assert [replace(one, written=Written()) for one in together] == [
        replace(one, written=Written()) for one in alone
    ]
    assert model.generate("b", best_of=3) == alone[4]


def test_every_candidate_holds_what_is_asked_of_its_prompt(model):
    words = {"the river": "go", "a": "in", "no": "up"}
    must = [[word] for word in words.values()]
    texts = model.generate(list(words), length=6, num_samples=2, best_of=2, must=must)
    assert len(texts) == 6
    assert all(words[text.prompt] in text.text for text in texts)

"""Causal language models as denoisers: the logits are transformers' own."""

from dataclasses import replace

import pytest
import torch
from tests import causal, tiny

from ssdlm.denoiser.foreign import ForeignDenoiser
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.storage.checkpoint import load_denoiser

TEXTS = torch.randint(tiny.V, (2, 48), generator=torch.Generator().manual_seed(5))


def logits_of(denoiser, tokens=TEXTS):
    return denoiser.next_logits(denoiser.prefill(tokens[:, :0]), tokens)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a function that gives the folder of a family, which is made once."""
    known = {}

    def folder(family):
        if family not in known:
            known[family] = causal.save(tmp_path_factory.mktemp("causal") / family, family)
        return known[family]

    return folder


@pytest.mark.parametrize("family", [*causal.OWN, *causal.FOREIGN])
def test_logits_are_those_of_transformers(folders, family):
    denoiser = load_denoiser(folders(family))
    assert isinstance(denoiser, LlamaDenoiser if family in causal.OWN else ForeignDenoiser)
    with torch.no_grad():
        expected = causal.theirs(folders(family))(TEXTS).logits
    assert expected.std() > 2
    difference = (logits_of(denoiser) - expected).abs()
    assert difference.max() < 1e-3
    assert difference.mean() < 1e-5


DROPPED = {
    "qwen2": lambda layer: setattr(layer, "qkv_bias", None),
    "llama-biased": lambda layer: setattr(layer, "out_bias", None),
    "qwen3": lambda layer: setattr(layer, "query_norm", None),
    "mistral": lambda layer: layer.mlp_norm.data.fill_(1),
    "llama-linear": lambda layer: None,
    "llama-3": lambda layer: None,
}


@pytest.mark.parametrize("family", DROPPED)
def test_without_a_part_of_its_family_a_model_is_another(folders, family):
    denoiser = load_denoiser(folders(family))
    whole = logits_of(denoiser)
    for layer in denoiser.transformer_layers():
        DROPPED[family](layer)
    if "rope_parameters" in causal.OWN[family]:
        denoiser.config = replace(denoiser.config, rope="default")
    difference = (logits_of(denoiser) - whole).abs()
    assert difference.max() > 0.1
    assert difference.mean() > 1e-3


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_words_read_one_by_one_are_words_read_at_once(folders, family):
    denoiser = load_denoiser(folders(family))
    whole = logits_of(denoiser)
    cache = denoiser.prefill(TEXTS[:, :5])
    for place in range(5, 12):
        logits, longer = denoiser.read_next(cache, TEXTS[:, place : place + 1])
        again, _ = denoiser.read_next(cache, TEXTS[:, place : place + 1])
        assert torch.equal(logits, again)  # a cache stays as it is
        assert (logits - whole[:, place]).abs().max() < 1e-4
        cache = longer
    assert torch.equal(cache.context, TEXTS[:, :12])


def test_the_open_position_has_the_next_tokens_logits_and_its_own_evidence(folders):
    denoiser = load_denoiser(folders("llama"))
    cache = denoiser.prefill(TEXTS[:, :7])
    noise = torch.zeros(2, 1, tiny.V)
    expected = logits_of(denoiser)[:, 6:7]
    assert (denoiser.denoise(cache, noise, torch.ones(2, 1)) - expected).abs().max() < 1e-4
    w_t, level = torch.randn(2, 1, tiny.V), torch.full((2, 1), 0.4)
    logits = denoiser.denoise(cache, w_t, level)
    assert (logits - expected - denoiser.evidence(w_t, level)).abs().max() < 1e-4
    assert denoiser.evidence(w_t, level).std() > 0.1
    longer, same = denoiser.read_and_denoise(
        denoiser.prefill(TEXTS[:, :4]), TEXTS[:, 4:7], w_t, level
    )
    assert torch.equal(longer.context, cache.context)
    assert (same - logits).abs().max() < 1e-4


def test_more_than_one_open_position_needs_an_adapter(folders):
    denoiser = load_denoiser(folders("llama"))
    with pytest.raises(ValueError, match=r"2 open positions after 7 words.*need an adapter"):
        denoiser.denoise(denoiser.prefill(TEXTS[:, :7]), torch.zeros(2, 2, tiny.V), torch.ones(2))


def test_within_its_window_a_sliding_attention_is_exact(folders):
    assert load_denoiser(folders("mistral")).max_len == 64
    assert load_denoiser(folders("llama")).max_len == 128


@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "qwen3"])
def test_a_row_is_the_same_to_the_bit_in_any_company(folders, family):
    denoiser = load_denoiser(folders(family))
    together, alone = logits_of(denoiser), logits_of(denoiser, TEXTS[1:])
    assert torch.equal(together[1:], alone)


def test_half_precision_is_near_and_answers_in_full(folders):
    whole = load_denoiser(folders("qwen3"))
    half = load_denoiser(folders("qwen3"), dtype="bfloat16")
    assert half.words.dtype == torch.bfloat16
    logits, near = logits_of(whole), logits_of(half)
    assert near.dtype == torch.float32
    assert (near - logits).abs().mean() < 0.1 * logits.std()

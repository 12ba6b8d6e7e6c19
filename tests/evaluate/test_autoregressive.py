"""The context stream through transformers' own generation."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close
from tests.evaluate.tiny_judge import save_judge

from ssdlm import SSDLM, DecodeConfig
from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.evaluate.autoregressive import AutoregressiveLM, as_causal_lm

PROMPTS = ["the river", "a", "no one", "to be", ""]


@pytest.fixture(scope="module")
def denoiser() -> BlockDenoiser:
    torch.manual_seed(0)
    made = BlockDenoiser(BlockConfig(V=tiny.V, D=16, num_layers=2, num_heads=2, B=3))
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def folder(denoiser, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    SSDLM(denoiser, tiny.tokenizer(), DecodeConfig(B=(3,))).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder) -> AutoregressiveLM:
    return AutoregressiveLM.from_pretrained(folder, device="cpu")


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(tiny.V, (rows, length), generator=torch.manual_seed(1))


def test_its_logits_are_the_context_streams(denoiser):
    ids = tokens(3, 9)
    direct = denoiser.next_logits(denoiser.prefill(ids[:, :0]), ids)
    assert_close(as_causal_lm(denoiser)(ids).logits, direct, roundings=NETWORK)


def test_padding_on_the_left_does_not_change_what_follows(denoiser):
    ids, model = tokens(2, 6), as_causal_lm(denoiser)
    padded = torch.cat((tokens(2, 3), ids), 1)
    attention = torch.cat((torch.zeros(2, 3), torch.ones(2, 6)), 1).long()
    apart = model(padded, attention_mask=attention).logits[:, 3:]
    assert_close(apart, model(ids).logits, roundings=NETWORK)


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_generation_equals_a_loop_by_hand(denoiser, use_cache):
    ids = tokens(2, 4)
    whole = as_causal_lm(denoiser).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8,
        do_sample=False,
        use_cache=use_cache,
        pad_token_id=0,
    )
    by_hand = ids
    for _ in range(8):
        logits = denoiser.next_logits(denoiser.prefill(by_hand[:, :0]), by_hand)
        by_hand = torch.cat((by_hand, logits[:, -1:].argmax(-1)), 1)
    assert torch.equal(whole, by_hand)


def test_with_a_cache_each_token_is_read_once(denoiser, monkeypatch):
    seen: list[int] = []
    embed = BlockDenoiser.embed
    monkeypatch.setattr(
        BlockDenoiser, "embed", lambda self, ids: seen.append(ids.shape[1]) or embed(self, ids)
    )
    ids = tokens(1, 4)
    as_causal_lm(denoiser).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, pad_token_id=0
    )
    assert seen == [4, 1, 1, 1, 1]


def test_texts_have_their_length_their_prompt_and_their_sample(model):
    texts = model.generate(PROMPTS, length=7, num_samples=2, seed=3, top_p=0.9, batch_size=2)
    assert [(text.prompt, text.sample) for text in texts] == [
        (p, i) for p in PROMPTS for i in (0, 1)
    ]
    assert {len(text.tokens) for text in texts} == {7}
    assert all(text.text == model.tokenizer.decode(text.tokens) for text in texts)
    assert all(model.tokenizer.end_of_text not in text.tokens for text in texts)


def test_the_same_seed_gives_the_same_texts_and_leaves_the_global_one_alone(model):
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    options = {"length": 6, "num_samples": 2, "typical_p": 0.95}
    once, again, other = (model.generate(PROMPTS, seed=seed, **options) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(2), expected)
    assert once == again
    assert [text.tokens for text in once] != [text.tokens for text in other]


def test_without_a_sampler_the_likeliest_token_is_taken(model):
    one, two = model.generate("the river", length=4, num_samples=2)
    assert one.tokens == two.tokens


def test_any_causal_model_of_transformers_writes(tmp_path):
    model = AutoregressiveLM(
        AutoregressiveLM.from_pretrained(gpt2(tmp_path), device="cpu").model, tiny.tokenizer()
    )
    (text,) = model.generate(["ab"], length=5, top_p=0.9)
    assert len(text.tokens) == 5


def gpt2(folder) -> str:
    name = save_judge(folder)
    tiny.tokenizer().save(folder)
    return name


def test_bad_options_are_refused(model):
    with pytest.raises(ValueError, match="there is no option 'projection'"):
        model.check(["a"], projection="sampling")
    for wrong in ({"length": 0}, {"num_samples": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match="from 1 on"):
            model.check(["a"], **wrong)


def test_what_is_no_causal_model_is_refused(tmp_path):
    SSDLM(tiny.encoder(), tiny.tokenizer()).save_pretrained(tmp_path / "encoder")
    with pytest.raises(ValueError, match="no context stream"):
        AutoregressiveLM.from_pretrained(tmp_path / "encoder", device="cpu")
    with pytest.raises(ValueError, match="cannot be loaded as a causal language model"):
        AutoregressiveLM.from_pretrained(tmp_path, device="cpu")

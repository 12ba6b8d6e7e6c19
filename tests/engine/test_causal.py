"""Texts of causal language models: transformers' own, and held and steered as any others here."""

import json
import shutil

import pytest
import torch
from tests import causal, tiny
from tests.engine.test_ending import Recorder

from ssdlm import SSDLM
from ssdlm.cli import main
from ssdlm.evaluate.lm_eval.scoring import Scorer

MODES = [{}, {"mode": "autoregressive"}]
"""A window of one position, and the chain."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return causal.save(tmp_path_factory.mktemp("causal") / "llama", "llama")


@pytest.fixture(scope="module")
def model(folder):
    return SSDLM.from_pretrained(folder)


@pytest.mark.parametrize("family", [*causal.OWN, *causal.FOREIGN])
@pytest.mark.usefixtures("unchecked")
def test_greedy_text_is_transformers_own_to_the_token(family, tmp_path):
    model = SSDLM.from_pretrained(causal.save(tmp_path / family, family, seed=3))
    prompts = ["the river", "a", "Why? 12"]
    settings = {"mode": "autoregressive", "do_sample": False, "length": 32}
    texts = model.generate(prompts, **settings)
    theirs = causal.theirs(tmp_path / family)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([model.context(prompt)])
        found = theirs.generate(ids, do_sample=False, max_new_tokens=32)[0, ids.shape[1] :].tolist()
        end = model.tokenizer.end_of_text
        assert text.tokens == (found[: found.index(end)] if end in found else found)
        assert model.generate(prompt, do_sample=False, length=32).tokens == text.tokens
    assert len({tuple(text.tokens) for text in texts}) == 3


def warped(logits, top_p, temperature):
    """Return the probabilities that transformers draws from."""
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    logits = TemperatureLogitsWarper(temperature)(None, logits)
    return TopPLogitsWarper(top_p)(None, logits).softmax(-1)


def chi_square(counts, expected):
    """Return the sum of squared deviations over expected counts, and its degrees of freedom."""
    often = expected >= 5
    pairs = [(counts[often], expected[often])]
    if expected[~often].sum() >= 5:
        pairs.append((counts[~often].sum()[None], expected[~often].sum()[None]))
    found, wanted = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return float(((found - wanted) ** 2 / wanted).sum()), len(found) - 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("unchecked")
def test_first_and_second_token_are_drawn_as_transformers_draws_them(folder, model, mode):
    top_p, temperature, num = 0.8, 1.7, 256
    settings = {"top_p": top_p, "temperature": temperature, "length": 2, "stop_at_end": False}
    texts = model.generate(["the"], num_samples=num, **settings, **mode)
    theirs, ids = causal.theirs(folder), list(model.context("the"))
    with torch.no_grad():
        first = warped(theirs(torch.tensor([ids])).logits[:, -1], top_p, temperature)[0]
        likely = first.nonzero()[:, 0]
        after = theirs(torch.tensor([[*ids, token] for token in likely.tolist()])).logits[:, -1]
        second = first[likely] @ warped(after, top_p, temperature)
    assert len(likely) > 5
    for place, chances in enumerate((first, second)):
        drawn = torch.tensor([text.tokens[place] for text in texts])
        counts = torch.bincount(drawn, minlength=tiny.V).double()
        assert counts[chances == 0].sum() == 0
        statistic, freedom = chi_square(counts, num * chances.double())
        assert statistic < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("mode", [*MODES, {"mode": "speculative"}])
def test_a_text_is_its_own_in_any_company_and_the_same_again(model, mode):
    alone = model.generate("the river", seed=3, length=16, **mode)
    several = model.generate(["a", "the river", "b"], seed=3, num_samples=2, length=16, **mode)
    assert several[2] == alone
    assert model.generate("the river", seed=3, length=16, **mode) == alone
    assert model.generate("the river", seed=4, length=16, **mode).tokens != alone.tokens


def test_a_text_ends_at_the_models_own_end_and_is_never_longer_than_asked(model):
    settings = {"length": 60, "temperature": 3.0, "top_p": 1.0}
    texts = model.generate(["a"], num_samples=16, **settings)
    ended = next(text for text in texts if text.finish_reason == "stop")
    count = ended.sample + 1
    whole = model.generate(["a"], num_samples=count, stop_at_end=False, **settings)[-1]
    end = model.tokenizer.end_of_text
    assert whole.tokens[: len(ended.tokens) + 1] == [*ended.tokens, end]


def test_watched_streamed_and_plain_texts_are_one(model):
    recorder = Recorder()
    text = model.generate("a", seed=2, length=12, streamer=recorder)
    assert recorder.tokens == text.tokens
    assert list(model.stream("a", seed=2, length=12))[-1].text == text.text
    assert text.passes_per_token == 1.0


@pytest.mark.parametrize("mode", MODES)
def test_grammars_and_forbidden_words_hold(model, mode):
    for seed in range(3):
        text = model.generate("a", regex="[a-e]{3} (b|cd)*", seed=seed, length=12, **mode).text
        assert set(text[:3]) <= set("abcde") and set(text[4:]) <= set("bcd")
    free = model.generate(["the"], length=20, num_samples=8, **mode)
    letters = [sign for sign in ".,!?'-" if any(sign in text.text for text in free)]
    held = model.generate(["the"], length=20, num_samples=8, must_not=letters, **mode)
    assert letters and not any(sign in text.text for text in held for sign in letters)


def test_a_guide_steers_by_its_gradient_a_function_too_and_particles_weigh(model, tmp_path):
    guide = tiny.save_classifier(tmp_path, V=tiny.V)
    plain = model.generate("the", seed=1, length=12)
    steered = model.generate("the", seed=1, length=12, control=f"{guide}=positive", lam=40.0)
    assert steered.tokens != plain.tokens

    def prefers_e(context, logits):
        return logits.log_softmax(-1)[..., 4].sum(-1)

    pushed = model.generate(
        "the", seed=1, length=12, control=prefers_e, lam=500.0, gradient="logits"
    )
    assert pushed.tokens.count(4) > plain.tokens.count(4) + 6

    weighed = model.generate("the", seed=1, length=12, control=f"{guide}=positive", particles=4)
    assert weighed.passes_per_token >= 4


NEEDS_MORE = {
    "must": ["up"],
    "pin": {2: "a"},
    "suffix": "no",
    "grid": "warped",
    "width": 2.0,
    "B": 10,
}


@pytest.mark.parametrize("name", NEEDS_MORE)
def test_what_needs_more_open_positions_needs_an_adapter(model, name):
    wanted = r"an adapter \(builtin:smol for smollm2, else "
    wanted += r"`ssdlm train --recipe adapt init=MODEL --data DATA --out RUN`\); \S"
    with pytest.raises(ValueError, match=wanted) as error:
        model.generate("a", **{name: NEEDS_MORE[name]})
    assert name in str(error.value) and "\n" not in str(error.value)
    shown = {"must": "must=['up'] needs", "pin": "pin=[(2, 'a')] needs", "suffix": "suffix='no' n"}
    assert str(error.value).startswith(shown.get(name, ""))


def test_a_model_that_no_drafter_can_read_guesses_nothing_and_that_is_said(tmp_path):
    model = SSDLM.from_pretrained(causal.save(tmp_path, next(iter(causal.FOREIGN))))
    chain = model.generate("the river", seed=1, mode="autoregressive")
    assert model.generate("the river", seed=1, mode="speculative") == chain
    (note,) = model.explain("a", mode="speculative").notes
    assert note.endswith("; a drafter reads only a BlockDenoiser or a model on layers of ours")


def test_likelihoods_are_the_models_own(model, folder):
    pair = model.context("the river"), model.tokenizer.encode(" ran by")
    ((_, score),) = Scorer(model).scores([tuple(map(list, pair))])
    whole = torch.tensor([[*pair[0], *pair[1]]])
    with torch.no_grad():
        log_p = causal.theirs(folder)(whole).logits.log_softmax(-1)[0, len(pair[0]) - 1 : -1]
    expected = log_p.gather(1, torch.tensor(pair[1]).unsqueeze(1)).sum()
    assert abs(score.log_prob - float(expected)) < 1e-3


def test_the_command_line_opens_such_a_folder(folder, capsys):
    arguments = ["generate", "a", "--model", str(folder), "--json", "--length", "6"]
    assert main(arguments) == 0
    assert len(json.loads(capsys.readouterr().out)["tokens"]) <= 6
    assert main([*arguments, "--width", "3"]) == 2
    assert "needs an adapter" in capsys.readouterr().err


def test_prompts_begin_as_the_tokenizer_says(folder, tmp_path):
    own = tmp_path / "m"
    shutil.copytree(folder, own)
    model = SSDLM.from_pretrained(own)
    assert model.context("") == (0,)  # what config.json calls the beginning
    assert model.context("b") == (1,)
    causal.begin_with_a(own)
    model = SSDLM.from_pretrained(own)
    assert (model.context(""), model.context("b"), model.context("ab")) == ((0,), (0, 1), (0, 1))
    with pytest.raises(ValueError, match="stays in the folder that transformers wrote"):
        model.save_pretrained(tmp_path / "other")
    assert not (tmp_path / "other").exists()


BROKEN = {
    "architectures": (["LlamaModel"], "contains a 'llama' model without .*causal language model"),
    "vocab_size": (63, "tokenizer has 64 tokens and the model 63|where config.json means"),
    "num_hidden_layers": (3, "lacks model.layers.2.*describes another model"),
    "attention_bias": (True, "lacks model.layers.0.self_attn.k_proj.bias"),
    "intermediate_size": (49, "belong to different models"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_config_that_does_not_fit_is_refused_in_one_line(folder, tmp_path, name):
    own, (value, message) = tmp_path / "m", BROKEN[name]
    shutil.copytree(folder, own)
    settings = json.loads((own / "config.json").read_text()) | {name: value}
    (own / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message) as error:
        SSDLM.from_pretrained(own)
    assert "\n" not in str(error.value)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    folder = causal.save(tmp_path / "m", "llama", vocab_size=60, eos_token_id=2, pad_token_id=2)
    with pytest.raises(ValueError, match="the tokenizer has 64 tokens and the model 60"):
        SSDLM.from_pretrained(folder)


def test_shards_are_read_and_a_missing_one_is_named(tmp_path):
    from transformers import AutoModelForCausalLM

    whole = causal.save(tmp_path / "whole", "llama")
    own = tmp_path / "shards"
    shutil.copytree(whole, own)
    (own / "model.safetensors").unlink()
    AutoModelForCausalLM.from_pretrained(whole).save_pretrained(own, max_shard_size="40KB")
    shards = sorted(own.glob("*.safetensors"))
    assert len(shards) > 1
    texts = [
        SSDLM.from_pretrained(one).generate("a", length=8, seed=1).tokens for one in (whole, own)
    ]
    assert texts[0] == texts[1]
    shards[1].unlink()
    with pytest.raises(ValueError, match=f"{shards[1].name} is missing; copy the whole") as error:
        SSDLM.from_pretrained(own)
    assert "\n" not in str(error.value)
    shards[0].write_bytes(shards[0].read_bytes()[:100])
    shutil.copy(shards[0], shards[1])
    with pytest.raises(ValueError, match="truncated or corrupt; get it anew"):
        SSDLM.from_pretrained(own)


def test_a_model_larger_than_the_memory_is_refused_before_it_is_read(folder, monkeypatch):
    monkeypatch.setattr("ssdlm.storage.causal.free_bytes", lambda device: 50_000)
    monkeypatch.setattr("ssdlm.storage.causal.read_tensor", lambda path, name: pytest.fail("read"))
    with pytest.raises(ValueError, match=r"takes 0\.0 GB on cpu, where 0\.0 GB are free"):
        SSDLM.from_pretrained(folder)


def test_a_model_with_code_of_its_own_is_refused_and_nothing_runs(folder, tmp_path):
    own = tmp_path / "m"
    shutil.copytree(folder, own)
    settings = json.loads((own / "config.json").read_text())
    settings |= {"model_type": "odd", "auto_map": {"AutoModelForCausalLM": "odd.OddForCausalLM"}}
    (own / "config.json").write_text(json.dumps(settings))
    (own / "odd.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(
        ValueError, match="no causal language model that transformers opens"
    ) as error:
        SSDLM.from_pretrained(own)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


def test_a_text_longer_than_the_model_is_refused(model):
    with pytest.raises(ValueError, match=r"prompt of 2 tokens and length=127 are more than .* 128"):
        model.generate("ab", length=127)


def test_no_tokens_at_all_are_refused(model):
    with pytest.raises(ValueError, match="has no tokens, and this model knows none to begin with"):
        model.generate([[]])


def test_a_text_is_over_at_any_of_the_model_s_ends(folder, tmp_path):
    endless = {"stop_at_end": False, "never_end": True}
    first = SSDLM.from_pretrained(folder)
    whole = first.generate("the river", do_sample=False, length=32, **endless).tokens
    last = whole[-1]
    several = shutil.copytree(folder, tmp_path / "several")
    settings = json.loads((several / "generation_config.json").read_text())
    settings["eos_token_id"] = [63, last, 10**6]
    (several / "generation_config.json").write_text(json.dumps(settings))
    model = SSDLM.from_pretrained(several)
    assert model.tokenizer.ends == (63, last)
    for mode in MODES:
        text = model.generate("the river", do_sample=False, length=32, **mode)
        ended = first.generate("the river", do_sample=False, length=32, **mode).tokens
        assert text.tokens == (ended[: ended.index(last)] if last in ended else ended)
    drawn = model.generate(["the river"] * 8, length=32)
    assert {text.finish_reason for text in drawn} == {"stop"}
    assert not any({63, last} & set(text.tokens) for text in drawn)
    longer = model.generate("the river", length=40, seed=1, **endless)
    assert len(longer.tokens) == 40
    assert not {63, last} & set(longer.tokens)


def test_answers_are_greedy_unless_a_caller_or_the_model_draws(folder, tmp_path):
    talker = shutil.copytree(folder, tmp_path / "talker")
    settings = json.loads((talker / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% for m in messages %}{{ m.content }} {% endfor %}"
    (talker / "tokenizer_config.json").write_text(json.dumps(settings))
    model, said = SSDLM.from_pretrained(talker), [{"role": "user", "content": "the river"}]
    greedy = model.generate("the river ", do_sample=False, length=12).tokens
    assert [model.chat(said, length=12, seed=seed).tokens for seed in (0, 1)] == [greedy, greedy]
    drawn = [model.chat(said, length=12, temperature=1.0, seed=seed).tokens for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    assert drawn[0] == model.generate("the river ", length=12, temperature=1.0, seed=0).tokens
    several = model.chat(said, length=12, num_samples=2)
    assert several[0].tokens != several[1].tokens
    (talker / "generation_config.json").write_text('{"do_sample": true, "temperature": 1.0}')
    assert SSDLM.from_pretrained(talker).chat(said, length=12, seed=0).tokens == drawn[0]

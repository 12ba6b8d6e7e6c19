"""Texts written by the context stream: what goes with those modes, and what is refused."""

import json

import pytest
from tests import tiny
from tests.engine.test_ending import Recorder

from ssdlm import SSDLM, GenerateOptions
from ssdlm.cli import main
from ssdlm.engine.prompt_files import generate_file
from ssdlm.guidance.gradient import weighted

SETTINGS = GenerateOptions(length=24, B=(6,), T=3)


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), SETTINGS)


@pytest.fixture(scope="module", params=[tiny.block, tiny.llama])
def either(request):
    """A model of ours, and a causal language model of transformers on layers of ours."""
    return SSDLM(request.param(), tiny.tokenizer(), SETTINGS)


CHAINS = ["autoregressive", "speculative"]
every_chain = pytest.mark.parametrize("mode", CHAINS)


@every_chain
def test_a_text_is_its_own_whatever_is_asked_for_beside_it(either, mode):
    alone = either.generate("the river", mode=mode, seed=3)
    assert len(alone.tokens) == 24
    several = either.generate(["a", "the river"], mode=mode, seed=3, num_samples=2)
    assert several[2] == alone
    assert len({tuple(text.tokens) for text in several}) == 4
    assert either.generate("the river", mode=mode, seed=4).tokens != alone.tokens
    assert either.generate("the river", mode=mode, seed=3, B=[5, 7]).tokens == alone.tokens


@every_chain
def test_without_draws_the_seed_does_not_matter(either, mode):
    ways = [{"projection": "greedy"}, {"do_sample": False}, {"top_p": 0.0}]
    texts = [
        either.generate("a", mode=mode, seed=seed, **way).tokens for way in ways for seed in (0, 1)
    ]
    assert texts == [texts[0]] * 6


@every_chain
def test_a_streamer_gets_tokens_one_by_one_and_a_stream_ends_as_the_text(either, mode):
    recorder = Recorder()
    text = either.generate("a", mode=mode, seed=2, streamer=recorder)
    assert (recorder.tokens, recorder.ends) == (text.tokens, 1)
    drafts = list(either.stream("a", mode=mode, seed=2))
    assert drafts[-1].text == text.text
    assert all(text.text.startswith(draft.text) for draft in drafts)
    assert {draft.block for draft in drafts} == {0, 1, 2, 3}


def test_the_passes_of_a_chain_are_the_tokens_of_its_longest_block(either):
    assert either.generate("a", mode="autoregressive").calls == 6
    assert either.generate("a", mode="autoregressive", B=[4, 10]).calls == 10
    best = either.generate("a", mode="autoregressive", best_of=3)
    assert best.calls == 3 * (6 + 1)


@every_chain
def test_the_likeliest_of_several_is_one_of_them(either, mode):
    samples = either.generate(["a"], mode=mode, num_samples=3)
    best = either.generate("a", mode=mode, best_of=3)
    assert best.tokens in [text.tokens for text in samples]


@every_chain
def test_a_text_ends_as_asked(model, mode):
    end = model.tokenizer.end_of_text
    settings = {"mode": mode, "length": 60}
    seed = next(s for s in range(50) if end in model.generate("a", seed=s, **settings).tokens)
    whole = model.generate("a", seed=seed, **settings)
    assert end not in model.generate("a", seed=seed, never_end=True, **settings).tokens
    cut = model.generate("a", seed=seed, stop_at_end=True, **settings)
    assert cut.tokens == whole.tokens[: whole.tokens.index(end)]
    string = whole.text[2:4]
    assert string not in model.generate("a", seed=seed, stop=string, **settings).text


@every_chain
def test_forbidden_words_stay_out(model, mode):
    for seed in range(4):
        free = model.generate("the", mode=mode, seed=seed)
        letter = next(one for one in free.text if one in ".,!?'-")
        held = model.generate("the", mode=mode, seed=seed, must_not=[letter, "a"])
        assert letter not in held.text
        start = free.text.index(letter)
        assert len(held.tokens) == 24
        if " a " not in free.text[:start]:
            assert held.text[:start] == free.text[:start]


GIVEN = [
    {"T": 5},
    {"grid": "warped"},
    {"width": 2.0},
    {"rho": 0.5},
    {"rule": "ddpm"},
    {"returns": "w_0"},
    {"early_exit": True},
    {"projection": "multi_hot"},
    {"projection": "mean"},
    {"nucleus": "network"},
    {"gradient": "words"},
    {"threshold": 1.0},
    {"plausible": 0.1},
    {"target": 0.5},
    {"band": [0.1, 0.5]},
    {"must": "up"},
    {"must": [["up"]]},
    {"suffix": "no"},
    {"pin": {2: "a"}},
    {"end_at_sentence": True},
    {"lam": 3.0},
    {"control": weighted()},
    {"reduction": "mean"},
]


@every_chain
@pytest.mark.parametrize("given", GIVEN, ids=lambda given: next(iter(given)))
def test_what_is_the_diffusions_is_refused_by_name_if_it_was_given(model, mode, given):
    (name,) = given
    with pytest.raises(ValueError, match=rf"^{name}=.*mode={mode}; leave it out, or use") as error:
        model.generate(["a"], mode=mode, **given)
    assert "\n" not in str(error.value)


@every_chain
def test_what_is_as_the_model_has_it_is_not_refused(model, mode):
    as_it_is = {"T": 3, "grid": "uniform", "rho": 0.0, "early_exit": False, "gradient": "logits"}
    text = model.generate("a", mode=mode, **as_it_is)
    assert text.tokens == model.generate("a", mode=mode).tokens


def test_what_a_model_brings_is_not_given(model):
    theirs = SSDLM(
        model.denoiser, model.tokenizer, SETTINGS.change(nucleus="network", projection="mean")
    )
    chain = {"mode": "autoregressive", "length": 3}
    assert theirs.generate("a", **chain).tokens == model.generate("a", **chain).tokens
    with pytest.raises(ValueError, match="projection=multi_hot is the diffusion's"):
        theirs.generate("a", projection="multi_hot", **chain)
    assert model.generate("a", mode="autoregressive", must=[], length=3).tokens
    own = GenerateOptions(mode="autoregressive", length=3)
    assert len(model.generate("a", options=own).tokens) == 3
    with pytest.raises(ValueError, match="T=77 is the diffusion's"):
        model.generate("a", options=GenerateOptions(mode="autoregressive", T=77))
    with pytest.raises(ValueError, match="must=up is the diffusion's"):
        GenerateOptions(mode="speculative", must=("up",))


@every_chain
def test_a_model_without_a_context_stream_is_refused(mode):
    model = SSDLM(tiny.encoder(), tiny.tokenizer())
    with pytest.raises(ValueError, match=f"mode={mode} needs a model with a context stream"):
        model.generate("a", mode=mode)


@every_chain
def test_a_prompt_without_tokens_is_refused_and_an_empty_text_is_not(model, mode):
    with pytest.raises(ValueError, match=r"prompt \[\] has no tokens"):
        model.generate([[]], mode=mode)
    assert model.generate("", mode=mode, length=3).tokens


def test_a_line_of_a_file_may_choose_its_mode(model, tmp_path):
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "a"}, {"prompt": "a", "mode": "autoregressive"}]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    generate_file(model.writer(), prompts, out, identity={})
    texts = [json.loads(line) for line in out.read_text().splitlines()]
    assert texts[1]["tokens"] == model.generate("a", mode="autoregressive").tokens
    assert texts[0]["tokens"] == model.generate("a").tokens != texts[1]["tokens"]
    prompts.write_text(json.dumps({"prompt": "a", "T": 5}) + "\n")
    with pytest.raises(ValueError, match=r"in.jsonl.* T=5 is the diffusion's"):
        generate_file(
            model.writer(mode="autoregressive"), prompts, tmp_path / "no.jsonl", identity={}
        )


def test_the_command_line_has_the_modes(model, tmp_path, capsys):
    model.save_pretrained(tmp_path / "m")
    arguments = ["generate", "a", "--model", str(tmp_path / "m"), "--json"]
    assert main([*arguments, "--mode", "autoregressive"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["tokens"] == model.generate("a", mode="autoregressive").tokens
    assert main([*arguments, "--mode", "speculative", "--rho", "0.5"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

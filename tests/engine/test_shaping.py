"""Biases, penalties, top_k and min_p: what they do, and the same in every program and loop."""

from dataclasses import replace

import pytest
import torch
from tests import tiny
from tests.engine import test_drafted
from tests.engine.test_programs import written

from ssdlm import SSDLM
from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.denoiser.slots import Slots
from ssdlm.ops.draws import cut_rows
from ssdlm.ops.nucleus import nucleus, suppress
from ssdlm.options import GenerateOptions

SHAPES = {
    "bias": {"logit_bias": {5: 3.0, 7: -100.0, 11: 2.5}},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5, "presence_penalty": -0.5},
    "top_k": {"top_k": 4},
    "min_p": {"min_p": 0.6},
}
ALL = {
    "logit_bias": {5: 3.0, 7: -4.0},
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "top_k": 9,
    "min_p": 0.3,
}
WIDE = {"returns": "w_0", "nucleus": "network"}
SLIDING = {"grid": "sliding", "T": 6, "B": 6, **WIDE}
UNIFORM = {"grid": "uniform", "T": 7, "B": 6, **WIDE}
STAGGERED = {"grid": "staggered", "T": 9, "B": 6, "width": 2.0, **WIDE}
CHAIN = {"mode": "autoregressive"}
PATHS = {
    "chain": (tiny.block, CHAIN),
    "window": (tiny.block, SLIDING | {"width": 1.0}),
    "wide window": (tiny.block, SLIDING | {"width": 3.0, "T": 12}),
    "staggered": (tiny.block, STAGGERED),
    "uniform": (tiny.block, UNIFORM | {"B": 4}),
    "encoder": (tiny.encoder, {"grid": "uniform", "T": 5, "B": 4}),
}
OTHERS = {
    "warm chain": (tiny.block, CHAIN | {"temperature": 0.7}),
    "warm window": (tiny.block, SLIDING | {"width": 3.0, "temperature": 0.7}),
    "greedy chain": (tiny.block, CHAIN | {"top_p": 0.0, "top_k": 0, "min_p": 0.0}),
    "language model": (tiny.llama, CHAIN),
    "window of a language model": (tiny.llama, SLIDING | {"width": 1.0}),
    "window of an adapter": (tiny.adapted, SLIDING | {"width": 2.0}),
    "blocks of an adapter": (tiny.adapted, UNIFORM | {"B": 4}),
    "forbidden word": (tiny.block, SLIDING | {"width": 1.0, "must_not": ["a"]}),
    "grammar": (tiny.block, SLIDING | {"width": 1.0, "regex": "[a-e ]{8,}"}),
    "forbidden word, wide": (tiny.block, SLIDING | {"width": 3.0, "must_not": ["a"]}),
    "grammar, chain": (tiny.block, CHAIN | {"regex": "[a-e ]{8,}"}),
    "words": (tiny.block, UNIFORM | {"must": ["fed", "b a"]}),
    "words, staggered": (tiny.block, STAGGERED | {"must": ["fed"]}),
    "pin": (tiny.block, UNIFORM | {"pin": {0: "e", 8: "ab"}}),
    "gap": (tiny.block, {name: STAGGERED[name] for name in STAGGERED if name != "B"}),
    "steered": (tiny.block, SLIDING | {"width": 2.0, "control": "GUIDE", "gradient": "words"}),
}
OTHERS["gap"][1]["suffix"] = " abc"


def model_of(make):
    return SSDLM(make(), tiny.tokenizer(), GenerateOptions())


def requests_of(model, own):
    base = {"length": 12, "top_p": 0.9, "seed": 3}
    return [model.requests([prompt], base | own)[0] for prompt in ("a dog", "bed", "ee")]


def plain(model, request):
    """Return a text's tokens by the reference loop."""
    steps = [step.tokens[0].tolist() for step in model.engine.steps([request]) if step.is_last]
    return [token for block in steps for token in block]


@pytest.mark.parametrize(
    ("path", "shape"),
    [(path, shape) for path in PATHS.values() for shape in SHAPES.values()]
    + [(path, ALL) for path in OTHERS.values()],
    ids=[*(f"{path} {shape}" for path in PATHS for shape in SHAPES), *OTHERS],
)
def test_texts_of_each_program_are_those_of_the_reference_loop(path, shape, monkeypatch, tmp_path):
    make, how = path
    model, own = model_of(make), shape | how
    if "control" in own:
        own["control"] = f"{tiny.save_classifier(tmp_path)}=positive"
    asked, runners = requests_of(model, own), model.engine.runners
    monkeypatch.setattr(runners, "is_gpu", True)
    monkeypatch.setattr(Slots, "has_kernels", lambda network: True)
    monkeypatch.setattr(PaddedEncoder, "takes", lambda denoiser: make is tiny.encoder)
    key = runners.key_of(asked[0])
    assert key is not None
    if not key.has_choosers:
        is_cut = bool(own.get("top_k", 0) or own.get("min_p", 0))
        assert (key.traits.is_biased, key.traits.is_cut) == (len(shape) == 5 or not is_cut, is_cut)
    done = written(runners.build(key, asked[0], 2), runners.entries(asked))
    differs = False
    for request, text in zip(asked, done, strict=True):
        wanted = plain(model, request)
        assert text.tokens[: len(wanted)] == wanted
        without = {name: getattr(GenerateOptions, name) for name in shape}
        free = replace(request, options=request.options.change(**without))
        key = runners.key_of(free)
        assert key is not None and not (key.traits.is_biased or key.traits.is_cut)
        differs |= wanted != plain(model, free)
    assert differs


@pytest.mark.parametrize("shape", [*SHAPES.values(), ALL], ids=[*SHAPES, "all"])
def test_guesses_change_no_token(shape):
    model = test_drafted.model_of(tiny.block)
    own = shape | {"temperature": 0.8, "length": 24, "top_p": 0.95}
    chain = model.generate("a dog", **own, mode="autoregressive")
    guessed = model.generate("a dog", **own, mode="speculative")
    assert guessed.tokens == chain.tokens
    is_biased = not shape.keys() <= {"top_k", "min_p"}
    assert guessed.written.program == ("chain" if is_biased else "drafted")


HOW = {
    "chain": CHAIN,
    "window": SLIDING | {"width": 1.0},
    "wide window": SLIDING | {"width": 3.0},
    "blocks": UNIFORM,
    "blocks as the paper has them": UNIFORM | {"nucleus": "logits", "returns": "logits"},
}
each_way = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


@each_way
def test_a_banned_token_is_not_written_and_a_demanded_one_always(how):
    model = model_of(tiny.block)
    usual = how | {"length": 12, "top_p": 0.99, "num_samples": 3}
    free = [one.tokens for one in model.generate("a dog", **usual)]
    token = free[0][3]
    banned = model.generate("a dog", **usual, logit_bias={token: -100.0})
    assert not any(token in one.tokens for one in banned)
    demanded = model.generate("a dog", **usual, logit_bias={token: 100.0})
    assert all(set(one.tokens) == {token} for one in demanded)


@pytest.mark.parametrize("how", [CHAIN, SLIDING | {"width": 1.0}], ids=["chain", "window"])
@pytest.mark.parametrize("cut", [{"top_k": 1}, {"min_p": 1.0}], ids=str)
def test_one_token_left_is_the_greedy_text(how, cut):
    model = model_of(tiny.block)
    drawn = model.generate("a dog", length=12, seed=5, **how).tokens
    left = model.generate("a dog", length=12, seed=5, **how, **cut).tokens
    how = {name: how[name] for name in how if name not in WIDE}
    assert left == model.generate("a dog", length=12, projection="greedy", **how).tokens != drawn


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
@each_way
def test_penalties_lower_repeats_and_rewards_raise_them(how, name):
    model = model_of(tiny.block)
    usual = how | {"length": 18, "top_p": 0.99, "num_samples": 6, "seed": 1}

    def distinct(**own):
        return sum(len(set(one.tokens)) for one in model.generate("a dog", **usual, **own))

    assert distinct(**{name: 2.0}) > distinct() > distinct(**{name: -2.0})


def test_penalties_are_of_the_text_and_not_of_its_prompt():
    model = model_of(tiny.block)
    usual = CHAIN | {"length": 1, "projection": "greedy"}
    (token,) = model.generate("a dog", **usual).tokens
    prompt = [[*model.engine.context("a dog"), token, token]]
    usual |= {"length": 12}
    (free,) = model.generate(prompt, **usual)
    (held,) = model.generate(prompt, **usual, presence_penalty=2.0)
    assert held.tokens[0] == free.tokens[0] and held.tokens != free.tokens


def indifferent(texts):
    """Log-scores of one who likes all texts alike."""
    return [0.0] * len(texts)


def test_particles_count_what_they_wrote_before_they_were_weighed():
    model = model_of(tiny.block)
    own = {"grid": "sliding", "T": 6, "B": 6, "width": 1.0, "length": 12}
    own |= {"projection": "greedy", "frequency_penalty": 2.0}
    alone = model.generate("a dog", **own).tokens
    weighed = {"control": indifferent, "particles": 2, "particle_step": 3}
    assert model.generate("a dog", **own, **weighed).tokens == alone
    assert alone != model.generate("a dog", **own | {"frequency_penalty": 0.0}).tokens


def test_a_bias_does_not_defeat_a_constraint():
    model = model_of(tiny.block)
    ids = {letter: model.engine.context(f"a{letter}")[-1] for letter in "abc"}
    bias = {ids["a"]: 100.0, ids["b"]: -100.0, ids["c"]: 100.0}
    for how in (CHAIN, SLIDING | {"width": 1.0}, SLIDING | {"width": 3.0}):
        text = model.generate("a", **how, length=12, logit_bias=bias, top_k=1, regex="b+").text
        assert set(text) == {"b"}
    text = model.generate("a", **UNIFORM, length=12, logit_bias=bias, must=["bed"]).text
    assert "bed" in text
    text = model.generate("a", **UNIFORM, length=12, logit_bias=bias, must_not=["c"]).text
    assert "c" not in text.split()


@pytest.mark.parametrize("top_p", [1.0, 0.7, 0.2, 0.0])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_rows_cut_together_match_a_nucleus_each(top_p, temperature):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(8, 2, 50, generator=generator)
    logits[1, :, 20:] = -torch.inf  # what a grammar forbids
    top_ks, min_ps = [0, 5, 1, 50, 9, 0, 0, 400], [0.0, 0.1, 0.0, 0.0, 0.3, 1.0, 0.02, 0.2]
    suppressed = torch.tensor([-1, 3, -1, 4, -1, -1, 7, -1])
    settings = suppressed, torch.full((8,), temperature), torch.full((8,), top_p)
    found, nothing, (_, _, left) = cut_rows(
        logits, *settings, torch.tensor(top_ks), torch.tensor(min_ps)
    )
    assert not nothing.any() and left.tolist() == [float(top_p > 0)] * 8
    for row, (top_k, min_p) in enumerate(zip(top_ks, min_ps, strict=True)):
        never = [int(token) for token in suppressed[row : row + 1] if token >= 0]
        own = suppress(logits[row : row + 1], never)
        inside = nucleus(own / temperature, top_p, top_k, min_p)
        assert torch.equal(found[row] > -torch.inf, inside[0] & (own[0] > -torch.inf))
        assert torch.equal(found[row][inside[0]], own[0][inside[0]])
        assert 1 <= int(inside.sum(-1).min()) and (not top_k or int(inside.sum(-1).max()) <= top_k)


def test_a_nucleus_is_cut_to_the_likeliest_before_it_is_summed():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().view(1, 1, 4)
    assert nucleus(logits, 0.65).tolist() == [[[True, True, False, False]]]
    # Of the two likeliest the first has 4/7 by itself.
    assert nucleus(logits, 0.55, 2).tolist() == [[[True, False, False, False]]]
    assert nucleus(logits, 1.0, 0, 0.5).tolist() == [[[True, True, True, False]]]
    # Those below min_p count in the sum: it comes last.
    assert nucleus(logits, 0.65, 0, 0.6).tolist() == [[[True, True, False, False]]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"logit_bias": {9999: 1}}, "logit_bias names token 9999, and the model has 0 to"),
        ({"logit_bias": {5: 101}}, "logit_bias has the entry {5: 101}; give token ids from 0"),
        ({"logit_bias": {5: float("nan")}}, "each with a bias from -100 to 100"),
        ({"logit_bias": {-1: 1}}, "logit_bias has the entry {-1: 1}"),
        ({"logit_bias": {4: 1, "five": 1}}, "has the entry {'five': 1}"),
        ({"logit_bias": [5]}, "logit_bias=[5] is not"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5 is out of range; use -2 to 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty=nan is out of range"),
        ({"top_k": -1}, "top_k=-1 is out of range; use 0 (the whole vocabulary)"),
        ({"top_k": 10**12}, "use 0 (the whole vocabulary) to 1000000, such as 40"),
        ({"top_k": 1.5}, "top_k=1.5 is not a whole number"),
        ({"min_p": 1.5}, "min_p=1.5 is out of range; use 0 (any token) to 1"),
        ({"min_p": float("nan")}, "min_p=nan is out of range"),
        ({"top_k": 5, "projection": "greedy"}, "top_k=5 has no effect"),
        ({"presence_penalty": 1.0, "grid": "uniform"}, "presence_penalty=1.0 has no effect"),
    ],
    ids=str,
)
def test_bad_values_are_refused_in_a_line(given, said):
    model = model_of(tiny.block)
    with pytest.raises(ValueError) as error:
        model.requests(["a"], {"length": 4} | given)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_an_explanation_says_what_penalties_count():
    model = model_of(tiny.block)
    own = SLIDING | {"width": 3.0, "length": 12, "presence_penalty": 1.0, "top_k": 5}
    told = model.explain("a dog", **own)
    assert told.written.program == "window" == model.generate("a dog", **own).written.program
    assert "positions open at once do not see each other" in str(told)
    assert "penalties" not in str(model.explain("a dog", **own | {"presence_penalty": 0.0}))
    assert "penalties" not in str(model.explain("a dog", **own | {"width": 1.0}))

"""Targets: a share of texts seeks a label, the others avoid it."""

from __future__ import annotations

import pytest
from tests import tiny

from ssdlm import SSDLM, GenerateOptions, classifier_guide
from ssdlm.engine.targets import opposite

OPTIONS = GenerateOptions(length=6, B=(6,), T=6, grid="sliding", width=1.0, returns="w_0")


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), OPTIONS)


@pytest.fixture(scope="module")
def mood(tmp_path_factory):
    return str(tiny.save_classifier(tmp_path_factory.mktemp("mood")))


def aims(model, prompts, **given):
    """Return which texts avoid each label."""
    options = model.options.change(**given)
    requests = model.engine.prepare(prompts, [options] * len(prompts))
    assert all(request.options.target == () for request in requests)
    return [tuple("!=" in one for one in request.options.control) for request in requests]


@pytest.mark.parametrize("target", [0.0, 0.35, 0.8, 1.0])
def test_the_texts_of_a_prompt_have_the_share_and_those_of_many_prompts_too(model, mood, target):
    given = {"control": f"{mood}=positive", "target": target}
    one = aims(model, ["the"], num_samples=100, **given)
    assert sum(not avoids for (avoids,) in one) == pytest.approx(100 * target, abs=2)
    many = aims(model, [[number % 60, number // 60] for number in range(400)], **given)
    assert sum(not avoids for (avoids,) in many) == pytest.approx(400 * target, abs=40)


def test_two_targets_are_met_independently_of_each_other(model, tmp_path):
    guides = [classifier_guide(tiny.save_classifier(tmp_path / name), "positive") for name in "ab"]
    options = model.options.change(control=guides, target=0.5, num_samples=400)
    found = [
        tuple(one.avoid for one in request.options.control)
        for request in model.engine.prepare(["the"], [options])
    ]
    assert all(found.count((one, other)) in range(90, 111) for one in (0, 1) for other in (0, 1))


def test_a_text_is_what_its_own_control_writes(model, mood):
    texts = model.generate(
        "the", control=f"{mood}=positive:2000", target=0.5, num_samples=8, seed=1
    )
    sought = aims(
        model, ["the"], control=f"{mood}=positive:2000", target=0.5, num_samples=8, seed=1
    )
    assert len(set(sought)) == 2
    for sign, is_other in (("=", False), ("!=", True)):
        alone = model.generate("the", control=f"{mood}{sign}positive:2000", num_samples=8, seed=1)
        for text, plain, (avoids,) in zip(texts, alone, sought, strict=True):
            assert text.tokens == plain.tokens or avoids != is_other


def test_candidates_of_a_text_seek_the_same(model, mood):
    found = aims(model, ["the"], control=f"{mood}=positive", target=0.5, num_samples=6, best_of=3)
    texts = [set(found[start : start + 3]) for start in range(0, 18, 3)]
    assert all(len(one) == 1 for one in texts) and len(set.union(*texts)) == 2


def test_the_opposite_of_an_opposite_is_the_control():
    for control in ("a=b", "a!=b:5", "a[x+y]=x"):
        assert opposite(control) != control == opposite(opposite(control))


def test_targets_of_no_classifier_or_two_of_one_are_refused(model, mood):
    def length(texts):
        return [float(len(text)) for text in texts]

    for given, said in (
        ({"control": length}, "length has none"),
        ({"control": [f"{mood}=positive", f"{mood}!=neutral"]}, "has two targets"),
        ({"control": [f"{mood}=positive", f"{mood}/.!=neutral"]}, "/. has two targets"),
        (
            {"control": f"{mood}=positive", "target": [0.8, 0.7]},
            "target=0.8,0.7 has 2 values for 1 control",
        ),
        ({"control": f"{mood}=positive", "target": 1.2}, "target=1.2 is out of range"),
        ({}, "none is asked for; give control"),
        ({"mode": "autoregressive"}, "mode=autoregressive"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            model.generate("the", **{"target": 0.8} | given)
        assert "\n" not in str(caught.value)

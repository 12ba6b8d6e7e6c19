"""What is asked for, in words, becomes a placement or a line that says why not."""

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig
from ssdlm.constraints.words import TextConstraint, text_constraints


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=8, B=(8,), T=1))


def test_options_are_for_all_prompts_or_one_each():
    assert text_constraints(2, must="a", must_not=["b"]) == [TextConstraint(("a",), ("b",))] * 2
    assert text_constraints(2, must=[["a"], []], suffix=["", "x"]) == [
        TextConstraint(("a",)),
        TextConstraint(suffix="x"),
    ]
    assert text_constraints(2, end_at_sentence=[True, False]) == [
        TextConstraint(end_at_sentence=True),
        TextConstraint(),
    ]
    assert text_constraints(1, pin={3: "x", 1: "y"}) == [TextConstraint(pin=((1, "y"), (3, "x")))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"must": ["elephants"]}, "must=['elephants'] takes 10 tokens and there is room for 8"),
        ({"must": ["dog"] * 3}, "takes 12 tokens and there is room for 8; raise length or drop"),
        (
            {"must": ["a Dog"], "must_not": ["dog"]},
            "must='a Dog' contains must_not='dog'; drop one",
        ),
        ({"must": ["caf\u00e9"]}, "cannot be written with this tokenizer"),
        ({"must": [""]}, "must='' is not a word"),
        ({"must_not": ["a", ""]}, "must_not='' is not a word; write one"),
        ({"must_not": ["\ufffd"]}, "is how broken bytes are shown, not a character; leave it out"),
        ({"end_at_sentence": "yes"}, "end_at_sentence='yes' is not one for each of 1 prompts"),
        ({"end_at_sentence": ["yes"]}, "end_at_sentence='yes' is neither True nor False"),
        ({"must": ["\udc80"]}, "is not UTF-8; save or type it as UTF-8"),
        ({"must": [3]}, "3 is not a word or a list of words"),
        ({"must": [["a"], ["b"]]}, "is not one for each of 1 prompts; give one each"),
        ({"suffix": ["a", "b"]}, "suffix=['a', 'b'] is not one for each of 1 prompts"),
        ({"suffix": "x" * 60}, "make a block of 68 tokens, and the model has 64 positions"),
        ({"suffix": " no", "end_at_sentence": True}, "suffix=' no' does not end a sentence"),
        ({"suffix": "\u00e9"}, "suffix='\u00e9' cannot be written with this tokenizer"),
        ({"pin": {7: "ab"}}, "pin='ab' takes 2 tokens from 7 on, and length=8"),
        ({"pin": {-1: "a"}}, "pin='a' takes 1 tokens from -1 on"),
        ({"pin": {1: "ab", 2: "c"}}, "pin='c' at 2 overlaps another; move one of them"),
        ({"pin": {"1": "a"}}, "does not lead from a whole number to a text"),
        ({"pin": [7]}, "pin=7 is not a dictionary"),
        ({"pin": {0: "bad dog."}, "must_not": ["bad"]}, "no text of 8 tokens has must_not=['bad']"),
        ({"pin": {6: "ab"}, "end_at_sentence": True}, "no text of 8 tokens has pin={6: 'ab'} and"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(model, options, message):
    with pytest.raises(ValueError) as caught:
        model.generate("x", **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_need_a_tokenizer():
    with pytest.raises(ValueError, match="words need a tokenizer, and this model has none"):
        SSDLM(tiny.encoder()).generate([[1, 2]], must=["a"])


def test_what_a_sign_makes_possible_is_not_refused(model):
    made = model.generate("x", must=["ab"], must_not=["ab "])
    assert " ab" in made.text
    assert "ab " not in made.text
    for suffix in (" ok. ", " ok.\n", " 'ok.'"):
        assert model.generate("x", suffix=suffix, end_at_sentence=True).text.endswith(suffix)


def test_words_that_only_just_fit_are_placed(model):
    made = model.generate("x", must=["a", "b", "c"], length=8, pin={0: "?", 7: "!"})
    assert all(f" {word}" in made.text for word in "abc")
    tight = model.generate("x", must=["a", "b", "cd"], length=7, B=2)
    assert sorted(tight.text.split()) == ["a", "b", "cd"]


def test_nearly_everything_can_be_forbidden(model):
    banned = [*"abcdefghijklmnopqrstuvwxyz012.,!?'-\n ", "<|endoftext|>"]
    for seed in range(5):
        text = model.generate("x ", must_not=banned, seed=seed).text
        assert len(text) == 8
        assert text.isalnum()
    with pytest.raises(ValueError, match="no text of 8 tokens has must_not"):
        model.generate("x ", must_not=banned, pin={3: " "})

"""What is asked for, in words, becomes a placement or a line that says why not."""

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=8, B=(8,), T=1))


@pytest.mark.usefixtures("unchecked")
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
        ({"must": [""]}, "must='' is not a word or a list of words"),
        ({"must_not": ["a", ""]}, "must_not=['a', ''] is not one for each of 1 prompts"),
        ({"must_not": ["\ufffd"]}, "is how broken bytes are shown, not a character; leave it out"),
        ({"end_at_sentence": "yes"}, "end_at_sentence='yes' is not true or false"),
        ({"end_at_sentence": ["yes"]}, "end_at_sentence='yes' is not true or false"),
        ({"must": ["\udc80"]}, "is not UTF-8; save or type it as UTF-8"),
        ({"must": [3]}, "must=3 is not a word or a list of words"),
        ({"must": [["a"], ["b"]]}, "is not one for each of 1 prompts; give one each"),
        ({"suffix": ["a", "b"]}, "suffix=['a', 'b'] is not one for each of 1 prompts"),
        ({"suffix": "x" * 60}, "make a block of 68 tokens, and the model has 64 positions"),
        ({"suffix": " no", "end_at_sentence": True}, "suffix=' no' does not end a sentence"),
        ({"suffix": "\u00e9"}, "suffix='\u00e9' cannot be written with this tokenizer"),
        ({"pin": {7: "ab"}}, "pin='ab' takes 2 tokens from 7 on, and length=8"),
        ({"pin": {-1: "a"}}, "pin='a' takes 1 tokens from -1 on"),
        ({"pin": {1: "ab", 2: "c"}}, "pin='c' at 2 overlaps another; move one of them"),
        ({"pin": {"x": "a"}}, "pin={'x': 'a'} is not a dictionary {position: text}"),
        ({"pin": [7]}, "pin=7 is not a dictionary {position: text}"),
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

"""Where a text ends: stop strings across tokens and blocks, and what a streamer gets."""

import pytest
from tests import tiny

from ssdlm import SSDLM, GenerateOptions
from ssdlm.engine.ending import num_certain, overlap

SETTINGS = GenerateOptions(length=24, B=(6,), T=2)


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), SETTINGS)


class Recorder:
    """A streamer that keeps what it gets."""

    def __init__(self):
        self.tokens, self.ends = [], 0

    def put(self, value):
        assert self.ends == 0
        self.tokens += value.tolist()

    def end(self):
        self.ends += 1


def test_a_text_ends_before_the_first_of_its_stop_strings_wherever_it_stands(model, unchecked):
    found = 0
    for seed in range(2):
        whole = model.generate("the", seed=seed)
        for start in (0, 3, 5, 11, len(whole.text) - 3):
            for size in (1, 2, 5):
                string = whole.text[start : start + size]
                if not string:
                    continue
                cut = model.generate("the", seed=seed, stop=[string, "never there"])
                expected = whole.text[: whole.text.index(string)]
                assert cut.text == expected
                assert cut.tokens == whole.tokens[: len(cut.tokens)]
                assert expected.startswith(model.text(cut.tokens, model.context("the")))
                found += 1
    assert found > 20


def test_no_block_is_written_after_a_stop_string(model):
    whole = model.generate("the", seed=1)
    drafts = list(model.stream("the", seed=1, stop=whole.text[:2]))
    assert {draft.block for draft in drafts} == {0}
    assert drafts[-1].text == ""


def test_a_streamer_gets_the_tokens_of_the_text_in_order_and_then_the_end(model):
    for options in (
        {},
        {"grid": "staggered", "width": 1.0, "T": 8, "returns": "w_0"},
        {"stop_at_end": True},
        {"end_at_sentence": True, "length": 12},
    ):
        streamer = Recorder()
        text = model.generate("the", seed=3, streamer=streamer, **options)
        assert streamer.tokens == text.tokens
        assert streamer.ends == 1
        assert text == model.generate("the", seed=3, **options)


def test_a_streamer_gets_nothing_of_a_stop_string(model, unchecked):
    for seed in range(3):
        whole = model.generate("the", seed=seed)
        for start in range(0, len(whole.text) - 4, 4):
            streamer = Recorder()
            string = whole.text[start : start + 4]
            text = model.generate("the", seed=seed, streamer=streamer, stop=string)
            assert streamer.tokens == text.tokens


def test_a_streamer_sees_tokens_before_the_block_is_done(model):
    class Counter(Recorder):
        def put(self, value):
            super().put(value)
            self.sizes = [*getattr(self, "sizes", []), len(value)]

    streamer = Counter()
    model.generate("the", streamer=streamer, grid="staggered", width=1.0, T=12, returns="w_0")
    assert len(streamer.sizes) > 4


def test_a_streamer_takes_one_text(model):
    with pytest.raises(ValueError, match="streamer takes one text, and 2 are asked for"):
        model.generate(["a", "b"], streamer=Recorder())


def test_stop_needs_a_tokenizer():
    bare = SSDLM(tiny.encoder(), options=SETTINGS)
    with pytest.raises(ValueError, match="stop='x' needs a tokenizer"):
        bare.generate([[1, 2]], stop="x")


@pytest.mark.parametrize(
    ("text", "string", "size"), [("ab", "bc", 1), ("abc", "bcd", 2), ("ab", "x", 0), ("", "ab", 0)]
)
def test_what_may_become_a_stop_string_is_held_back(text, string, size):
    assert overlap(text, string) == size


def test_a_character_on_its_way_is_held_back_if_a_stop_string_may_begin_in_it():
    model = SSDLM.from_pretrained("builtin:mini")
    tokens = model.tokenizer.encode("xé漢y")
    (request,) = model.requests("the", {"length": 20, "stop": "é漢"})
    counts = [num_certain(model.tokenizer, request, tokens[:n]) for n in range(len(tokens) + 1)]
    assert counts == [0] + [1] * len(tokens)

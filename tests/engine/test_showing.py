"""Texts in a notebook: every word is there, escaped, with how sure it is, and small."""

import gc
import math
import pickle
import re
from html.parser import HTMLParser

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, Generation
from ssdlm.engine.showing import MOST_FRAMES, MOST_LETTERS, Piece, Timing, as_html

HOSTILE = "<script>alert(1)</script><img src=x onerror='a()'>\"&amp;</div></style>"
WIDE = {"length": 8, "grid": "staggered", "width": 8.0, "T": 12, "seed": 0}


class Reader(HTMLParser):
    """Reads the text of each frame, the titles in it, and every tag."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.frames: list[str] = []
        self.titles: list[str] = []
        self.tags: set[str] = set()
        self.depth = 0
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        named = dict(attrs)
        assert set(named) <= {"class", "style", "title", "aria-hidden"}
        if tag == "div":
            self.depth += 1
            self.frames += [""] if self.depth == 2 else []
        if "title" in named:
            self.titles.append(named["title"])

    def handle_endtag(self, tag):
        self.depth -= tag == "div"

    def handle_data(self, data):
        if self.depth == 2:
            self.frames[-1] += data


@pytest.fixture(scope="module")
def model() -> SSDLM:
    return SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(B=(8,), T=4, returns="w_0"))


def test_a_text_shows_every_word_with_the_probability_of_its_token(model):
    text = model.generate("the river", length=6, seed=0)
    read = Reader(text._repr_html_())
    assert read.frames == ["the river" + text.text]
    scored = model.score([text.tokens], prompt="the river")[0].logprobs
    assert read.titles == [f"{math.exp(one):.1%}" for one in scored if one is not None]


def test_kept_steps_are_those_of_a_stream_and_come_before_the_text(model):
    text = model.generate("the river", **WIDE, keep_steps=True)
    drafts = list(model.stream("the river", **WIDE))
    assert text.tokens == model.generate("the river", **WIDE).tokens
    assert ["".join(piece.text for piece in step) for step in text.steps] == [
        draft.text for draft in drafts
    ]
    assert [piece.noise for piece in text.steps[0]] == pytest.approx(drafts[0].noise, abs=1e-4)
    source = text._repr_html_()
    read = Reader(source)
    assert len(read.frames) == len(text.steps)
    assert read.frames[-1] == "the river" + text.text
    assert source.count('class="f f12"') == 11 and "prefers-reduced-motion" in source


def test_without_a_context_stream_a_text_is_as_sure_as_it_was_drawn():
    options = DecodeConfig(B=(8,), T=4)
    encoder = SSDLM(tiny.encoder(), tiny.tokenizer(), options)
    text = encoder.generate("the river", length=8, keep_steps=True)
    read = Reader(text._repr_html_())
    assert read.frames[-1] == "the river" + text.text
    assert read.titles == [f"{piece.certainty:.1%}" for piece in text.steps[-1] if piece.text]
    assert Reader(encoder.generate("the river", length=8)._repr_html_()).titles == []


def test_hostile_texts_are_words_and_nothing_else():
    pieces = [Piece(HOSTILE, 0.5), Piece(HOSTILE)]
    steps = [[Piece(HOSTILE, 0.5, 0.5), Piece(HOSTILE, None, 1.0)]] * 2
    read = Reader(as_html(HOSTILE, pieces, steps, HOSTILE))
    assert read.frames == [HOSTILE * 3] * 2
    assert read.tags == {"div", "style", "span", "small"}
    text = Generation(HOSTILE, HOSTILE, [1], 0, 0, calls=1)
    assert Reader(text._repr_html_()).frames == [HOSTILE * 2]


def test_a_long_text_and_many_steps_stay_small():
    pieces = [Piece(" wide", 0.5, 0.5)] * 50_000
    source = as_html("x" * 100_000, pieces, [pieces] * 300, "")
    read = Reader(source)
    assert len(source) < 400_000
    assert len(read.frames) <= MOST_FRAMES + 1
    assert read.frames[-1].endswith(f" ... ({250_000 - MOST_LETTERS} more letters)")


def test_a_text_outlives_its_model_and_is_copied_without_it(model):
    text = model.generate("the river", length=4)
    assert pickle.loads(pickle.dumps(text)) == text
    gone = SSDLM(tiny.block(), tiny.tokenizer(), model.options)
    orphan = gone.generate("the river", length=4)
    del gone
    gc.collect()
    assert Reader(orphan._repr_html_()).frames == ["the river" + orphan.text]
    assert Reader(orphan._repr_html_()).titles == []


@pytest.mark.usefixtures("unchecked")
def test_texts_that_compete_keep_no_steps(model):
    with pytest.raises(ValueError, match="best_of=2: keep_steps keeps those of one text; leave"):
        model.generate("the river", best_of=2, keep_steps=True)
    with pytest.raises(ValueError, match="keep_steps='x' is not true or false; give one"):
        model.generate("the river", keep_steps="x")
    texts = model.generate("the river", num_samples=2, keep_steps=True)
    assert [text.sample for text in texts] == [0, 1]
    assert texts[0].steps != texts[1].steps


def test_frames_take_their_turns_and_the_last_one_stays():
    timing = Timing(11)
    (share, before) = map(float, re.findall(r"\}([\d.]+)%", timing.style))
    assert before == pytest.approx(10 * share, rel=1e-3)
    assert 'style="animation-delay:0.42s"' in timing.attributes(3)
    assert timing.attributes(10) == 'class="e e11"'

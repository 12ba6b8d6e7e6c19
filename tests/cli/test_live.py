"""The live view: what it shows of a block, and how it marks what is decided, open or noise."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from tests import tiny

from ssdlm import SSDLM, DecodeConfig
from ssdlm.cli.live import DECIDED, NOISE, picture, styles, watch

STAGGERED = DecodeConfig(length=12, B=(6,), T=9, grid="staggered", width=1.0, returns="w_0")


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), STAGGERED)


def test_decided_words_stand_left_of_the_window_and_noise_right_of_it(model):
    for draft in model.stream("the river"):
        shown = styles(draft.step)
        assert len(shown) == 6
        assert shown.count(DECIDED) == draft.step.window.start
        assert shown[draft.step.window.stop :] == [NOISE] * (6 - draft.step.window.stop)
        assert all("magenta" in style for style in shown[draft.step.window])


def test_a_block_whose_positions_move_together_is_open_everywhere(model):
    for draft in model.stream("the river", grid="uniform", T=3):
        assert all("magenta" in style for style in styles(draft.step))


def test_a_frame_holds_prompt_text_and_steps_left(model):
    *_, draft = model.stream("the river")
    frame = picture("the river", draft, model.spellings())
    assert frame.plain == f"the river{draft.text}\n[block 2, 0 steps left]"
    assert frame.spans[0].style == "cyan"


def test_noise_never_breaks_the_line(model):
    draft = next(iter(model.stream("the river")))
    line_end = model.spellings().index("\n")
    step = replace(draft.step, tokens=torch.full_like(draft.step.tokens, line_end))
    frame = picture("", replace(draft, step=step), model.spellings())
    assert frame.plain.count("\n") == 1 + (draft.step.window.stop - draft.step.window.start)


def test_watching_returns_the_last_text_and_leaves_no_frame(model, monkeypatch):
    told = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console", lambda **_: Console(file=told, force_terminal=True, width=60)
    )
    text = watch("the river", model.stream("the river"), model.spellings())
    assert text == model.generate("the river").text
    assert told.getvalue().endswith("\x1b[2K"), "the view wipes itself away"

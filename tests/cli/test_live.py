"""The live view: what it shows of a block, and how it marks what is decided, open or noise."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests import tiny

from ssdlm import SSDLM, DecodeConfig
from ssdlm.cli.live import DECIDED, NOISE, newest_lines, picture, styles, told, watch

STAGGERED = DecodeConfig(length=12, B=(6,), T=9, grid="staggered", width=1.0, returns="w_0")


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), STAGGERED)


def test_decided_words_stand_left_of_the_window_and_noise_right_of_it(model):
    for draft in model.stream("the river"):
        shown = styles(draft)
        assert len(shown) == 6
        assert shown.count(DECIDED) == draft.step.window.start
        assert shown[draft.step.window.stop :] == [NOISE] * (6 - draft.step.window.stop)
        assert all("magenta" in style for style in shown[draft.step.window])


def test_a_block_whose_positions_move_together_is_open_everywhere(model):
    for draft in model.stream("the river", grid="uniform", T=3):
        assert all("magenta" in style for style in styles(draft))


@pytest.mark.parametrize("width", [1.0, 3.0])
def test_a_sliding_window_is_shown_as_far_as_it_reaches(model, width):
    drafts = list(model.stream("the river", grid="sliding", T=6, width=width))
    assert len(drafts) == 12
    for draft in drafts:
        shown, window = styles(draft), draft.step.window
        assert len(shown) == draft.step.tokens.shape[1] == window.stop
        assert shown.count(DECIDED) == window.start and NOISE not in shown
        assert draft.settled + model.text(draft.step.tokens[0].tolist()) == draft.text
        assert picture("the river", draft, model.spellings()).plain.startswith("the river")


def test_a_frame_holds_prompt_text_and_steps_left(model):
    *_, draft = model.stream("the river")
    frame = picture("the river", draft, model.spellings())
    assert frame.plain == f"the river{draft.text}\n[block 2, 0 steps left]"
    assert frame.spans[0].style == "cyan"


def test_a_frame_says_which_block_of_how_many(model):
    draft = next(iter(model.stream("the river")))
    frame = picture("the river", draft, model.spellings(), num_blocks=2)
    assert frame.plain.endswith(f"\n[block 1 of 2, {draft.t} steps left]")


def test_a_frame_longer_than_the_screen_shows_its_newest_lines(model):
    *_, draft = model.stream("the river")
    prompt = "\n".join(f"line {i}" for i in range(100)) + "\n" + 300 * "x"
    console = Console(file=io.StringIO(), width=40, height=10)
    shown = newest_lines(picture(prompt, draft, model.spellings()), console)
    lines = shown.plain.split("\n")
    assert len(lines) == 9
    assert "line 99" not in shown.plain and lines[0].startswith("xxx")
    assert lines[-1] == "[block 2, 0 steps left]"
    small = picture("the river", draft, model.spellings())
    assert newest_lines(small, console).plain == small.plain


def test_what_is_decided_is_kept_when_it_is_interrupted(model, capsys):
    whole = model.generate("the river").text
    kept = []
    for stop in (1, 6, 9, 14, 17):

        def drafts(stop=stop):
            for number, draft in enumerate(model.stream("the river"), 1):
                yield draft
                if number == stop:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            watch("the river", drafts(), model.spellings())
        kept.append(capsys.readouterr().out.removeprefix("the river").removesuffix("\n"))
    assert all(whole.startswith(text) for text in kept)
    assert kept == sorted(kept, key=len)
    assert kept[2] == model.generate("the river", length=6).text != kept[0]
    assert len(kept[3]) > len(kept[2])


def test_a_terminal_is_told_what_takes_long_and_a_log_is_not(monkeypatch):
    for is_terminal in (True, False):
        heard = io.StringIO()
        heard.isatty = lambda answer=is_terminal: answer
        monkeypatch.setattr("sys.stderr", heard)
        with told("loading mini ..."):
            assert heard.getvalue() == ("loading mini ..." if is_terminal else "")
        assert heard.getvalue() == ("loading mini ...\r\x1b[2K" if is_terminal else "")


def test_noise_never_breaks_the_line(model):
    draft = next(iter(model.stream("the river")))
    line_end = model.spellings().index("\n")
    frame = picture("", replace(draft, tokens=(line_end,) * 6), model.spellings())
    assert frame.plain.count("\n") == 1 + (draft.step.window.stop - draft.step.window.start)


def test_watching_returns_the_last_text_and_leaves_no_frame(model, monkeypatch):
    told = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console", lambda **_: Console(file=told, force_terminal=True, width=60)
    )
    text = watch("the river", model.stream("the river"), model.spellings())
    assert text == model.generate("the river").text
    assert told.getvalue().endswith("\x1b[2K"), "the view wipes itself away"

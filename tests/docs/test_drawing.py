"""The picture of the README: real steps, in order, in a file that browsers can read."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def draw():
    return runpy.run_path(str(DOCS / "draw_denoising.py"))


@pytest.fixture(scope="module")
def shots(draw):
    settings = DecodeConfig(length=60, B=(30,), T=8, grid="staggered", width=1.0, returns="w_0")
    model = SSDLM(tiny.block(), tiny.tokenizer(), settings)
    return list(draw["frames"](model, "the river", every=2, seed=0)), model


def test_every_frame_is_a_step_and_the_last_is_the_text(shots):
    frames, model = shots
    assert [caption for _, caption in frames] == [
        f"block {block}, {t} steps left" for block in (1, 2) for t in (6, 4, 2, 0)
    ]
    text = " ".join(("the river" + model.generate("the river").text).split("\n"))
    assert "".join(piece.text for piece in frames[-1][0]) == text


def test_lines_keep_every_word_and_fit(draw, shots):
    for pieces, _ in shots[0]:
        lines = ["".join(piece.text for piece in line) for line in draw["wrapped"](pieces)]
        whole = "".join(piece.text for piece in pieces)
        assert "".join("".join(lines).split()) == "".join(whole.split())
        assert all(len(line) <= draw["COLUMNS"] or " " not in line for line in lines)


def test_the_picture_is_well_formed_and_shows_the_end_without_animation(draw, shots):
    root = ElementTree.fromstring(draw["drawing"](shots[0]))
    groups = root.findall(f"{SVG}g")
    assert [group.get("class") for group in groups] == ["f"] * 7 + ["e"]


def test_the_committed_picture_is_small():
    picture = DOCS / "denoising.svg"
    assert picture.stat().st_size < 60_000
    assert len(ElementTree.parse(picture).getroot().findall(f"{SVG}g")) > 20

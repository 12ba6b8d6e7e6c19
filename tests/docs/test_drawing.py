"""The pictures: real steps in order, figures of the tables, files that browsers can read."""

import json
import runpy
import shlex
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig
from ssdlm.cli import parser

DOCS = Path(__file__).resolve().parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = {"length": 60, "grid": "staggered", "width": 20.0, "T": 8, "seed": 0}


@pytest.fixture(scope="module")
def draw():
    return runpy.run_path(str(DOCS / "draw_denoising.py"))


@pytest.fixture(scope="module")
def shots(draw):
    model = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(B=(30,), returns="w_0"))
    return list(draw["frames"](model, "the river", every=2, **OPTIONS)), model


def test_every_frame_is_a_step_and_the_last_is_the_text(shots):
    frames, model = shots
    assert [frame.caption for frame in frames] == [
        f"block {block}, {t} steps left" for block in (1, 2) for t in (6, 4, 2, 0)
    ]
    text = " ".join(("the river" + model.generate("the river", **OPTIONS).text).split("\n"))
    assert "".join(piece.text for piece in frames[-1].pieces) == text


def test_many_positions_settle_together(draw, shots):
    kinds = set("abc")
    most = max(sum(piece.kind in kinds for piece in frame.pieces) for frame in shots[0])
    assert most >= 20


def test_lines_keep_every_word_and_fit(draw, shots):
    for frame in shots[0]:
        lines = ["".join(piece.text for piece in line) for line in draw["wrapped"](frame.pieces)]
        whole = "".join(piece.text for piece in frame.pieces)
        assert "".join("".join(lines).split()) == "".join(whole.split())
        assert all(len(line) <= draw["COLUMNS"] or " " not in line for line in lines)


def test_the_picture_is_well_formed_and_shows_the_end_without_animation(draw, shots):
    root = ElementTree.fromstring(draw["drawing"](shots[0], "ssdlm generate"))
    groups = root.findall(f"{SVG}g")
    assert [group.get("class") for group in groups] == ["f f8"] * 7 + ["e e8"]


def test_the_committed_picture_is_small_and_tells_its_command(draw):
    picture = DOCS / "denoising.svg"
    assert picture.stat().st_size < 400_000
    root = ElementTree.parse(picture).getroot()
    assert len(root.findall(f"{SVG}g")) > 20
    told = root.findall(f"{SVG}text")[-1].text
    assert told == draw["command_of"](draw["PROMPT_TEXT"], draw["OPTIONS"])
    words = vars(parser().parse_args(shlex.split(told)[1:]))
    assert {name: words[name] for name in draw["OPTIONS"]} == draw["OPTIONS"]


FIGURES = json.loads((DOCS / "figures.json").read_text())


@pytest.mark.parametrize("name", FIGURES)
def test_labels_of_an_axis_do_not_overlap(name):
    figure = runpy.run_path(str(DOCS / "draw_results.py"))["draw"](FIGURES[name])
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert len(boxes) >= 4
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize("name", FIGURES)
def test_every_results_picture_is_on_a_page_and_has_its_legend(name):
    root = ElementTree.parse(DOCS / f"{name}.svg").getroot()
    letters = " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    for panel in FIGURES[name]["panels"]:
        assert panel["title"] in letters
        assert all(curve["name"] in letters for curve in panel["curves"])
    assert any(f"({name}.svg)" in page.read_text() for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", ["calls", "lambda-50"])
def test_the_figures_of_a_picture_are_those_of_its_table(name):
    cells = {cell.strip() for cell in (DOCS / "results.md").read_text().split("|")}
    for panel in FIGURES[name]["panels"]:
        for curve in panel["curves"]:
            assert {f"{y:.1f}" for y in curve["y"]} <= cells

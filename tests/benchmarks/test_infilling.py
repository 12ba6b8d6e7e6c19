"""The benchmark of gaps: what it takes out, how it fills it, what it prints."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from tests import tiny
from tests.evaluate.tiny_judge import save_judge

from ssdlm import SSDLM, DecodeConfig
from ssdlm.data.writer import is_held_out
from ssdlm.storage.jsonl import read_jsonl

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
STORY = ["The cat sat on the mat.", "It was a red mat.", "He ran off.", "No dog came.", "It is so."]


@pytest.fixture(scope="module")
def infilling():
    """The benchmark, imported as Python would run it."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("infilling")
    sys.path.remove(str(FOLDER))
    for name in ("infilling", "infilling_gaps", "infilling_judged"):
        sys.modules.pop(name)


@pytest.fixture(scope="module")
def done(infilling, tmp_path_factory):
    """A folder in which every stage has run, with a tiny model and a tiny judge."""
    folder = tmp_path_factory.mktemp("infilling")
    options = DecodeConfig(B=(6,), T=6, grid="sliding", width=1.0)
    SSDLM(tiny.block(), tiny.tokenizer(), options).save_pretrained(folder / "model")
    save_judge(folder / "judge")
    stories = [" ".join([*STORY[:2], f"He ran off{'a' * size}.", *STORY[3:]]) for size in range(3)]
    (folder / "five.json").write_text("".join(json.dumps([text]) + "\n" for text in stories))
    texts = [f"Not this one, which is number {number}. So. It is." for number in range(300)]
    held = [number for number in range(300) if is_held_out(number, 0.01)]
    for count, number in enumerate(held):
        texts[number] = " ".join(STORY[:2]) + f" We saw {'b' * count}. " + " ".join(STORY[3:])
    texts[held[0] + 1] = texts[held[0]]  # a copy that was trained on
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "one.jsonl").write_text("".join(lines[:100]))
    (folder / "two.jsonl").write_text("".join(lines[100:]))
    for words in (
        "prompts --stories five.json --reviews one.jsonl two.jsonl --model model --out gaps.jsonl",
        "write model gaps.jsonl --out out --device cpu",
        "judge out --judge judge --device cpu",
    ):
        run(infilling, folder, words.split())
    return folder


def run(infilling, folder, words):
    """Run one stage; names of files are those in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["infilling.py", *words])
        for module in (infilling, sys.modules["infilling_gaps"]):
            patch.setattr(module, "LENGTHS", range(10, 15))
        patch.setattr(infilling, "CANDIDATES", 3)
        patch.setattr(infilling, "FEW", 2)
        infilling.main()


def test_gaps_are_middle_sentences_of_what_was_held_out(done):
    rows = read_jsonl(done / "gaps.jsonl")
    assert [row["gold"] for row in rows[:3]] == [" He ran off.", " He ran offa.", " He ran offaa."]
    assert [row["gold"] for row in rows[3:]] == [" We saw b.", " We saw bb."]
    for row in rows:
        assert len(row["prompt"]) in (16, 20, 24, 28, 32) and len(row["suffix"]) in (16, 24)
        assert (row["prompt"] + row["gold"] + row["suffix"])[1:] in " ".join(STORY[:2]) + (
            row["gold"] + " " + " ".join(STORY[3:])
        )


def test_every_way_is_what_the_library_writes(done):
    model = SSDLM.from_pretrained(done / "model", device="cpu")
    for row in read_jsonl(done / "out" / "texts.jsonl")[::3]:
        fills, given = row["fills"], {"suffix": row["suffix"]}
        length = len(row["gold_tokens"])
        expected = {
            "infill": model.generate(row["prompt"], length=length, **given),
            "infill, best of 2": model.generate(row["prompt"], length=length, best_of=2, **given),
            "gap": model.generate(row["prompt"], gap=(10, 14), **given),
        }
        for name, text in expected.items():
            assert fills[name]["text"] == text.text.removesuffix(row["suffix"]), name
            passes = text.passes_per_token * len(text.tokens)
            assert fills[name]["passes"] == pytest.approx(passes), name
        chain = model.generate(row["prompt"], length=length, mode="autoregressive")
        assert fills["left to right"]["text"] == chain.text


def test_the_table_has_intervals_and_correlations(infilling, done, capsys):
    run(infilling, done, ["table", "out"])
    *lines, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    assert figures["stories, left to right"]["ratio"] == [1.0, 1.0, 1.0]
    for name in ("true sentence", "nothing", "infill", "left to right, best of 3", "gap"):
        figure, low, high = figures[f"reviews, {name}"]["right"]
        assert 0 < low <= figure <= high
    for name in ("gap", "gap, by the sum", "own sentence"):
        assert 10 <= figures[f"stories, {name}, lengths"]["length"] <= 14
    assert sum(line.startswith("| infill") for line in lines) == 4

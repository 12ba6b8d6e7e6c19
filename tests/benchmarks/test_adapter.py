"""What an adapter writes, in small: every row of the table, and what a row says."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests import causal

from ssdlm import SSDLM

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    """The benchmark, imported as Python would run it, with short texts."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("adapter")
    for name, value in {
        "PROMPT": 7,
        "LENGTH": 6,
        "GAPS": (4,),
        "SEEN": 4,
        "AFTER": 6,
        "B": 3,
        "WIDTHS": (1.0, 2.0),
        "STEPS": (2,),
    }.items():
        monkeypatch.setattr(module, name, value)
    yield module
    for name in ("adapter", "adapter_judges"):
        sys.modules.pop(name, None)


@pytest.fixture
def call(bench, monkeypatch, tmp_path):
    """How to run it; returns its rows by their names."""
    run = causal.save_adapted(tmp_path)
    texts = [{"text": "dog ran all day and saw one hen " * 5}] * 3
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts))

    def run_it(*args: str) -> dict:
        given = ["--model", str(run), "--texts", str(tmp_path / "held.jsonl"), "--prompts", "3"]
        given += ["--out", str(tmp_path / "rows.jsonl"), "--device", "cpu", *args]
        monkeypatch.setattr(sys, "argv", ["adapter.py", *given])
        bench.main()
        lines = (tmp_path / "rows.jsonl").read_text().splitlines()
        return {row.pop("name"): row for row in map(json.loads, lines)}

    return run_it


def test_every_way_to_write_has_a_row_and_one_position_costs_what_the_chain_does(call):
    rows = call()
    assert list(rows) == [
        "human text",
        "autoregressive",
        "window 1, 1 a token",
        "window 2, 1 a token",
        "window 2, 2 a token",
        "all 3, 2 steps",
    ]
    assert rows["human text"]["nll"] > rows["autoregressive"]["nll"]  # its weights are random
    assert rows["window 1, 1 a token"]["passes_per_token"] == 1
    assert rows["window 2, 2 a token"]["passes_per_token"] == 2
    assert len(rows["all 3, 2 steps"]["texts"]) == 3


def test_after_its_time_no_row_is_begun(call):
    assert list(call("--seconds", "0")) == ["human text"]


def test_a_token_that_ends_four_as_before_is_repeated(bench):
    assert bench.again([1, 2, 3, 4, 5, 1, 2, 3, 4, 5]) == [False] * 8 + [True] * 2


def test_gaps_are_filled_in_view_of_both_sides_and_from_the_left(call):
    rows = call("--gaps", "--beside", "builtin:mini")
    names = ["original", "builtin:mini", "from the left", "window 4", "all, 6 steps", "best of 4"]
    assert list(rows) == [f"gap 4, {name}" for name in names]
    original = rows["gap 4, original"]
    assert original["marred"] == 0 and original["by_file"] == [original["nll"]]
    assert rows["gap 4, window 4"]["texts"] != rows["gap 4, from the left"]["texts"]
    assert all(len(text) == 4 for text in rows["gap 4, all, 6 steps"]["texts"])
    cost = {name: rows[f"gap 4, {name}"]["nll"] for name in ("all, 6 steps", "best of 4")}
    assert cost["best of 4"] < cost["all, 6 steps"]


def test_judges_that_did_not_write(call, bench, capsys, monkeypatch, tmp_path):
    judges = importlib.import_module("adapter_judges")
    monkeypatch.setattr(judges, "load_encoder", lambda: None)
    monkeypatch.setattr(judges, "mauve", lambda mine, human, _: Mock(score=float(mine == human)))
    rows = call("--only", "autoregressive")
    capsys.readouterr()
    judges.main([str(tmp_path / "rows.jsonl"), "--files", "1", "--device", "cpu"])
    human, own = map(json.loads, capsys.readouterr().out.splitlines())
    assert human["mauve"] == 1 and own["mauve"] == 0
    mini, prompts = SSDLM.from_pretrained("builtin:mini"), rows["human text"]["prompts"]
    for row, told in zip(rows.values(), (human, own), strict=True):
        pairs = zip(row["texts"], prompts, strict=True)
        scores = [mini.score(text, prompt=prompt) for text, prompt in pairs]
        count = sum(len(one.known) for one in scores)
        expected = -sum(one.logprob for one in scores) / count
        assert told["mini_nll"] == [pytest.approx(expected)] * 2


def test_a_word_of_more_files_mars_no_gap(call, bench, capsys, tmp_path):
    rows = call("--gaps")
    judges, told = importlib.import_module("adapter_judges"), []
    written = " ".join(text for row in rows.values() for text in row.get("texts", ()))
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": written}) + "\n")
    for more in ([], [str(tmp_path / "more.jsonl")]):
        capsys.readouterr()
        files = ["--words", str(tmp_path / "held.jsonl"), *more]
        judges.main([str(tmp_path / "rows.jsonl"), *files])
        told.append([json.loads(line)["marred"] for line in capsys.readouterr().out.splitlines()])
    assert told[0] == [row["marred"] for row in rows.values()]
    assert sum(told[1]) <= sum(told[0]) and told[1][0] == 0


MARRED = {
    (" and a", " ran away"): False,
    (" and ra", " ran away"): True,  # no such word
    (" and ran", " ran away"): True,
    (" dog and", " ran away"): True,
    ("s and a.", " A ran"): True,  # dogs
    (" and a.", " A ran"): False,
}


@pytest.mark.parametrize("edges", MARRED)
def test_cut_and_doubled_words_mar_a_gap(bench, edges):
    words = {"we", "saw", "a", "dog", "and", "ran", "away"}
    assert bench.is_marred("we saw a dog", *edges, words) is MARRED[edges]

"""The control frontier, from a scorer's training to the report, in small."""

from __future__ import annotations

import importlib
import json
import lzma
import sys
from pathlib import Path

import pytest
from tests import tiny
from tests.evaluate.tiny_judge import save_judge

from ssdlm import SSDLM, DecodeConfig

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    """How to import a benchmark as Python would run it: from its own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("control", "frontier", "ngrams"):
        sys.modules.pop(name, None)


@pytest.fixture
def words(bench, tmp_path, monkeypatch):
    """A scorer that has learnt that good is good."""
    lines = [{"text": f"a {word} day " * 5, "label": label} for word, label in
             (("good", "pos"), ("bad", "neg"))] * 40  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "data.xz").write_bytes(lzma.compress(text.encode()))
    options = ["--out", str(tmp_path / "words.npz"), "--size", "1024", "--lr", "0.1"]
    monkeypatch.setattr(sys, "argv", ["ngrams.py", str(tmp_path / "data.xz"), *options])
    bench("ngrams").main()
    return tmp_path / "words.npz"


def test_n_grams_score_by_label(bench, words):
    positive, negative = (
        bench("ngrams").Ngrams.load(words, one) for one in ("positive", "negative")
    )
    texts = ["so good", "so bad", ""]
    for good, bad in zip(positive(texts), negative(texts), strict=True):
        assert good == -bad  # log-odds
    assert positive(texts)[0] > 0.2 > -0.2 > positive(texts)[1]


def test_arms_are_read_from_their_names(bench):
    control = bench("control")
    arm = control.Arm.parse("both,lam=3,n=16,lam2=2,w2=4")
    assert (arm.way, arm.lam, arm.n, arm.w) == ("both", 3.0, 16, 8.0)
    assert arm.targets() == [(a, b) for a in control.LABELS for b in control.TENSES]
    assert control.Arm.parse("plain").targets() == [("", "")]
    with pytest.raises(SystemExit, match="there is no m; use lam, n, w"):
        control.Arm.parse("both,m=3")
    assert all(control.Arm.parse(name).n <= 16 for name in control.ARMS)


def test_arms_are_written_read_and_reported(bench, words, tmp_path, capsys):
    options = DecodeConfig(length=4, B=(2,), T=2, grid="sliding", width=1.0, never_end=True)
    SSDLM(tiny.block(), tiny.tokenizer(), options).save_pretrained(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "the river"}\n{"prompt": "a day"}\n')
    judge = tiny.save_classifier(tmp_path / "judge", names=("negative", "positive"))
    tiny.tokenizer().save(judge)
    out = tmp_path / "out"
    control = bench("control")
    paths = ["--prompts", tmp_path / "prompts.jsonl", "--words", words, "--out", out]
    model = ["--model", tmp_path / "model", "--samples", "2", "--length", "3", "--device", "cpu"]
    arms = ["plain", "words,n=2,w=3", "best-words,n=2"]
    control.main([*map(str, ["write", *arms, *paths, *model])])
    lines = [json.loads(line) for line in (out / "words,n=2,w=3.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert {line["label"] for line in lines} == {"positive", "negative"}
    assert all(line["passes_per_token"] == 2 for line in lines)
    ppl = save_judge(tmp_path / "ppl")
    judges = ["--judge", f"outside={judge}", "--judge", "verbs=verbs", "--ppl", str(ppl)]
    control.main(["read", str(out), *judges, "--device", "cpu"])
    control.main(["report", str(out), "--draw", "outside"])
    report = json.loads((out / "report.json").read_text())
    assert report["plain"]["outside"][0] == 0.5
    assert report["plain"]["ratio"][0] == pytest.approx(1)
    assert report["best-words,n=2"]["passes"] == 2
    assert 0 <= report["words,n=2,w=3"]["outside"][0] <= 1
    assert (out / "frontier.svg").read_text().startswith("<?xml")
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"arms": 3}

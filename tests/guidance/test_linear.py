"""The linear judge."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from ssdlm.guidance import load_text_classifier
from ssdlm.guidance.linear import LinearJudge
from ssdlm.guidance.training import train_judge


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("linear")
    rows = [("a good fine day", "up"), ("a bad grim day", "down"), ("a calm still day", "flat")]
    lines = [{"text": f"{text} {n}", "label": label} for n in range(30) for text, label in rows]
    (root / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = train_judge(
        [root / "texts.jsonl"], out=root / "judge", is_linear=True, without=["fine"]
    )
    assert report.score.accuracy == 1.0
    again = train_judge(
        [root / "texts.jsonl"], out=root / "judge", is_linear=True, without=["fine"]
    )
    assert again.was_finished
    return root / "judge"


def test_a_linear_judge_is_stored_and_tells_labels_by_words(folder):
    judge = load_text_classifier(folder)
    assert isinstance(judge, LinearJudge)
    said = judge.log_probs(["it is good", "so bad", "", "fine"])
    assert [judge.labels[n] for n in said[:2].argmax(-1).tolist()] == ["up", "down"]
    assert said[2].tolist() == pytest.approx(said[3].tolist())  # `fine` is not seen
    assert judge.telling("up", 1) == ["good"]
    assert set(judge.telling("flat", 2)) == {"calm", "still"}
    rare = judge.idf.clone()
    rare[judge.rows["calm"]] += 9  # in one text of 24,000, so that its weight is chance
    assert replace(judge, idf=rare).telling("flat", 1) == ["still"]


def test_a_text_reads_alone_as_in_a_batch(folder):
    judge = load_text_classifier(folder)
    texts = ["a good day", "", "bad day here", "calm"]
    alone = [judge.log_probs([text])[0].tolist() for text in texts]
    for one, other in zip(alone, judge.log_probs(texts).tolist(), strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_a_linear_judge_that_is_not_whole_is_named(folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "grams.txt").write_text("day\n")
    with pytest.raises(ValueError, match="is not whole"):
        load_text_classifier(broken)

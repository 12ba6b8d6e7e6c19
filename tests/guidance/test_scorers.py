"""A scorer is any function of texts: asked once about each, within its time, and never silently
wrong."""

import math
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests import tiny

from ssdlm import SSDLM, Scorer, classifier_guide
from ssdlm.guidance.classifiers import load_text_classifier
from ssdlm.guidance.scorers import guide_scorer, log_odds, reads_texts


def lengths(texts):
    return [float(len(text)) for text in texts]


def test_each_text_is_scored_once():
    asked = []

    def score(texts):
        asked.append(list(texts))
        return lengths(texts)

    scorer = Scorer(score)
    assert scorer(["a", "bb", "a"]) == [1.0, 2.0, 1.0]
    assert scorer(["bb", "ccc"]) == [2.0, 3.0]
    assert asked == [["a", "bb"], ["ccc"]]
    assert (scorer.num_scored, scorer.num_recalled) == (3, 2)
    assert scorer.report().startswith("scorer score: 3 texts in 0.0")


def test_only_the_latest_texts_are_remembered(monkeypatch):
    monkeypatch.setattr("ssdlm.guidance.scorers.MOST_KNOWN", 2)
    scorer = Scorer(lengths)
    scorer(["a", "bb"])
    scorer(["a", "ccc"])
    assert set(scorer.known) == {"a", "ccc"}


@pytest.mark.parametrize(
    "numbers", [np.array, torch.tensor, tuple], ids=["numpy", "torch", "plain"]
)
def test_numbers_of_any_kind_will_do(numbers):
    assert Scorer(lambda texts: numbers([0.5 for _ in texts]))(["a", "b"]) == [0.5, 0.5]


def one_over_zero(texts):
    return [1 / 0 for _ in texts]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda texts: [math.nan] * len(texts), "returned nan; return log-scores"),
        (lambda texts: [10**400] * len(texts), "not a list of numbers"),
        (lambda texts: sys.exit(7), "raised SystemExit: 7"),
        (lambda texts: [math.inf] * len(texts), "returned inf; return log-scores"),
        (lambda texts: [0.0], "returned 1 scores for 2 texts; return one for each"),
        (lambda texts: None, "returned NoneType, not a list of numbers"),
        (lambda texts: ["good"] * len(texts), "not a list of numbers"),
        (one_over_zero, "raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_answer_is_named(answer, said):
    with pytest.raises(ValueError, match=f"^scorer readability .*{said}"):
        Scorer(answer, name="readability")(["a", "b"])


def test_what_must_not_be_is_minus_infinity():
    assert Scorer(lambda texts: [-math.inf for _ in texts])(["a"]) == [-math.inf]


def test_a_function_may_use_up_the_list_that_it_gets():
    assert Scorer(lambda texts: [float(len(texts.pop())) for _ in range(2)])(["a", "b"]) == [1, 1]


def test_one_that_hangs_is_given_up():
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"scorer sleep.* took more than 0\.1 s for 1 texts"):
        Scorer(lambda texts: time.sleep(5), name="sleepy", timeout=0.1)(["a"])
    assert time.monotonic() - started < 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight": -1.0}, "weight=-1.0 is out of range"),
        ({"timeout": math.inf}, "timeout=inf is out of range"),
        ({"timeout": 0.0}, "timeout=0.0 is out of range"),
        ({"reads": "half"}, "reads='half' is unknown"),
    ],
)
def test_settings_are_checked(settings, said):
    with pytest.raises(ValueError, match=said):
        Scorer(lengths, **settings)


def test_functions_are_told_apart_by_what_they_need():
    assert reads_texts(lengths)
    assert reads_texts(lambda texts, width=80: lengths(texts))
    assert reads_texts(Scorer(lengths))
    assert reads_texts(max) is False  # any number of arguments
    assert not reads_texts(lambda context, logits: logits.sum())
    assert not reads_texts("sentiment=positive")
    assert not reads_texts(torch.nn.Linear(2, 2))


def test_a_classifier_scores_texts_by_its_own_tokenizer(tmp_path):
    folder = tiny.save_classifier(tmp_path / "c", V=64)
    tiny.tokenizer().save(folder)
    texts = ["the river", "a movie", "no"]
    expected = load_text_classifier(folder).log_probs(texts)
    guide = classifier_guide(folder, "positive")
    scores = guide_scorer(guide, None, batch_size=2)(texts)
    p = expected[:, 2].exp()
    assert torch.allclose(torch.tensor(scores), (p / (1 - p)).log(), atol=1e-4)
    others = guide_scorer(classifier_guide(folder, "positive", avoid=True), None, batch_size=2)
    assert torch.allclose(torch.tensor(others(texts)), ((1 - p) / p).log(), atol=1e-4)


def test_odds_grow_where_probabilities_are_near_one_and_are_finite():
    sure = [log_odds(-(10.0**-digits)) for digits in (1, 2, 3, 4)]
    assert all(later - earlier > 2 for earlier, later in pairwise(sure))
    assert log_odds(0.0) == pytest.approx(log_odds(-1e-9)) == pytest.approx(13.8, abs=0.1)
    assert log_odds(-math.inf) == -math.inf
    assert log_odds(-300.0) == pytest.approx(-300.0)


def test_a_classifier_without_a_tokenizer_reads_no_texts(tmp_path):
    guide = classifier_guide(tiny.save_classifier(tmp_path / "c"), 0)
    with pytest.raises(ValueError, match="has no tokenizer to read texts with"):
        guide_scorer(guide, None, batch_size=1)
    assert len(guide_scorer(guide, tiny.tokenizer(), batch_size=1)(["a", "no"])) == 2


def test_a_scorer_is_a_function(unchecked):
    with pytest.raises(ValueError, match="'lengths' is no function; give one"):
        Scorer("lengths")


def test_a_scorer_has_no_gradient_to_fit():
    model = SSDLM(tiny.block(), tiny.tokenizer())
    with pytest.raises(ValueError, match="scorer brief reads texts, so it has no gradient"):
        model.fit(Scorer(lambda texts: [0.0] * len(texts), name="brief"))

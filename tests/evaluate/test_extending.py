"""A new metric: a function that a caller brings along, with its interval, report and table."""

import json

import numpy as np
import pytest

from ssdlm.evaluate import evaluate, show
from ssdlm.evaluate.diversity import PromptMean, mean_over_samples

ROWS = [
    {"prompt": "the cat", "text": " sat? sat?"},
    {"prompt": "the cat", "text": " ran away"},
    {"prompt": "a dog", "text": " ran and ran"},
    {"prompt": "a dog", "text": " ate? the hat"},
]
GOLD = [{"prompt": "a dog", "text": " sat by me"}, {"prompt": "the cat", "text": " who? the rat"}]


def questions(pools):
    """Return the share of samples with a question mark."""
    return mean_over_samples(pools, lambda sample: "?" in sample.text)


def shortest_minus_longest(pools):
    """Return the length of the shortest sample minus that of the longest, mean over prompts."""
    lengths = [[len(sample.text) for sample in pool.samples] for pool in pools]
    return PromptMean(np.array([min(row) - max(row) for row in lengths]), np.ones(len(pools)))


def test_a_metric_of_ones_own_is_reported_beside_the_others(tmp_path, capsys):
    own = {"questions": questions, "range": shortest_minus_longest}
    options = {"reference": GOLD, "metrics": ["dist"], "extra_metrics": own, "num_resamples": 50}
    report = evaluate(ROWS, out=tmp_path / "report.json", **options)
    assert report.metrics["questions"] == report.reference["questions"] == 0.5
    assert report.metrics["range"] == -1.0, "it may be negative"
    low, high = report.intervals["range"]
    assert low <= -1.0 <= high
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["metrics"]["questions"] == 0.5
    assert saved["settings"]["metrics"] == ["dist", "questions", "range"]
    show(report)
    assert "questions" in capsys.readouterr().out


def test_a_metric_of_ones_own_may_be_the_only_one():
    report = evaluate(ROWS, metrics=[], extra_metrics={"questions": questions}, num_resamples=10)
    assert list(report.metrics) == ["questions"]


def test_a_name_that_is_taken_is_refused():
    options = {"metrics": ["dist"], "extra_metrics": {"dist-1": questions}, "num_resamples": 10}
    with pytest.raises(ValueError, match="two metrics are called dist-1; give the extra one"):
        evaluate(ROWS, **options)

"""Results of a judge are kept for the same texts and the same judge, and for no others."""

import numpy as np
from tests.evaluate.tiny_judge import save_judge

from ssdlm.evaluate.cache import NO_CACHE, JudgeCache
from ssdlm.evaluate.judge import load_judge


def test_results_are_kept_for_the_same_texts_and_judge_alone(tmp_path):
    judge = load_judge(save_judge(tmp_path / "judge"), "cpu")
    cache = JudgeCache(tmp_path / "cache", is_writable=True)
    calls = []

    def compute():
        calls.append(len(calls))
        return {"nll": np.array([0.1, 2.0]), "count": np.array(len(calls))}

    first = cache.get("nats", judge, ["a", "b"], compute)
    again = cache.get("nats", judge, ["a", "b"], compute)
    assert len(calls) == 1 and (first["nll"] == again["nll"]).all()
    assert again["nll"].dtype == np.float64
    for what, texts in (("nats", ["ab"]), ("nats", ["b", "a"]), ("features", ["a", "b"])):
        cache.get(what, judge, texts, compute)
    assert len(calls) == 4
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_a_cache_that_is_not_writable_is_not_written(tmp_path):
    judge = load_judge(save_judge(tmp_path / "judge"), "cpu")
    for cache in (JudgeCache(tmp_path / "cache"), NO_CACHE):
        assert cache.get("nats", judge, ["a"], lambda: {"x": np.zeros(1)})["x"] == 0
    assert not (tmp_path / "cache").exists()

"""What judges found is kept for the same texts and the same judge, and for no others."""

import numpy as np
from tests.evaluate.tiny_judge import save_judge

from ssdlm.evaluate.cache import NOT_KEPT, Readings
from ssdlm.evaluate.judge import load_judge


def test_what_was_read_is_kept_for_the_same_texts_and_judge_alone(tmp_path):
    found = load_judge(save_judge(tmp_path / "judge"), "cpu")
    kept = Readings(tmp_path / "readings", is_growing=True)
    calls = []

    def read():
        calls.append(len(calls))
        return {"nll": np.array([0.1, 2.0]), "count": np.array(len(calls))}

    first = kept.of("nats", found, ["a", "b"], read)
    again = kept.of("nats", found, ["a", "b"], read)
    assert len(calls) == 1 and (first["nll"] == again["nll"]).all()
    assert again["nll"].dtype == np.float64
    for what, texts in (("nats", ["ab"]), ("nats", ["b", "a"]), ("features", ["a", "b"])):
        kept.of(what, found, texts, read)
    assert len(calls) == 4
    assert len(list((tmp_path / "readings").iterdir())) == 4


def test_readings_that_do_not_grow_are_not_written(tmp_path):
    found = load_judge(save_judge(tmp_path / "judge"), "cpu")
    for kept in (Readings(tmp_path / "readings"), NOT_KEPT):
        assert kept.of("nats", found, ["a"], lambda: {"x": np.zeros(1)})["x"] == 0
    assert not (tmp_path / "readings").exists()

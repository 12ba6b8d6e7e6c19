"""The learning rate over a run, and the clock that may end it."""

from __future__ import annotations

import itertools

import pytest

from ssdlm.config import TrainConfig
from ssdlm.settings import override
from ssdlm.train.learning_rate import Clock, lr_scale
from ssdlm.train.recipes import tiny


def test_the_learning_rate_rises_then_falls_as_named():
    base = override(tiny(), ["steps=100", "warmup=10", "cooldown=0.2"])

    def scales(schedule: str) -> list[float]:
        train = override(base, [f"schedule={schedule}"]).train
        return [lr_scale(step, train, steps=100) for step in range(100)]

    for schedule in ("constant", "linear", "cosine", "wsd"):
        rates = scales(schedule)
        assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
        assert max(rates) == 1.0
        assert all(b <= a for a, b in itertools.pairwise(rates[10:]))
    assert scales("constant")[-1] == 1.0
    assert scales("linear")[-1] == pytest.approx(1 / 90)
    assert scales("cosine")[55] == pytest.approx(0.5)
    assert scales("wsd")[80] == 1.0
    assert scales("wsd")[90] == pytest.approx(0.5)


def test_the_clock_estimates_the_last_step_from_the_speed_so_far():
    train = TrainConfig(steps=1000, seconds=20.0)
    clock = Clock().add(5, 10.0)
    assert clock.estimate_end(5, train).end == 10
    assert clock.add(1, 20.0).estimate_end(6, train).end == 6
    assert clock.estimate_end(5, TrainConfig(steps=8, seconds=20.0)).end == 8
    assert clock.estimate_end(5, TrainConfig()) == clock

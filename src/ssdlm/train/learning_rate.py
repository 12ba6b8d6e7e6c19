"""The learning rate over a run, and where a run ends that has a limit in seconds.

It falls towards the run's last step, so a run that the clock ends has to know in time which step
that will be.  config -> [learning_rate] -> run, loop
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ssdlm.config import TrainConfig


def lr_scale(step: int, train: TrainConfig, *, steps: int) -> float:
    """Return the learning rate of a step, counted from 0 of `steps`, as a share of its peak."""
    if step < train.warmup:
        return (step + 1) / train.warmup
    length = {
        "constant": 0,
        "linear": steps - train.warmup,
        "cosine": steps - train.warmup,
        "wsd": round(train.cooldown * steps),
    }[train.schedule]
    left = min(1.0, (steps - step) / length) if length > 0 else 1.0
    return (1 - math.cos(math.pi * left)) / 2 if train.schedule == "cosine" else left


@dataclass(frozen=True)
class Clock:
    """How long a run has trained, all its restarts together, and when it will end."""

    seconds: float = 0.0
    """Of training alone: without compiling, validations and checkpoints."""
    steps: int = 0
    """Optimiser steps taken in these seconds."""
    end: int = 0
    """The step after which `train.seconds` will be over; 0: unknown, or there is no such limit."""

    def add(self, steps: int, seconds: float) -> Clock:
        """Return the clock after some more steps."""
        return replace(self, seconds=self.seconds + seconds, steps=self.steps + steps)

    def estimate_end(self, step: int, train: TrainConfig) -> Clock:
        """Return the clock with the end that the speed so far leads to, seen from a step."""
        if train.seconds == 0 or self.seconds == 0:
            return self
        left = (train.seconds - self.seconds) * self.steps / self.seconds
        return replace(self, end=min(train.steps, step + max(0, round(left))))

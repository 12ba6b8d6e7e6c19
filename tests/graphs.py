"""Decode batches on a CPU as a GPU has them: what a graph would repeat is done anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssdlm import SSDLM
from ssdlm.denoiser.slots import Slots
from ssdlm.engine.batch import DecodeBatch


class Replayed:
    """What stands for a graph: the work itself."""

    def __init__(self, work: Any, gates: Any, stream: Any) -> None:
        del gates, stream
        self.replay = work


def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches take all slots, with a text or not, and read padded contexts by graphs."""
    made = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(DecodeBatch, "is_captured", made, raising=False)
    monkeypatch.setattr("ssdlm.engine.recording.recorded", Replayed)
    nowhere = SimpleNamespace(stream=None, graphs=[])
    monkeypatch.setattr("ssdlm.engine.recording.free_home", lambda: nowhere)
    monkeypatch.setattr("ssdlm.engine.batch.PREFILL_STEP", 8)


def choose_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, model: SSDLM, free: int = 1 << 30) -> None:
    """Let a model choose programs as if there were a GPU, with so many bytes free."""
    monkeypatch.setattr(model.engine.runners, "is_gpu", True)
    monkeypatch.setattr(Slots, "has_kernels", lambda network: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))

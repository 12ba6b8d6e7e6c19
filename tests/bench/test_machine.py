"""The clock, and what a machine can do at best."""

import torch

from ssdlm.bench.machine import (
    Measured,
    bandwidth,
    machine_name,
    matmul_peak,
    peak_memory,
    seconds_of,
)

CPU = torch.device("cpu")


def test_a_figure_is_a_median_with_its_spread():
    measured = Measured((3.0, 1.0, 2.0))
    assert (measured.median, measured.spread) == (2.0, [1.0, 3.0])


def test_work_is_timed_to_its_end():
    done = []
    assert seconds_of(lambda: done.append(torch.ones(2**20).sum()), CPU) > 0
    assert len(done) == 1


def test_a_machine_has_a_speed_a_memory_and_a_name(monkeypatch):
    monkeypatch.setattr("ssdlm.bench.machine.TRIES", 1)
    assert 1e8 < bandwidth(CPU, torch.float32) < 1e13
    assert 1e8 < matmul_peak(CPU, torch.float32) < 1e14
    assert peak_memory(CPU) > 2**24
    assert machine_name(CPU)


def test_memory_in_use_is_part_of_the_peak():
    before = peak_memory(CPU)
    held = torch.ones(2**22)
    assert peak_memory(CPU) >= max(before, held.nbytes)
    assert peak_memory(CPU) < 2**40

"""How a command starts: what it leaves alone, and how many threads it takes."""

import gc

import pytest
import torch
from tests import tiny

from ssdlm import DecodeConfig
from ssdlm.cli import starting


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """Nothing said by the user, and two threads; afterwards as many as there were."""
    before = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads(**options):
    starting.choose_threads(tiny.block(), DecodeConfig(**options))
    return torch.get_num_threads()


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"grid": "sliding", "width": 1.0}, 2),
        ({"grid": "sliding", "width": 3.0}, 4),
        ({"grid": "staggered", "B": (6,)}, 7),
        ({"mode": "autoregressive"}, 1),
        ({"mode": "speculative", "draft_nodes": 16}, 16),
    ],
)
def test_one_thread_does_passes_of_few_products(monkeypatch, options, most):
    weights = sum(weight.numel() for weight in tiny.block().parameters())
    monkeypatch.setattr(starting, "FEW_PRODUCTS", most * weights - 1)
    assert threads(**options) == 2
    monkeypatch.setattr(starting, "FEW_PRODUCTS", most * weights)
    assert threads(**options) == 1


def test_who_says_how_many_threads_gets_them(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads(grid="sliding", width=1.0) == 2
    with starting.one_thread():
        assert torch.get_num_threads() == 2


def test_an_encoder_and_a_guided_text_keep_all_threads():
    starting.choose_threads(tiny.encoder(), DecodeConfig())
    assert torch.get_num_threads() == 2
    assert threads(grid="sliding", width=1.0, control=("sentiment=positive",)) == 2


def test_a_model_is_opened_by_one_thread():
    with starting.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_garbage_is_collected_again_after_the_start():
    with starting.without_collecting():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with starting.without_collecting():
            pass
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()
        gc.unfreeze()

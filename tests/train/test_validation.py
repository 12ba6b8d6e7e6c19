"""The hold-out's figures."""

from __future__ import annotations

import math

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.train.validation import level_progress, measure, report

ROWS = torch.randint(tiny.V, (5, 24), generator=torch.manual_seed(0))
SEEDS = torch.arange(5) + 40


def block_denoiser() -> BlockDenoiser:
    torch.manual_seed(0)
    config = BlockConfig(V=tiny.V, D=16, num_layers=1, num_heads=2, B=6)
    return BlockDenoiser(config).eval().requires_grad_(False)


def test_an_untrained_model_is_worth_the_uniform_distribution():
    figures = report(measure(block_denoiser(), ROWS, SEEDS, points=12), bytes_per_token=1.0)
    assert figures["next_token"] == pytest.approx(math.log(tiny.V), rel=0.02)
    assert figures["bound"] == pytest.approx(math.log(tiny.V), rel=0.1)
    assert figures["bound_bits_per_byte"] == pytest.approx(figures["bound"] / math.log(2))
    assert figures["tokens"] == ROWS.numel()


def test_the_profile_rises_with_the_noise():
    figures = report(measure(block_denoiser(), ROWS, SEEDS, points=8), bytes_per_token=4.0)
    progress, losses = zip(*figures["profile"], strict=True)
    assert list(progress) == sorted(level_progress(8))
    assert losses[0] < 0.1
    assert losses[-1] == pytest.approx(math.log(tiny.V), rel=0.1)


@pytest.mark.parametrize("make", [block_denoiser, tiny.encoder])
def test_sums_over_parts_add_up_to_the_whole(make):
    denoiser = make()
    whole = measure(denoiser, ROWS, SEEDS, points=3)
    parts = sum(measure(denoiser, ROWS[i::2], SEEDS[i::2], points=3) for i in range(2))
    assert_close(whole, parts, roundings=NETWORK)


def test_no_rows_give_sums_of_zero():
    assert measure(block_denoiser(), ROWS[:0], SEEDS[:0], points=3).sum() == 0


def test_an_encoder_has_a_bound_and_no_next_token_loss():
    figures = report(measure(tiny.encoder(), ROWS, SEEDS, points=3), bytes_per_token=4.0)
    assert figures["bound"] > 0
    assert "next_token" not in figures
    assert figures["tokens"] == 5 * 6

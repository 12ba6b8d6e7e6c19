"""Fifty steps of a toy run, written down: whoever changes what training does will know.

The last digits depend on the machine's order of summation, so losses agree to 1e-4 of themselves,
not to the bit. After a change that is meant, write them anew and say so in CHANGELOG.md:

    python -m tests.test_golden
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ssdlm.diffusion.noise import mix
from ssdlm.train import configure
from ssdlm.train.examples import Examples
from ssdlm.train.initial_weights import build
from ssdlm.train.learning_rate import lr_scale
from ssdlm.train.optimizer import make_optimizer
from ssdlm.train.run import make_objective

GOLDEN = Path(__file__).parents[1] / "golden" / "toy_losses_cpu.txt"
V, LENGTH, BATCH, STEPS = 32, 24, 4, 50
SETTINGS = [f"V={V}", "D=16", "num_layers=2", "B=6", f"steps={STEPS}", f"max_len={LENGTH}"]
SETTINGS += ["optimizer=muon", "muon_lr=0.02", "lr=4e-3", "own_share=0.2", "ramp_share=0.4"]


def examples(step: int) -> Examples:
    """Four rows in which every token but the first follows from the one before, with a slip."""
    numbers = step * BATCH + torch.arange(BATCH)
    rows = (numbers.unsqueeze(1) * 7 + 3 * torch.arange(LENGTH)) % V
    rows[:, ::5] = (rows[:, ::5] + step) % V
    return Examples(rows, numbers + 1, torch.arange(BATCH), mix(0, step))


def toy_losses() -> list[float]:
    """Train the toy; return the loss of every step."""
    config = configure("tiny", SETTINGS)
    torch.manual_seed(0)
    denoiser = build(config.model)
    objective = make_objective(config, denoiser, torch.device("cpu"))
    optimizer = make_optimizer(denoiser, config.train)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * lr_scale(step, config.train, steps=STEPS)
        optimizer.zero_grad()
        loss = objective(objective.draw(examples(step))).total
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_fifty_steps_of_a_toy_give_the_losses_that_are_written_down():
    golden = [float(line) for line in GOLDEN.read_text().split()]
    assert toy_losses() == pytest.approx(golden, rel=1e-4)
    assert sum(golden[-10:]) < 0.9 * sum(golden[:10])


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{loss:.6f}\n" for loss in toy_losses()))

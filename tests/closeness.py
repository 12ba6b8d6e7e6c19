"""How close two ways of computing one thing come, whatever machine computes them.

Instruction sets add up in different orders, so floats of two code paths agree but for rounding.
What is promised to the last bit (a row alone and in a batch, a resumed run, a file read back) is
compared with torch.equal instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

FEW = 32
"""Roundings that may add up in a formula written in two ways."""
NETWORK = 512
"""Roundings that may add up on the way through a small network, or back."""


def assert_close(
    actual: Any, expected: Any, *, roundings: int = FEW, size: float | torch.Tensor | None = None
) -> None:
    """Assert that two results differ by no more than so many roundings of their largest value.

    `size` is that value where the results are what is left of larger ones, as differences are.
    Tuples are compared part by part. Python floats are read as float32, which networks compute in.
    """
    if isinstance(expected, Sequence) and not all(isinstance(x, int | float) for x in expected):
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, roundings=roundings, size=size)
        return
    actual, expected = as_tensor(actual), as_tensor(expected)
    eps = max(torch.finfo(x.dtype).eps for x in (actual, expected))
    finite = expected[expected.isfinite()].double()
    largest = finite.abs().max().item() if len(finite) else 0.0
    tolerance = roundings * eps * (largest if size is None else float(size))
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=0.0, atol=tolerance, check_device=False
    )


def as_tensor(values: Any) -> torch.Tensor:
    """Return a tensor without gradients; Python floats become float32."""
    if isinstance(values, torch.Tensor):
        return values.detach()
    if isinstance(values, float | Sequence):
        return torch.tensor(values, dtype=torch.float32)
    return torch.as_tensor(values)

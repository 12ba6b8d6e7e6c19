"""Widths that matrix units like: rows of 50,265 numbers are slow to multiply, of 50,304 are not.

What is added has no mass: its logits are minus infinity.  [padding] -> denoiser, engine, train
"""

from __future__ import annotations

import torch.nn.functional as F

from ssdlm.shapes import Tensor

MULTIPLE = 64


def padded(V: int) -> int:
    """Return the width that a V-wide row is given on a GPU."""
    return -(-V // MULTIPLE) * MULTIPLE


def pad_table(table: Tensor, width: int) -> Tensor:
    """Return a table (V, D) with rows of zeros up to `width`."""
    return F.pad(table, (0, 0, 0, width - len(table))) if width > len(table) else table


def pad_prior(prior: Tensor, width: int) -> Tensor:
    """Return logits (V,) with impossible tokens up to `width`."""
    return F.pad(prior, (0, width - len(prior)), value=float("-inf"))


def padded_head(head: Tensor, prior: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return output head and prior, padded to a width."""
    return pad_table(head, width), pad_prior(prior, width)

"""Fused paths for V-wide work, each beside the plain reference that it must agree with."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def row_kernels() -> Any:
    """Return the kernels for rows behind cached keys and values."""
    from ssdlm.denoiser.kernels import rows

    return rows


@cache
def product_kernels() -> Any:
    """Return the kernels for products of few rows."""
    from ssdlm.denoiser.kernels import products

    return products


@cache
def draw_kernels() -> Any:
    """Return the kernels that draw tokens."""
    from ssdlm.denoiser.kernels import draws

    return draws


@cache
def tree_kernels() -> Any:
    """Return the kernels for trees of guesses."""
    from ssdlm.denoiser.kernels import trees

    return trees


@cache
def encoder_kernels() -> Any:
    """Return the kernels of an encoder's layers."""
    from ssdlm.denoiser.kernels import encoder

    return encoder


@cache
def nudge_kernels() -> Any:
    """Return the kernels for what a guide adds to logits."""
    from ssdlm.denoiser.kernels import nudges

    return nudges


@cache
def guide_kernels() -> Any:
    """Return the kernels for classifiers of one layer."""
    from ssdlm.denoiser.kernels import guides

    return guides

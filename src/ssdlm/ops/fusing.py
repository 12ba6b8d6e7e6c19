"""When to fuse: compiled on a GPU, as written on a CPU, where compiling seldom pays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, compiled at its first call with a tensor on a GPU."""
    compiled = functools.cache(lambda: torch.compile(function, dynamic=False))

    @functools.wraps(function)
    def dispatch(first: torch.Tensor, *rest: Any) -> Any:
        # The tensor decides, not the machine: a CPU model may live beside a GPU.
        chosen = compiled() if first.is_cuda else function
        return chosen(first, *rest)

    return dispatch

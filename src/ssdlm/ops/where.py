"""Which body of an operation runs.  [where] -> the rest of ops"""

from __future__ import annotations

import functools
from importlib.util import find_spec

from ssdlm.shapes import Tensor


@functools.cache
def has_triton() -> bool:
    """Return whether kernels can be compiled, as they can where PyTorch came with CUDA."""
    return find_spec("triton") is not None


def on_gpu(x: Tensor) -> bool:
    """Tell whether an operation on a tensor is done by its Triton body."""
    return x.is_cuda and has_triton()

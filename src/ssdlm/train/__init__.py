"""From token stores to a trained model: `train(configure("mini"), data=[...], out=...)`.

loop -> run -> objective -> denoiser, with checkpoints, a log and validations on the way
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssdlm.train.loop import TrainReport, configure, train

__all__ = ["TrainReport", "configure", "train"]


def __getattr__(name: str) -> Any:
    # Lazily, so that the recipes can be read without loading torch.
    if name in __all__:
        from ssdlm.train import loop

        return getattr(loop, name)
    raise AttributeError(f"module 'ssdlm.train' has no attribute {name!r}")

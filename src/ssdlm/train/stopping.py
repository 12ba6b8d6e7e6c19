"""When training has gone wrong: a step that is skipped, a run that ends.  spikes, run -> loop"""

from __future__ import annotations

import math

from ssdlm.shapes import Tensor
from ssdlm.train.checkpoint_folders import find_newest
from ssdlm.train.run import Run


def is_usual(run: Run, norm: Tensor) -> bool:
    """Tell whether a gradient may move the weights; all processes see the same norm.

    To ask is to wait for a GPU, so nobody does unless `train.spike` is set.
    """
    factor = run.config.train.spike
    if factor == 0:
        return True
    value = float(norm)
    is_taken = run.spikes.allows(value, factor)
    run.spikes = run.spikes.after(value, is_taken=is_taken)
    if run.spikes.is_hopeless:
        reason = f"the gradient of {run.spikes.in_a_row} steps in a row is a spike (norm {value:g})"
        raise ValueError(f"{reason} at step {run.step + 1}; {how_to_go_on(run)}")
    return is_taken


def how_to_go_on(run: Run) -> str:
    """Return what to do where a run cannot: from its last good checkpoint, if there is one."""
    run.writing.wait()
    newest = find_newest(run.out)
    if newest is None:
        return "lower train.lr and use --fresh"
    return (
        f"the last good checkpoint is {newest}: start anew from it with init={newest} and less lr"
    )


def require_finite(run: Run, loss: float) -> None:
    """Raise where a loss is not finite, unless its step was skipped.

    Asked at every line of the log and before every checkpoint: none is written of such weights.
    """
    if not math.isfinite(loss) and run.spikes.in_a_row == 0:
        raise ValueError(f"the loss of step {run.step} is {loss}; {how_to_go_on(run)}")

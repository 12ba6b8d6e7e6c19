"""Watch a block settle out of noise: python examples/02_stream_steps.py [--tiny]

The window is wider than the built-in model's own, so that several words are open at a time.
"""

from __future__ import annotations

from typing import Any

from chosen_model import model_and_size

from ssdlm import SSDLM


def main(name: str, *, every: int, **options: Any) -> None:
    model = SSDLM.from_pretrained(name)
    for draft in model.stream("The movie was", seed=0, **options):
        if draft.t % every:
            continue
        # A step carries the block's tokens and noisy state, and the network's logits of the
        # open positions: left of them all is decided, right of them all is noise.
        at, trust = draft.step.window, draft.step.logits.softmax(-1).amax(-1).mean()
        where = f"block {draft.block} t={draft.t:4d} at {at.start:2d} to {at.stop - 1:2d}"
        print(f"{where} trust {trust:.2f} {draft.text!r}")


if __name__ == "__main__":
    with model_and_size(__doc__) as (name, is_tiny):
        options = {"length": 20, "B": 10, "T": 10} if is_tiny else {"length": 50, "T": 63}
        options |= {"grid": "staggered", "width": 8}
        main(name, every=2 if is_tiny else 6, **options)

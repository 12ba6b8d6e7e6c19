"""Watch a block settle out of noise: python examples/02_stream_steps.py [--tiny]"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tiny_model import tiny

from ssdlm import SSDLM


def main(name: str, *, every: int, **options: int) -> None:
    model = SSDLM.from_pretrained(name)
    for draft in model.stream("The movie was", seed=0, **options):
        if draft.t % every:
            continue
        # A step carries the block's tokens and noisy state, and what the network said of the
        # positions that it was about: left of them all is decided, right of them all is noise.
        at, trust = draft.step.window, draft.step.logits.softmax(-1).amax(-1).mean()
        where = f"block {draft.block} t={draft.t:4d} at {at.start:2d} to {at.stop - 1:2d}"
        print(f"{where} trust {trust:.2f} {draft.text!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin:mini", help="or a folder, or a Hub id")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model, no network")
    given = parser.parse_args()
    if given.tiny:
        with tempfile.TemporaryDirectory() as folder:
            main(tiny(Path(folder))[0], every=2, length=20, B=10, T=10)
    else:
        main(given.model, every=6, length=50)

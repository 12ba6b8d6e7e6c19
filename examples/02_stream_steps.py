"""Watch a block settle out of noise: python examples/02_stream_steps.py [--tiny]"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tiny_model import tiny

from ssdlm import SSDLM


def main(name: str, *, length: int, B: int, T: int) -> None:
    model = SSDLM.from_pretrained(name)
    before = None
    for draft in model.stream("The river had", length=length, B=B, T=T, top_p=0.95, seed=0):
        # A step carries all there is: the logits, their projection and the noisy state.
        trust = draft.step.logits.softmax(-1).amax(-1).mean()
        changed = B if before is None else int((draft.step.tokens != before).sum())
        before = None if draft.step.is_last else draft.step.tokens
        if draft.t % max(1, T // 10) == 0:
            print(
                f"block {draft.block} t={draft.t:4d} trust {trust:.2f} changed {changed:3d} ",
                end="",
            )
            print(repr(draft.text))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="xhan77/ssdlm", help="folder or Hub id")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model, no network")
    given = parser.parse_args()
    if given.tiny:
        with tempfile.TemporaryDirectory() as folder:
            main(tiny(Path(folder))[0], length=20, B=10, T=10)
    else:
        main(given.model, length=50, B=25, T=1000)

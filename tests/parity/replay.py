"""Replay a recorded run of the authors' decoder: python tests/parity/replay.py DIR

DIR holds a checkpoint in the released layout, a classifier, and trace.npz (see README.md here).
Everything is computed by the library; this file feeds it the recorded noise and compares.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ssdlm import SSDLM, classifier_guide, guided
from ssdlm.diffusion.grid import Uniform
from ssdlm.diffusion.projection import greedy, multi_hot, nucleus
from ssdlm.diffusion.sampler import Strategy, generate
from ssdlm.diffusion.simplex import to_logits


@dataclass(frozen=True)
class RecordedNoise:
    """The normals of a trace, in place of a random generator."""

    normals: torch.Tensor

    def normal(self, *, block: int, step: int, B: int, V: int, first: int = 0) -> torch.Tensor:
        return self.normals[block, step]

    def uniform(self, *, block: int, step: int, B: int) -> torch.Tensor:
        return torch.full(self.normals.shape[2:4], 0.5)  # nothing that is replayed reads it


@dataclass
class RecordedDraws:
    """The sampling projection with its draws taken from a trace; each must be in the nucleus."""

    draws: list[torch.Tensor]
    K: float
    top_p: float
    outside: int = field(default=0)

    def __call__(self, logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        ids = self.draws.pop(0)
        inside = nucleus(logits, self.top_p).gather(-1, ids.unsqueeze(-1))
        self.outside += int((~inside).sum())
        return to_logits(ids, V=logits.shape[-1], K=self.K)


def replay(folder: Path) -> dict[str, float | int]:
    """Return how far the library is from a trace, in logits and in tokens."""
    meta = json.loads((folder / "meta.json").read_text())
    trace = {key: torch.from_numpy(value) for key, value in np.load(folder / "trace.npz").items()}
    denoiser = SSDLM.from_pretrained(folder, device="cpu").denoiser
    K, top_p, lam = float(meta["K"]), float(meta["top_p"]), float(meta["control_lambda"])
    denoiser.K = K  # the released layout does not say; the library takes the paper's 5
    if lam > 0:
        guide = classifier_guide(
            folder / "classifier", meta["control_label"], sees="block", has_special_tokens=False
        )
        denoiser = guided(denoiser, guide.fit(V=denoiser.V), lam, reduction="mean")
    project = multi_hot(K, top_p) if meta["projection"] == "multi_hot" else greedy(K)
    draws = RecordedDraws([], K, top_p)
    if meta["projection"] == "sampling":
        project = draws = RecordedDraws(list(trace["sampled"].long().flatten(0, 1)), K, top_p)
    steps = generate(
        denoiser,
        trace["context"].long(),
        Strategy(Uniform(meta["T"]), project),
        blocks=[meta["B"]] * meta["blocks"],
        noise=RecordedNoise(trace["noise"].float()),
    )
    errors, tokens = [], []
    with torch.no_grad():
        for step in steps:
            recorded = trace["logits"][step.block, meta["T"] - 1 - step.t]
            errors.append((step.logits - recorded).abs().max())
            tokens += [step.tokens] if step.is_last else []
    wrong = int((torch.cat(tokens, 1) != trace["tokens"]).sum()) + draws.outside
    return {"max_abs_logit_error": torch.stack(errors).max().item(), "token_mismatches": wrong}


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python tests/parity/replay.py DIR", file=sys.stderr)
        return 2
    try:
        result = replay(Path(sys.argv[1]))
    except (ValueError, OSError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0 if result["max_abs_logit_error"] < 1e-3 and result["token_mismatches"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

"""The authors' loop as it is timed does what the authors' decoder did."""

import ast
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.closeness import NETWORK, assert_close

from ssdlm.bench import original
from ssdlm.storage.checkpoint import load_denoiser

PARITY = Path(__file__).parents[1] / "parity"
TRACES = sorted(path.parent for path in PARITY.glob("*/trace.npz"))


def replayed(folder: Path, meta: dict, trace: dict) -> list[original.OriginalStep]:
    """The steps of a recorded run, with its noise and, where tokens were drawn, its draws."""
    denoiser = load_denoiser(folder)
    parts = denoiser.backbone, denoiser.simplex_embed, denoiser.time_embed
    normals = iter(trace["noise"].float().flatten(0, 1))
    K, top_p, lam = float(meta["K"]), float(meta["top_p"]), float(meta["control_lambda"])
    project = partial(original.multi_hot, K=K, top_p=top_p)
    if meta["projection"] == "sampling":
        draws = iter(trace["sampled"].long().flatten(0, 1))
        project = partial(drawn, draws, K=K, top_p=top_p)
    steer = original.unsteered
    if lam:
        from transformers import AutoModelForSequenceClassification

        classifier = AutoModelForSequenceClassification.from_pretrained(folder / "classifier")
        classifier.eval().requires_grad_(False)
        steer = original.steered(classifier, label=meta["control_label"], lam=lam)
    return list(
        original.decode(
            original.OriginalNetwork(*parts),
            trace["context"].long(),
            project,
            T=meta["T"],
            B=meta["B"],
            num_blocks=meta["blocks"],
            K=K,
            draw=lambda shape: next(normals),
            steer=steer,
        )
    )


def drawn(draws, logits, *, K: float, top_p: float):
    """A recorded draw in place of a new one; it must be in the nucleus."""
    ids = next(draws)
    assert original.nucleus(logits, top_p).gather(-1, ids.unsqueeze(-1)).all()
    return original.one_hot(ids, logits, K=K)


@pytest.mark.parametrize("folder", TRACES, ids=lambda folder: folder.name)
def test_a_recorded_run_gives_its_tokens(folder):
    meta = json.loads((folder / "meta.json").read_text())
    trace = {key: torch.from_numpy(value) for key, value in np.load(folder / "trace.npz").items()}
    steps = replayed(folder, meta, trace)
    tokens = torch.cat([step.tokens for step in steps if step.t == 1], 1)
    assert torch.equal(tokens, trace["tokens"].long())
    logits = torch.stack([step.logits for step in steps]).view_as(trace["logits"])
    assert_close(logits, trace["logits"].float(), roundings=NETWORK)


def test_it_draws_one_token_per_position_from_the_nucleus():
    logits = torch.randn(2, 3, 50)
    w_hat = original.sampling(logits, K=5.0, top_p=0.3)
    ids = w_hat.argmax(-1, keepdim=True)
    assert w_hat.unique().tolist() == [-5.0, 5.0]
    assert (w_hat > 0).sum(-1).unique().tolist() == [1]
    assert original.nucleus(logits, 0.3).gather(-1, ids).all()


def test_it_imports_nothing_of_the_library():
    tree = ast.parse(Path(original.__file__).read_text())
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert {name.partition(".")[0] for name in names} <= {
        "__future__",
        "collections",
        "dataclasses",
        "math",
        "torch",
        "typing",
    }

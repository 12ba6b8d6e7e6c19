"""A second, plain reading of the authors' decoder: random folders like the recorded ones.

The loop is that of ssdlm/bench/original.py, which uses torch alone, so that the rest of the library
can be held against it at any size.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssdlm.bench import original


def record(folder: Path, *, seed: int, prefix: str = "", has_decoder: bool = True, **meta: Any):
    """Write a random model in the released layout, a classifier, and a run of the decoder."""
    torch.manual_seed(seed)
    V, D = meta["V"], meta["D"]
    model = network("RobertaForMaskedLM", V=V, D=D, positions=meta["positions"])
    classifier = network("RobertaForSequenceClassification", V=V, D=16, positions=meta["positions"])
    embed_sum, timestep = torch.nn.Linear(V, D, bias=False), torch.nn.Linear(1, D)
    classifier.save_pretrained(folder / "classifier")
    model.config.to_json_file(folder / "config.json", use_diff=False)
    weights = {k: v for k, v in model.state_dict().items() if has_decoder or "decoder" not in k}
    weights["roberta.embeddings.position_ids"] = torch.arange(meta["positions"])[None]
    for name, tensors in (
        ("pytorch_model.bin", weights),
        ("embed_sum_layer.pt", embed_sum.state_dict()),
        ("timestep_layer.pt", timestep.state_dict()),
    ):
        torch.save({prefix + key: value.clone() for key, value in tensors.items()}, folder / name)
    trace = decode(model, embed_sum, timestep, classifier, meta)
    np.savez(folder / "trace.npz", **{key: value.numpy() for key, value in trace.items()})
    (folder / "meta.json").write_text(json.dumps(meta))


def network(kind: str, *, V: int, D: int, positions: int) -> Any:
    """Return a random RoBERTa with a head of the given class."""
    import transformers

    config = transformers.RobertaConfig(
        vocab_size=V,
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * D,
        max_position_embeddings=positions,
        type_vocab_size=1,
        initializer_range=0.3,
        num_labels=3,
    )
    transformers.utils.logging.disable_progress_bar()
    return getattr(transformers, kind)(config).eval().requires_grad_(False)


def decode(model: Any, embed_sum: Any, timestep: Any, classifier: Any, meta: dict[str, Any]):
    """Return what the authors' decoder does, array by array."""
    N, B, T, K = meta["N"], meta["B"], meta["T"], meta["K"]
    noise = torch.randn(meta["blocks"], T + 1, N, B, meta["V"])
    start = torch.randint(meta["V"], (N, meta["C"]))
    normals = iter(noise.flatten(0, 1))
    lam, label = meta["control_lambda"], meta["control_label"]
    steps = list(
        original.decode(
            original.OriginalNetwork(model, embed_sum, timestep),
            start,
            partial(getattr(original, meta["projection"]), K=K, top_p=meta["top_p"]),
            T=T,
            B=B,
            num_blocks=meta["blocks"],
            K=K,
            draw=lambda shape: next(normals),
            steer=original.steered(classifier, label=label, lam=lam) if lam else original.unsteered,
        )
    )
    trace = {"logits": torch.stack([step.logits for step in steps])}
    if meta["projection"] == "sampling":
        trace["sampled"] = torch.stack([step.w_hat.argmax(-1) for step in steps])
    trace = {name: rows.unflatten(0, (meta["blocks"], T)) for name, rows in trace.items()}
    tokens = torch.cat([step.tokens for step in steps if step.t == 1], 1)
    return trace | {"context": start, "noise": noise, "tokens": tokens}

"""A second, plain reading of the authors' decoder: random folders like the recorded ones.

Written from the description of the traces (README.md here) with torch and transformers alone, so
that the library can be held against it at any size. Nothing here is imported from the library.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


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
    words, table = (m.get_input_embeddings().weight for m in (model, classifier))
    alpha_bar = torch.tensor([cosine(t / T) / cosine(0.0) for t in range(T + 1)])
    noise = torch.randn(meta["blocks"], T + 1, N, B, meta["V"])
    start = tokens = torch.randint(meta["V"], (N, meta["C"]))
    logits_of, sampled = [], []
    for block in range(meta["blocks"]):
        x, before = K * noise[block, 0], words[tokens]
        for i, t in enumerate(range(T, 0, -1)):
            with torch.no_grad():
                noisy = embed_sum(x.softmax(-1)) + timestep(torch.full((N, B, 1), t / T))
                logits = model(inputs_embeds=torch.cat((before, noisy), 1)).logits[:, -B:]
            if meta["control_lambda"]:
                logits = logits.requires_grad_()
                scores = classifier(inputs_embeds=logits.softmax(-1) @ table).logits
                goal = scores.log_softmax(-1)[:, meta["control_label"]].mean()
                (gradient,) = torch.autograd.grad(goal, logits)
                logits = (logits + meta["control_lambda"] * gradient).detach()
            chosen = nucleus(logits, meta["top_p"])
            if meta["projection"] == "sampling":
                sampled.append(logits.masked_fill(~chosen, -1e4).softmax(-1).flatten(0, 1))
                sampled[-1] = sampled[-1].multinomial(1).view(N, B)
                chosen = F.one_hot(sampled[-1], meta["V"]).bool()
            a = alpha_bar[t - 1]
            x = a.sqrt() * torch.where(chosen, K, -K) + (1 - a).sqrt() * K * noise[block, 1 + i]
            logits_of.append(logits)
        tokens = torch.cat((tokens, logits.argmax(-1)), 1)
    trace = {"context": start, "noise": noise, "tokens": tokens[:, meta["C"] :]}
    for name, steps in (("logits", logits_of), ("sampled", sampled)):
        if steps:
            trace[name] = torch.stack(steps).unflatten(0, (meta["blocks"], T))
    return trace


def cosine(progress: float) -> float:
    return math.cos((progress + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    values, ids = logits.sort(-1, descending=True)
    below = values.softmax(-1).cumsum(-1) < top_p
    kept = torch.cat((torch.ones_like(below[..., :1]), below[..., :-1]), -1)
    return torch.zeros_like(kept).scatter(-1, ids, kept)

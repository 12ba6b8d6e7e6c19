"""How far each weight moves at each step: groups of weights, and the learning rate over time.

optim -> [updates] -> train
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from ssdlm.config import TrainConfig
from ssdlm.train.optimizer import MuonAdamW, group_parameters

UNDECAYED = ("bias", "LayerNorm.weight")
"""The authors' rule goes by name, so RoBERTa's `lm_head.layer_norm.weight` is decayed."""


def optimizer_of(module: nn.Module, train: TrainConfig) -> MuonAdamW:
    """Return the optimiser a run asks for; each group keeps its peak learning rate as `peak`."""
    if train.decay_rule == "authors":
        groups = author_groups(module, lr=train.lr, weight_decay=train.weight_decay)
    else:
        matrix_lr = train.muon_lr if train.optimizer == "muon" else 0.0
        groups = group_parameters(
            module, lr=train.lr, matrix_lr=matrix_lr, weight_decay=train.weight_decay
        )
    peaked = [group | {"peak": group["lr"]} for group in groups]
    return MuonAdamW(peaked, betas=(train.beta1, train.beta2), eps=train.eps)


def author_groups(module: nn.Module, *, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Sort weights as the authors do: by name, and W_time is not decayed."""
    decayed, kept = [], []
    for name, weight in module.named_parameters():
        is_kept = name.startswith("time_embed.") or any(part in name for part in UNDECAYED)
        (kept if is_kept else decayed).append(weight)
    shared = {"lr": lr, "has_muon": False}
    return [
        {"params": decayed, "weight_decay": weight_decay, **shared},
        {"params": kept, "weight_decay": 0.0, **shared},
    ]


def lr_scale(step: int, train: TrainConfig, *, warmup: int) -> float:
    """Return the learning rate of a step, counted from 0, as a share of its peak."""
    if step < warmup:
        return (step + 1) / warmup
    length = {
        "constant": 0,
        "linear": train.steps - warmup,
        "cosine": train.steps - warmup,
        "wsd": round(train.cooldown * train.steps),
    }[train.schedule]
    left = min(1.0, (train.steps - step) / length) if length > 0 else 1.0
    if train.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return train.lr_end + (1 - train.lr_end) * left

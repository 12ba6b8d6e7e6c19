"""The optimiser: AdamW for tables and vectors, Muon for matrices, and the weights' moving average.

Muon replaces a matrix's momentum by the nearest orthogonal matrix, so that every direction moves
alike (Jordan et al. 2024).  [optimizer] -> run
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

from ssdlm.config import TrainConfig
from ssdlm.shapes import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic that drives all singular values towards 1 in five steps."""
WORD_TABLES = ("words", "simplex_embed")
WORD_GAIN = 3.0
UNDECAYED = ("bias", "LayerNorm.weight")
"""The authors' rule goes by name, so RoBERTa's `lm_head.layer_norm.weight` is decayed."""


def make_optimizer(module: nn.Module, train: TrainConfig) -> MuonAdamW:
    """Return the optimiser of a run; each group keeps its peak learning rate as `peak`."""
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
    """Return the authors' two groups of weights, decayed and not, by name; W_time is not."""
    decayed, kept = [], []
    for name, weight in module.named_parameters():
        is_kept = name.startswith("time_embed.") or any(part in name for part in UNDECAYED)
        (kept if is_kept else decayed).append(weight)
    shared = {"lr": lr, "has_muon": False}
    return [
        {"params": decayed, "weight_decay": weight_decay, **shared},
        {"params": kept, "weight_decay": 0.0, **shared},
    ]


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return the nearest (semi-)orthogonal matrices, roughly; works on the last two dimensions."""
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


def group_parameters(
    module: nn.Module, *, lr: float, matrix_lr: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Return four groups of weights: matrices from width to width, word tables, others, vectors.

    Beside Muon, word tables move `WORD_GAIN` times as fast, for their entries are of size 1, and
    only the matrices are decayed. With matrix_lr = 0 all of it is AdamW at one rate, and all but
    the vectors is decayed.
    """
    matrices, words, others, vectors = [], [], [], []
    for name, weight in module.named_parameters():
        is_matrix = "layers." in name or weight.shape[-1] == weight.shape[0]
        is_word = name.rpartition(".")[2] in WORD_TABLES
        group = matrices if is_matrix else words if is_word else others
        (group if weight.dim() >= 2 else vectors).append(weight)
    has_muon = matrix_lr > 0
    decay = 0.0 if has_muon else weight_decay
    matrix = {"lr": matrix_lr if has_muon else lr, "has_muon": has_muon}
    word_lr = lr * WORD_GAIN if has_muon else lr
    return [
        {"params": matrices, "weight_decay": weight_decay, **matrix},
        {"params": words, "weight_decay": decay, "lr": word_lr, "has_muon": False},
        {"params": others, "weight_decay": decay, "lr": lr, "has_muon": False},
        {"params": vectors, "weight_decay": 0.0, "lr": lr, "has_muon": False},
    ]


class MuonAdamW(torch.optim.Optimizer):
    """Muon for groups with `has_muon`, AdamW for the others, in one optimiser with one state."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        momentum: float = 0.95,
        eps: float = 1e-10,
    ) -> None:
        defaults = {
            "lr": 1e-3,
            "weight_decay": 0.0,
            "has_muon": False,
            "betas": betas,
            "momentum": momentum,
            "eps": eps,
        }
        kept = [group for group in groups if group["params"]]
        super().__init__(kept, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every weight that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                (self.step_muon if group["has_muon"] else self.step_adamw)(weights, group)
        return loss

    def step_muon(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Move matrices along their orthogonalized Nesterov momentum, equal shapes together."""
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in weights:
            by_shape.setdefault(weight.shape, []).append(weight)
        for shape, alike in by_shape.items():
            scale = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
            # A matrix in shards is whole in every process meanwhile: those go one by one.
            size = 1 if hasattr(alike[0], "full_tensor") else len(alike)
            for members in (alike[i : i + size] for i in range(0, len(alike), size)):
                moves = orthogonalized(torch.stack(self.nesterov(members, group)))
                torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(members, list(moves.to(members[0].dtype)), alpha=-scale)

    def nesterov(self, weights: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return gradients that look one step ahead of their running means, which it updates."""
        grads = [gradient(weight) for weight in weights]
        means = [self.slot(weight, "momentum") for weight in weights]
        torch._foreach_lerp_(means, grads, 1 - group["momentum"])
        ahead = [grad.clone() for grad in grads]  # torch 2.11 shards the form in place alone
        torch._foreach_lerp_(ahead, means, group["momentum"])
        return ahead

    def step_adamw(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Move weights by Adam with decoupled decay (Loshchilov & Hutter)."""
        beta1, beta2 = group["betas"]
        group["steps"] = count = group.get("steps", 0) + 1
        first, second = ([self.slot(w, name) for w in weights] for name in ("first", "second"))
        adamw(
            weights,
            [gradient(weight) for weight in weights],
            first,
            second,
            max_exp_avg_sqs=[],
            state_steps=[torch.tensor(count - 1.0) for _ in weights],
            foreach=True,  # one by one, hundreds of small weights would keep a GPU waiting
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def slot(self, weight: Tensor, name: str) -> Tensor:
        """Return one of a weight's running means, which is zero before the first step."""
        state = self.state[weight]
        if name not in state:
            state[name] = torch.zeros_like(weight)
        return state[name]


def gradient(weight: Tensor) -> Tensor:
    """Return the gradient of a weight that has one."""
    assert weight.grad is not None
    return weight.grad


class Ema:
    """A moving average of a module's weights and buffers, in float32."""

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.mean = {name: value.detach().clone() for name, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move the mean towards the module's weights, faster in the first steps."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        alike: dict[type, list[tuple[Tensor, Tensor]]] = {}
        for name, value in module.state_dict().items():
            alike.setdefault(type(value), []).append((self.mean[name], value))
        # Sharded weights and whole buffers are of different types, which no foreach call mixes.
        for pairs in alike.values():
            means, values = (list(side) for side in zip(*pairs, strict=True))
            torch._foreach_lerp_(means, values, 1 - decay)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Copy the mean weights into a module of the same shape."""
        module.load_state_dict(self.mean)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        return {"steps": self.steps, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.steps = int(state["steps"])
        for name, value in state["mean"].items():
            self.mean[name].copy_(value)

"""Rows behind what their texts have read: the operations of a layer.

[rows] -> denoiser.slots;  the Triton bodies are in `ops.kernels.rows` and `ops.kernels.products`

A row is *invariant* where, on a GPU, it is the same to the bit whatever goes through beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.ops.rotary import rotate
from ssdlm.ops.where import has_triton, on_gpu
from ssdlm.shapes import Tensor

ROW_TILE = 16
"""Rows that a program of attention takes: the least that matrix units do."""
OWN_TILE = 32
"""Rows of its own that a listed tile has."""


@dataclass(frozen=True)
class Rows:
    """How R rows stand behind a slot: where, counted from its end, and what they see."""

    offsets: Tensor
    """(R,) positions for the rotary embedding, from the slot's length on."""
    sees: Tensor
    """(R, R) whether a row sees another; all see the slot."""
    is_sparse: bool = False
    """Whether a row sees few of the others, so that it pays to list them."""

    @cached_property
    def listed(self) -> Tensor:
        """(R, 1 + R) how many rows each row sees, and which, in their order."""
        return counted(self.sees)

    @cached_property
    def tiles(self) -> Tensor | None:
        """For each tile of rows how many tiles of others any of them sees, and which."""
        if not self.is_sparse:
            return None
        R = len(self.sees)
        whole = F.pad(self.sees, (0, -R % OWN_TILE, 0, -R % ROW_TILE))
        tiled = whole.unflatten(0, (-1, ROW_TILE)).unflatten(2, (-1, OWN_TILE))
        return counted(tiled.any(3).any(1))

    @classmethod
    def window(cls, width: int, device: torch.device) -> Rows:
        """Return one decided token, and an open window behind it that sees both ways."""
        sees = torch.ones(width + 1, width + 1, dtype=torch.bool, device=device)
        sees[0, 1:] = False
        return cls(F.pad(torch.arange(width, device=device), (1, 0)), sees)

    @classmethod
    def causal(cls, count: int, device: torch.device) -> Rows:
        """Return tokens that follow each other."""
        sees = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        return cls(torch.arange(count, device=device), sees)


class Behind(NamedTuple):
    """Rows of some texts, and where they go: behind the first tokens of a slot each."""

    rows: Rows
    slots: Tensor
    """(N,) the slot of each text."""
    lengths: Tensor
    """(N,) how much of it they see."""


def counted(is_seen: Tensor) -> Tensor:
    """Return for each row of a table how many entries are true, and which, those first."""
    order = is_seen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return torch.cat((is_seen.sum(1, keepdim=True), order), 1).int().contiguous()


def has_row_kernels(device: torch.device, head_size: int) -> bool:
    """Tell whether rows of heads of such a size have Triton bodies where they are."""
    is_power = head_size & (head_size - 1) == 0
    return device.type == "cuda" and has_triton() and head_size >= ROW_TILE and is_power


def norm(x: Tensor) -> Tensor:
    """Return x over its root mean square, summed in float32."""
    if on_gpu(x):
        from ssdlm.ops.kernels import rows as kernels

        return kernels.norm(x)
    return plain_norm(x)


def plain_norm(x: Tensor) -> Tensor:
    """Return the same by operations that have a gradient."""
    return (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def product(x: Tensor, weight: Tensor, *, is_invariant: bool = False) -> Tensor:
    """Return x @ weight.T."""
    if is_invariant and on_gpu(x):
        from ssdlm.ops.kernels import products as kernels

        return kernels.invariant_product(x, weight)
    return F.linear(x, weight)


def normed_product(
    x: Tensor, weight: Tensor, *, is_squared: bool = False, is_invariant: bool = False
) -> Tensor:
    """Return norm(x) (M, K) @ weight.T, or the square of what is positive of it."""
    if on_gpu(x):
        from ssdlm.ops.kernels import products, rows

        if is_invariant or products.takes_normed(*x.shape, is_squared=is_squared):
            plan = products.INVARIANT if is_invariant else None
            return products.normed_product(x, weight, is_squared=is_squared, plan=plan)
        found = F.linear(rows.norm(x), weight)
        return rows.relu_squared_(found) if is_squared else found
    found = F.linear(norm(x), weight)
    return F.relu(found).square() if is_squared else found


def add_product_(x: Tensor, other: Tensor, weight: Tensor, *, is_invariant: bool = False) -> Tensor:
    """Return x + other (M, K) @ weight.T, in x's own place."""
    if on_gpu(x):
        from ssdlm.ops.kernels import products as kernels

        if is_invariant or kernels.takes_added(*other.shape):
            plan = kernels.INVARIANT if is_invariant else None
            return kernels.add_product_(x, other, weight, plan=plan)
        return x.addmm_(other, weight.t())
    return x.add_(F.linear(other, weight))


def place_and_attend(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Behind,
    rotary: Tensor,
    *,
    is_invariant: bool = False,
) -> Tensor:
    """Return what rows (N, R, 3, H, d) read of their slots and of each other.

    Queries and keys are normed and rotated, by the angles (S, 2, d) of their places. Keys and
    values are put behind those of the slots, (slots, H, S, d).
    """
    if on_gpu(qkv):
        from ssdlm.ops.kernels import rows as kernels

        attend = kernels.place_and_attend_alone if is_invariant else kernels.place_and_attend
        return attend(qkv, keys, values, at.lengths, at.slots, at.rows, rotary)
    (rows, slots, lengths), S = at, keys.shape[2]
    query, key, value = qkv.unbind(2)
    # Each text's own angles: (2, N, R, 1, d).
    angles = rotary[lengths.unsqueeze(1) + rows.offsets].movedim(2, 0).unsqueeze(3)
    query, key = rotate(norm(query), angles), rotate(norm(key), angles)
    home = lengths.unsqueeze(1) + torch.arange(qkv.shape[1], device=qkv.device)
    keys[slots.unsqueeze(1), :, home] = key
    values[slots.unsqueeze(1), :, home] = value
    mask = seen_of_slots(rows, lengths, S).unsqueeze(1)
    seen = F.scaled_dot_product_attention(
        query.transpose(1, 2), keys[slots], values[slots], attn_mask=mask
    )
    return seen.transpose(1, 2)


def seen_of_slots(rows: Rows, lengths: Tensor, S: int) -> Tensor:
    """Return what rows see of their slots, (N, R, S): all that was there, and some of them."""
    place, R = torch.arange(S, device=lengths.device), len(rows.offsets)
    own = place - lengths.unsqueeze(1)  # counted from the slot's end
    is_row = (own >= 0) & (own < R)
    among = rows.sees[:, own.clamp(0, R - 1)].transpose(0, 1) & is_row.unsqueeze(1)
    return among | (own < 0).unsqueeze(1)

"""Rows behind what their texts have read: the operations of a layer.

[rows] -> denoiser.slots;  the Triton bodies are in `ops.kernels.rows` and `ops.kernels.products`

Rows are *batch-invariant* where each is the same to the bit whatever goes through beside it. On a
CPU they always are, on a GPU where that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.ops.rotary import rotate
from ssdlm.ops.where import has_triton, on_gpu
from ssdlm.shapes import Tensor

ROW_TILE = 16
"""Rows that a program of attention takes: the least that matrix units do."""
FEWEST_ROWS = 2
"""Rows of a product on a CPU at least: a single one is summed in another order."""
MOST_ROWS = 64
"""Rows of a product on a CPU at most, unless one text has more; beyond them nothing is gained."""
TRIED_ROWS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 31, 32, 33, 48, 63, 64)
"""Numbers of rows for which it is tried whether a product is batch-invariant."""
LINE = 64
"""Bytes to whose multiples new tensors are aligned on a CPU."""


@dataclass(frozen=True)
class Rows:
    """How R rows stand behind a slot: where, counted from its end, and what they see."""

    offsets: Tensor
    """(R,) positions for the rotary embedding, from the slot's length on."""
    sees: Tensor
    """(R, R) whether a row sees another; all see the slot."""
    num_noisy: int = 0
    """How many of them, the last ones, are open positions; the others are words."""

    @cached_property
    def sees_all(self) -> bool:
        """Whether every row sees every other."""
        return bool(self.sees.all())

    @cached_property
    def listed(self) -> Tensor:
        """(R, 1 + R) how many rows each row sees, and which, in their order."""
        return counted(self.sees)

    @classmethod
    def window(cls, width: int, device: torch.device, *, sees_word: bool = True) -> Rows:
        """Return one decided token, and an open window behind it that sees both ways."""
        sees = torch.ones(width + 1, width + 1, dtype=torch.bool, device=device)
        sees[0, 1:], sees[1:, 0] = False, sees_word
        offsets = F.pad(torch.arange(width, device=device), (1, 0))
        return cls(offsets, sees, num_noisy=width)

    @classmethod
    def causal(cls, count: int, device: torch.device) -> Rows:
        """Return tokens that follow each other."""
        sees = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        return cls(torch.arange(count, device=device), sees)

    @classmethod
    def block(cls, num_words: int, width: int, device: torch.device, *, first: int) -> Rows:
        """Return tokens that follow each other, and an open block that sees both ways and all of
        them, its rows standing from the offset `first` on."""
        sees = torch.ones(num_words + width, num_words + width, dtype=torch.bool, device=device)
        sees[:num_words].tril_()
        offsets = torch.arange(num_words), first + torch.arange(width)
        return cls(torch.cat(offsets).to(device), sees, num_noisy=width)

    def after(self, count: int) -> Rows:
        """Return these rows behind tokens that follow each other, in the same pass."""
        device, R = self.sees.device, len(self.sees)
        sees = torch.ones(count + R, count + R, dtype=torch.bool, device=device).tril()
        sees[count:, count:] = self.sees
        offsets = torch.cat((torch.arange(count, device=device), count + self.offsets))
        return Rows(offsets, sees, num_noisy=self.num_noisy)


class Behind(NamedTuple):
    """Rows of some texts, and where they go: behind the first tokens of a slot each."""

    rows: Rows
    slots: Tensor
    """(N,) the slot of each text."""
    lengths: Tensor
    """(N,) how much of it they see."""
    counts: Tensor | None = None
    """(N,) how many rows each text has, where some have fewer: nobody sees those after them."""


def counted(is_seen: Tensor) -> Tensor:
    """Return for each row of a table how many entries are true, and which, those first."""
    order = is_seen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return torch.cat((is_seen.sum(1, keepdim=True), order), 1).int().contiguous()


def has_row_kernels(device: torch.device, head_size: int) -> bool:
    """Tell whether rows of heads of such a size have Triton bodies where they are."""
    return device.type == "cuda" and has_triton() and fits_kernels(head_size)


def fits_kernels(head_size: int) -> bool:
    """Tell whether kernels of attention take heads of such a size."""
    return head_size >= ROW_TILE and head_size & (head_size - 1) == 0


def norm(x: Tensor) -> Tensor:
    """Return x over its root mean square, summed in float32."""
    if on_gpu(x):
        from ssdlm.ops.kernels import rows as kernels

        return kernels.norm(x)
    return plain_norm(x)


def plain_norm(x: Tensor) -> Tensor:
    """Return the same by operations that have a gradient."""
    return (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def weighted_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x over its root mean square, times a weight for each of its last dimension."""
    return F.rms_norm(x, weight.shape, weight, eps)


class HeadNorms(NamedTuple):
    """How queries and keys are normed."""

    eps: float = 1e-6
    weights: Tensor | None = None
    """(2, d): those of queries, and those of keys."""

    def apply(self, x: Tensor, number: int) -> Tensor:
        """Return queries (0) or keys (1), normed."""
        return norm(x) if self.weights is None else weighted_norm(x, self.weights[number], self.eps)


def product(
    x: Tensor, weight: Tensor, *, is_invariant: bool = False, is_single: bool = False
) -> Tensor:
    """Return x (N, R, D) @ weight.T.

    Of a pass with a single row each, texts are multiplied one by one on a CPU: that is the quickest
    for one of them.
    """
    if not on_gpu(x):
        return ragged_product(x, weight, is_single=is_single)
    from ssdlm.ops.kernels import products as kernels

    if is_invariant:
        return kernels.product(x, weight, plan=kernels.INVARIANT)
    if len(weight) <= kernels.MOST_COLUMNS and kernels.is_quick(x.flatten(0, 1), len(weight)):
        return kernels.product(x, weight)
    return F.linear(x, weight)


def ragged_product(x: Tensor, weight: Tensor, *, is_single: bool) -> Tensor:
    """Return x (N, R, D) @ weight.T on a CPU, each text's rows the same to the bit in any company.

    A library chooses its order of summation by the number of rows. Where the machine's products
    depend on it, every text is multiplied alone.
    """
    N, R, _ = x.shape
    size, flat = max(1, MOST_ROWS // R), aligned(x.flatten(0, 1))
    if N > 1 and (is_single or not is_row_invariant(weight)):
        size = 1
    if size < N:
        parts = [ragged_product(some, weight, is_single=is_single) for some in x.split(size)]
        return torch.cat(parts)
    if N * R < FEWEST_ROWS and not is_single:  # taken twice, for alone it would be another
        return F.linear(torch.cat((flat, flat)), weight)[:1].view(N, R, -1)
    return F.linear(flat, weight).view(N, R, -1)


def aligned(x: Tensor) -> Tensor:
    """Return rows as new ones lie in memory: a library may sum others in another order."""
    return x.clone() if x.data_ptr() % LINE else x


def is_row_invariant(weight: Tensor) -> bool:
    """Tell whether each row of a product with a matrix is the same to the bit among any others."""
    facts = tuple(weight.shape), weight.stride(), weight.dtype
    return tried_row_invariance(*facts, torch.get_num_threads())


@cache
def tried_row_invariance(
    shape: tuple[int, int], stride: tuple[int, ...], dtype: torch.dtype, num_threads: int
) -> bool:
    """Try it out, with random numbers."""
    del num_threads  # which the library looks at
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator).to(dtype)
    weight = torch.empty_strided(shape, stride, dtype=dtype).copy_(values)
    x = torch.randn(MOST_ROWS, shape[1], generator=generator).to(dtype)
    pairs = torch.cat([F.linear(aligned(pair), weight) for pair in x.split(FEWEST_ROWS)])
    return all(torch.equal(F.linear(x[:num], weight), pairs[:num]) for num in TRIED_ROWS)


class LowRank(NamedTuple):
    """A matrix up @ down that is added to another, for the last rows of each text."""

    down: Tensor
    """(rank, I)."""
    up: Tensor
    """(O, rank)."""
    num_rows: int

    def add_(self, found: Tensor, x: Tensor) -> Tensor:
        """Return what rows x (N, R, I) get by the other matrix, with its own share put in."""
        inner = product(x[:, -self.num_rows :], self.down)
        found[:, -self.num_rows :].add_(product(inner, self.up))
        return found


def normed_product(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None = None,
    more: LowRank | None = None,
    /,
    *,
    eps: float = 1e-6,
    is_squared: bool = False,
    is_gated: bool = False,
    is_invariant: bool = False,
    is_single: bool = False,
) -> Tensor:
    """Return norm(x) (N, R, D) @ weight.T; `scale` (D,) are weights of the norm.

    What is positive of it is squared, if that is asked for; or its first half gates the second.
    """
    if not on_gpu(x):
        normed = norm(x) if scale is None else weighted_norm(x, scale, eps)
        found = ragged_product(normed, weight, is_single=is_single)
        return activated(more.add_(found, normed) if more else found, is_squared, is_gated)
    from ssdlm.ops.kernels import products, rows

    flat, is_active = x.flatten(0, 1), is_squared or is_gated
    takes_normed = is_invariant or products.takes_normed(flat, len(weight), is_squared=is_active)
    if more is None and takes_normed:
        plan = products.INVARIANT if is_invariant else None
        how = {"eps": eps, "is_squared": is_squared, "is_gated": is_gated, "plan": plan}
        return products.normed_product(flat, weight, scale, **how).unflatten(0, x.shape[:2])
    normed = rows.norm(flat) if scale is None else weighted_norm(flat, scale, eps)
    found = F.linear(normed, weight).unflatten(0, x.shape[:2])
    found = more.add_(found, normed.view_as(x)) if more else found
    return rows.relu_squared_(found) if is_squared else activated(found, False, is_gated)


def activated(x: Tensor, is_squared: bool, is_gated: bool) -> Tensor:
    """Return the square of what is positive, or the second half gated by the first, or x."""
    if is_squared:
        return F.relu(x).square()
    if not is_gated:
        return x
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def add_product_(
    x: Tensor,
    other: Tensor,
    weight: Tensor,
    more: LowRank | None = None,
    /,
    *,
    is_invariant: bool = False,
    is_single: bool = False,
) -> Tensor:
    """Return x + other (N, R, D) @ weight.T, in x's own place."""
    if more is not None:
        more.add_(x, other)
    if on_gpu(x):
        from ssdlm.ops.kernels import products as kernels

        flat, rows = x.flatten(0, 1), other.flatten(0, 1)
        if is_invariant or kernels.is_quick(rows, len(weight)):
            plan = kernels.INVARIANT if is_invariant else None
            return kernels.add_product_(flat, rows, weight, plan=plan).view_as(x)
        return flat.addmm_(rows, weight.t()).view_as(x)
    return x.add_(ragged_product(other, weight, is_single=is_single))


def place_and_attend(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Behind,
    rotary: Tensor,
    norms: HeadNorms | None,
    *,
    is_invariant: bool = False,
) -> Tensor:
    """Return what rows (N, R, H + 2 H', d) read of their slots and of each other, (N, R, H, d).

    Queries and keys are normed and rotated, by the angles (S, 2, d) of their places. Keys and
    values are put behind those of the slots, (slots, H', S, d); H / H' queries share each.
    """
    if on_gpu(qkv) and fits_kernels(qkv.shape[-1]):
        from ssdlm.ops.kernels import rows as kernels

        given = qkv, keys, values, at.lengths, at.slots, at.rows, rotary, norms
        if is_invariant:
            return kernels.place_and_attend_alone(*given)
        return kernels.place_and_attend(*given, at.counts)
    KV = keys.shape[1]
    heads = qkv.shape[2] - 2 * KV, KV
    both, value = qkv.split((sum(heads), KV), 2)
    if norms is not None and norms.weights is None:
        both = norm(both)
    elif norms is not None:
        both = torch.cat([norms.apply(x, which) for which, x in enumerate(both.split(heads, 2))], 2)
    # Each text's own angles: (2, N, R, 1, d).
    angles = rotary[at.lengths.unsqueeze(1) + at.rows.offsets].movedim(2, 0).unsqueeze(3)
    query, key = rotate(both, angles).split(heads, 2)
    return attend_behind(query, key, value, keys, values, at)


def attend_behind(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, at: Behind
) -> Tensor:
    """Put keys and values behind those of the slots, and return what queries read of both."""
    rows, (R, H) = at.rows, query.shape[1:3]
    groups, seen = H // key.shape[2], torch.empty_like(query)
    counts = [R] * len(seen) if at.counts is None else at.counts.tolist()
    places = zip(at.slots.tolist(), at.lengths.tolist(), counts, strict=True)
    for text, (slot, length, count) in enumerate(places):
        keys[slot, :, length : length + R] = key[text].transpose(0, 1)
        values[slot, :, length : length + R] = value[text].transpose(0, 1)
        own_keys, own_values = (one[slot, :, : length + count] for one in (keys, values))
        sees = rows.sees[:, :count]
        mask = None if rows.sees_all else F.pad(sees, (length, 0), value=True)
        # The heads of a group are rows of one head: (1, H', groups * R, d).
        grouped = query[text].transpose(0, 1).reshape(1, H // groups, groups * R, -1)
        found = F.scaled_dot_product_attention(
            grouped,
            own_keys.unsqueeze(0),
            own_values.unsqueeze(0),
            attn_mask=mask if mask is None or groups == 1 else mask.repeat(groups, 1),
        )
        seen[text] = found.reshape(H, R, -1).transpose(0, 1)
    return seen

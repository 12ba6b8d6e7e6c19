"""A network over many texts of different lengths: what each has read lies in a slot of its own.

block -> [slots] -> engine.lanes

Rows of a text go through the layers behind what its slot holds, and see of each other what a table
says. Decoding left to right, a sliding window and a tree of guesses are three such tables. Every
shape is fixed and nothing is looked at on the way, so that a GPU can repeat a pass as one graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.denoiser.attention import attend, rotate, rotation
from ssdlm.denoiser.kernels import product_kernels, row_kernels
from ssdlm.denoiser.layer import Layer, norm, update
from ssdlm.denoiser.network import BlockNetwork
from ssdlm.diffusion.noise import has_triton
from ssdlm.shapes import Tensor


def normed_product(
    x: Tensor, weight: Tensor, *, is_squared: bool = False, is_invariant: bool = False
) -> Tensor:
    """Return norm(x) @ weight.T, or the square of what is positive of it, on a GPU."""
    if is_invariant:
        plan = product_kernels().INVARIANT
        return product_kernels().normed_product(x, weight, is_squared=is_squared, plan=plan)
    if product_kernels().takes_normed(*x.shape, is_squared=is_squared):
        return product_kernels().normed_product(x, weight, is_squared=is_squared)
    product = F.linear(row_kernels().norm(x), weight)
    return row_kernels().relu_squared_(product) if is_squared else product


def add_product_(x: Tensor, other: Tensor, weight: Tensor, *, is_invariant: bool = False) -> Tensor:
    """Return x + other @ weight.T, in x's own place, on a GPU."""
    if is_invariant:
        return product_kernels().add_product_(x, other, weight, plan=product_kernels().INVARIANT)
    if product_kernels().takes_added(*other.shape):
        return product_kernels().add_product_(x, other, weight)
    return x.addmm_(other, weight.t())


@dataclass(frozen=True)
class Rows:
    """How R rows stand behind a slot: where, counted from its end, and what they see."""

    offsets: Tensor
    """(R,) positions for the rotary embedding, from the slot's length on."""
    sees: Tensor
    """(R, R) whether a row sees another; all see the slot."""
    tiles: Tensor | None = None
    """Where few do, which tiles of rows are seen at all (`kernels.rows.seen_tiles`)."""

    @cached_property
    def listed(self) -> Tensor:
        """(R, 1 + R) how many rows each row sees, and which, in their order."""
        order = self.sees.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        return torch.cat((self.sees.sum(1, keepdim=True), order), 1).int().contiguous()

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


class Slots:
    """Keys and values of N texts, each up to `capacity` tokens, and the network that reads them."""

    def __init__(
        self,
        network: BlockNetwork,
        num_slots: int,
        capacity: int,
        *,
        is_invariant: bool = False,
    ) -> None:
        config, self.network = network.config, network
        self.H, self.d = config.num_heads, config.D // config.num_heads
        self.capacity = capacity
        at = {"device": network.device, "dtype": network.dtype}
        shape = (config.num_layers, 2, num_slots, self.H, capacity, self.d)
        self.keys_values = torch.zeros(shape, **at)
        self.lengths = torch.zeros(num_slots, dtype=torch.int64, device=network.device)
        places = torch.arange(capacity, device=network.device)
        self.rotary = rotation(places, self.d).squeeze(2).transpose(0, 1).contiguous()
        self.all_slots = torch.arange(num_slots, device=network.device)
        self.is_fast = self.has_kernels(network)
        self.is_invariant = is_invariant and self.is_fast
        """Whether a row on a GPU is to be the same to the bit whatever goes through beside it."""

    @staticmethod
    def has_kernels(network: BlockNetwork) -> bool:
        """Tell whether there are kernels for a network where it is."""
        if network.device.type != "cuda" or not has_triton():
            return False
        return row_kernels().fits(network.config.D // network.config.num_heads)

    @staticmethod
    def num_bytes(network: BlockNetwork, capacity: int) -> int:
        """Return what one slot takes."""
        config = network.config
        return 2 * config.num_layers * config.D * capacity * network.words.element_size()

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        """Return what the head (D, V) says of rows."""
        if self.is_invariant:
            return product_kernels().invariant_product(hidden, head.T)
        return hidden @ head

    def run(self, x: Tensor, at: Behind, read: slice = slice(None)) -> Tensor:
        """Return the output (N, R', D) of the rows `read`; keys and values of all are stored.

        They lie behind the slot's length, which stays as it is: who knows how many of them are
        there to stay changes it, and the next pass writes over the others.
        """
        run_layer = self.fast_layer if self.is_fast else self.plain_layer
        layers = self.network.transformer_layers()
        for number, layer in enumerate(layers):
            # Past the last layer nobody looks at the other rows.
            x = run_layer(layer, x, number, at, read if layer is layers[-1] else slice(None))
        if not self.is_fast:
            return norm(x)
        return row_kernels().norm(x)

    def fast_layer(self, layer: Layer, x: Tensor, number: int, at: Behind, read: slice) -> Tensor:
        """Return the same as `plain_layer`, by few launches; x is written over."""
        (N, R, D), (keys, values) = x.shape, self.keys_values[number]
        x, how = x.view(-1, D), {"is_invariant": self.is_invariant}
        qkv = normed_product(x, layer.qkv.flatten(0, 1), **how).view(N, R, 3, self.H, self.d)
        where = keys, values, at.lengths, at.slots
        kernels = row_kernels()
        attend = kernels.place_and_attend_alone if self.is_invariant else kernels.place_and_attend
        attended = attend(qkv, *where, at.rows, self.rotary).view(-1, D)
        if read != slice(None):
            x, attended = (part.view(N, R, D)[:, read].contiguous() for part in (x, attended))
            x, attended = x.view(-1, D), attended.view(-1, D)
        x = add_product_(x, attended, layer.out, **how)
        up = normed_product(x, layer.up, is_squared=True, **how)
        return add_product_(x, up, layer.down, **how).view(N, -1, D)

    def plain_layer(self, layer: Layer, x: Tensor, number: int, at: Behind, read: slice) -> Tensor:
        """Return the rows after a layer; their keys and values are put behind the slots'."""
        (keys, values), (rows, slots, lengths) = self.keys_values[number], at
        together = F.linear(norm(x), layer.qkv.flatten(0, 1)).unflatten(-1, (3, self.H, -1))
        query, key, value = together.unbind(2)
        # Each text's own angles: (2, N, R, 1, d).
        angles = self.rotary[lengths.unsqueeze(1) + rows.offsets].movedim(2, 0).unsqueeze(3)
        query, key = rotate(norm(query), angles), rotate(norm(key), angles)
        home = lengths.unsqueeze(1) + torch.arange(x.shape[1], device=x.device)
        keys[slots.unsqueeze(1), :, home] = key
        values[slots.unsqueeze(1), :, home] = value
        mask = self.plain_mask(rows, lengths)[:, read]
        query, x = query[:, read], x[:, read]
        seen = attend(query.transpose(1, 2), keys[slots], values[slots], mask.unsqueeze(1))
        return update(x, seen, layer.out, layer.up, layer.down)

    def plain_mask(self, rows: Rows, lengths: Tensor) -> Tensor:
        """Return what rows see of their slots, (N, R, S): all that was there, and some of them."""
        place, R = torch.arange(self.capacity, device=lengths.device), len(rows.offsets)
        own = place - lengths.unsqueeze(1)  # counted from the slot's end
        is_row = (own >= 0) & (own < R)
        among = rows.sees[:, own.clamp(0, R - 1)].transpose(0, 1) & is_row.unsqueeze(1)
        return among | (own < 0).unsqueeze(1)

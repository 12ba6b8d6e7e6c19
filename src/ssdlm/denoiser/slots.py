"""A network over many texts of different lengths: what each has read lies in a slot of its own.

ops.rows, words -> [slots] -> denoiser.network, denoiser.llama, engine.batch

Rows of a text go through the layers behind what its slot holds, and see of each other what a table
says. Decoding left to right, a sliding window and a chain of guesses are three such tables. Every
shape is fixed and nothing is looked at on the way, so that a GPU can repeat a pass as one graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeGuard

import torch
from torch import nn

from ssdlm.denoiser import plain_products
from ssdlm.denoiser.words import WordReader
from ssdlm.ops.rows import (
    Behind,
    HeadNorms,
    LowRank,
    Rows,
    add_product_,
    has_row_kernels,
    normed_product,
    place_and_attend,
    product,
)
from ssdlm.shapes import Block, Tensor

NOTHING: Mapping[str, LowRank] = {}


class SlotLayer(nn.Module):
    """A pre-norm layer for rows behind slots: attention, and a feed-forward part."""

    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor
    attention_norm: Tensor | None
    """Weights of the norm before attention, if it has some; `mlp_norm` are those behind it."""
    mlp_norm: Tensor | None
    qkv_bias: Tensor | None
    out_bias: Tensor | None
    eps = 1e-6
    """What norms add to a mean square."""
    is_gated = False
    """Whether one half of what is inside gates the other; else what is positive is squared."""
    head_size: int

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = self.mlp_norm = self.qkv_bias = self.out_bias = None

    def head_norms(self) -> HeadNorms | None:
        """Return how queries and keys are normed, if they are."""
        return HeadNorms(self.eps)

    def read(
        self,
        x: Tensor,
        keys_values: Tensor,
        at: Behind,
        rotary: Tensor,
        read: slice,
        how: dict[str, bool],
        more: Mapping[str, LowRank] = NOTHING,
    ) -> Tensor:
        """Return the rows `read` after this layer; keys and values of all go behind the slots'.

        `more` is added to its matrices, by their names.
        """
        (keys, values), exact = keys_values, how["is_invariant"]
        normed = {"eps": self.eps, **how}
        weight = self.qkv.flatten(0, -2)
        qkv = normed_product(x, weight, self.attention_norm, more.get("qkv"), **normed)
        qkv = qkv if self.qkv_bias is None else qkv + self.qkv_bias
        heads = qkv.unflatten(-1, (-1, self.head_size))
        attended = place_and_attend(
            heads, keys, values, at, rotary, self.head_norms(), is_invariant=exact
        ).flatten(2)
        if read != slice(None):
            x, attended = x[:, read].contiguous(), attended[:, read].contiguous()
        x = add_product_(x, attended, self.out, more.get("out"), **how)
        x = x if self.out_bias is None else x + self.out_bias
        inside = {"is_gated": self.is_gated, "is_squared": not self.is_gated, **normed}
        up = normed_product(x, self.up, self.mlp_norm, more.get("up"), **inside)
        return add_product_(x, up, self.down, more.get("down"), **how)


class Network(WordReader):
    """What goes through slots: layers that read rows behind keys and values."""

    head: Any
    """(V, D)."""
    is_shifted = True
    """Whether an open row starts from the word before it, at that word's place."""
    is_exact = False
    """Whether a word's row says all of the position after it where nothing further has evidence.

    Open rows, which start from that word, then do not see its row."""

    @property
    def dtype(self) -> torch.dtype:
        raise NotImplementedError

    @property
    def key_shape(self) -> tuple[int, int]:
        """How many heads the keys of a token have, and how wide they are."""
        raise NotImplementedError

    def row_layers(self) -> Sequence[Any]:
        """Return the layers as rows go through them, each with `read`."""
        return self.transformer_layers()

    def rotary(self, positions: Tensor) -> Tensor:
        """Return cosines and sines (2, S, 1, d) of positions (S,)."""
        raise NotImplementedError

    def last_norm(self, x: Tensor) -> Tensor:
        """Return what the head reads of rows that have gone through the layers."""
        raise NotImplementedError

    @property
    def prior(self) -> Tensor:
        """What is added to what the head says of each token, (V,)."""
        raise NotImplementedError

    def embed(self, tokens: Block) -> Tensor:
        raise NotImplementedError

    def run_words(self, tokens: Block, past: Tensor | None, num_read: int) -> tuple[Tensor, Tensor]:
        rows = Rows.causal(tokens.shape[1], self.device)
        return self.read(self.embed(tokens), past, rows, slice(tokens.shape[1] - num_read, None))

    @torch.no_grad()
    def read(
        self, x: Tensor, past: Tensor | None, rows: Rows, read: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of the rows `read` behind what texts have read, and what is kept.

        That is keys and values as slots have them, (layers, 2, N, heads, S, d). The rows go
        through slots that are made for them, so `past` stays as it is; x is written over.
        """
        (N, R, _), C = x.shape, 0 if past is None else past.shape[4]
        slots = Slots(self, N, C + R)
        if past is not None:
            slots.keys_values[..., :C, :] = past
        hidden = slots.read(x, Behind(rows, slots.all_slots, slots.lengths + C), read)
        logits = slots.logits(hidden, self.head.to(hidden.dtype), is_single=R == 1)
        return logits.float().add_(self.prior), slots.keys_values


class Slots:
    """Keys and values of N texts, each up to `capacity` tokens, and the network that reads them."""

    def __init__(
        self,
        network: Network,
        num_slots: int,
        capacity: int,
        *,
        is_invariant: bool = False,
    ) -> None:
        self.network, (heads, self.d) = network, network.key_shape
        self.capacity, self.layers = capacity, network.row_layers()
        self.keys_values = self.room((len(self.layers), 2, num_slots, heads, capacity, self.d))
        self.lengths = torch.zeros(num_slots, dtype=torch.int64, device=network.device)
        self.rotary = self.angles()
        self.all_slots = torch.arange(num_slots, device=network.device)
        self.is_invariant = is_invariant
        """Whether a row on a GPU is to be the same to the bit whatever goes through beside it."""

    def room(self, shape: Sequence[int]) -> Tensor:
        """Return a table for keys and values; on a CPU what nobody has written takes no memory."""
        device, dtype = self.network.device, self.network.dtype
        # Zeros are written at once; kernels want them, which multiply what nobody reads by nothing.
        make = torch.empty if device.type == "cpu" else torch.zeros
        return make(shape, device=device, dtype=dtype)

    def angles(self) -> Tensor:
        """Return the rotation (capacity, 2, d) of each place."""
        places = torch.arange(self.capacity, device=self.network.device)
        return self.network.rotary(places).squeeze(2).transpose(0, 1).contiguous()

    @staticmethod
    def takes(denoiser: Any) -> TypeGuard[Network]:
        """Tell whether a network's rows can be read here: not if it is of the paper's form."""
        is_known = isinstance(denoiser, Network) and denoiser.is_shifted
        return is_known and denoiser.has_evidence and not denoiser.has_memory

    @staticmethod
    def has_kernels(network: Network) -> bool:
        """Tell whether there are kernels for a network where it is."""
        return has_row_kernels(network.device, network.key_shape[1])

    @staticmethod
    def num_bytes(network: Network, capacity: int) -> int:
        """Return what one slot takes."""
        each = 2 * len(network.transformer_layers()) * prod(network.key_shape)
        return each * capacity * network.dtype.itemsize

    def read(self, x: Tensor, at: Behind, read: slice = slice(None)) -> Tensor:
        """Return the output (N, R', D) of the rows `read`; keys and values of all are stored.

        They lie behind the slot's length, which stays as it is: who knows how many of them are
        there to stay changes it, and the next pass writes over the others. x is written over.
        """
        how = {"is_invariant": self.is_invariant, "is_single": x.shape[1] == 1}
        with plain_products():
            for number, layer in enumerate(self.layers):
                # Past the last layer nobody looks at the other rows.
                own = read if layer is self.layers[-1] else slice(None)
                x = layer.read(x, self.keys_values[number], at, self.rotary, own, how)
        return self.network.last_norm(x)

    def logits(self, hidden: Tensor, head: Tensor, *, is_single: bool = False) -> Tensor:
        """Return what the head (V, D) says of rows; `is_single` as their pass was."""
        with plain_products():
            return product(hidden, head, is_invariant=self.is_invariant, is_single=is_single)

    def copy(self, source: int, target: int, length: int) -> None:
        """Put what one slot has read, so many tokens, into another."""
        read = self.keys_values[:, :, source, :, :length]
        self.keys_values[:, :, target, :, :length].copy_(read)

    def grow(self, capacity: int) -> None:
        """Make room for so many tokens in each slot, at least; not where a graph knows the old."""
        if capacity > self.capacity:
            self.capacity = capacity = max(capacity, 2 * self.capacity)
            old = self.keys_values
            self.keys_values = self.room((*old.shape[:4], capacity, self.d))
            for slot, length in enumerate(self.lengths.tolist()):  # no memory for what is empty
                self.keys_values[:, :, slot, :, :length] = old[:, :, slot, :, :length]
            self.rotary = self.angles()

"""A network over many texts of different lengths: what each has read lies in a slot of its own.

ops.rows -> [slots] -> engine.lanes

Rows of a text go through the layers behind what its slot holds, and see of each other what a table
says. Decoding left to right, a sliding window and a tree of guesses are three such tables. Every
shape is fixed and nothing is looked at on the way, so that a GPU can repeat a pass as one graph.
"""

from __future__ import annotations

import torch

from ssdlm.denoiser.layer import Layer
from ssdlm.denoiser.network import BlockNetwork
from ssdlm.ops.rotary import rotation
from ssdlm.ops.rows import (
    Behind,
    add_product_,
    has_row_kernels,
    norm,
    normed_product,
    place_and_attend,
    product,
)
from ssdlm.shapes import Tensor


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
        self.rotary = self.angles()
        self.all_slots = torch.arange(num_slots, device=network.device)
        self.is_invariant = is_invariant
        """Whether a row on a GPU is to be the same to the bit whatever goes through beside it."""

    def angles(self) -> Tensor:
        """Return the rotation (capacity, 2, d) of each place."""
        places = torch.arange(self.capacity, device=self.network.device)
        return rotation(places, self.d).squeeze(2).transpose(0, 1).contiguous()

    @staticmethod
    def has_kernels(network: BlockNetwork) -> bool:
        """Tell whether there are kernels for a network where it is."""
        return has_row_kernels(network.device, network.config.D // network.config.num_heads)

    @staticmethod
    def num_bytes(network: BlockNetwork, capacity: int) -> int:
        """Return what one slot takes."""
        config = network.config
        return 2 * config.num_layers * config.D * capacity * network.words.element_size()

    def read(self, x: Tensor, at: Behind, read: slice = slice(None)) -> Tensor:
        """Return the output (N, R', D) of the rows `read`; keys and values of all are stored.

        They lie behind the slot's length, which stays as it is: who knows how many of them are
        there to stay changes it, and the next pass writes over the others. x is written over.
        """
        layers = self.network.transformer_layers()
        how = {"is_invariant": self.is_invariant, "is_single": x.shape[1] == 1}
        for number, layer in enumerate(layers):
            # Past the last layer nobody looks at the other rows.
            own = read if layer is layers[-1] else slice(None)
            x = self.read_layer(layer, x, self.keys_values[number], at, own, how)
        return norm(x)

    def read_layer(
        self,
        layer: Layer,
        x: Tensor,
        keys_values: Tensor,
        at: Behind,
        read: slice,
        how: dict[str, bool],
    ) -> Tensor:
        """Return the rows after a layer; their keys and values are put behind the slots'."""
        (N, R, _), (keys, values) = x.shape, keys_values
        qkv = normed_product(x, layer.qkv.flatten(0, 1), **how).view(N, R, 3, self.H, self.d)
        exact = {"is_invariant": self.is_invariant}
        attended = place_and_attend(qkv, keys, values, at, self.rotary, **exact).flatten(2)
        if read != slice(None):
            x, attended = x[:, read].contiguous(), attended[:, read].contiguous()
        x = add_product_(x, attended, layer.out, **how)
        up = normed_product(x, layer.up, is_squared=True, **how)
        return add_product_(x, up, layer.down, **how)

    def logits(self, hidden: Tensor, head: Tensor, *, is_single: bool = False) -> Tensor:
        """Return what the head (V, D) says of rows; `is_single` as their pass was."""
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
            shape = (*old.shape[:4], capacity, self.d)
            self.keys_values = old.new_zeros(shape)
            for slot, length in enumerate(self.lengths.tolist()):  # no memory for what is empty
                self.keys_values[:, :, slot, :, :length] = old[:, :, slot, :, :length]
            self.rotary = self.angles()

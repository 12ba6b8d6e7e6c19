"""The letters that shapes are written in, and the tensor types made of them.

    N  rows in the batch       C  context length          K  simplex scale
    B  block length            S  C + B, a whole row      T  diffusion steps
    V  vocabulary size         D  width of the network    L  sequence length (`max_len`)

`B` is never the batch and `T` is never a sequence length. The types are checked in tests; without
jaxtyping they are plain tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    Context = Block = Tokens = Levels = Embeddings = Simplex = Mask = Seeds = Tensor
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:
        Context = Block = Tokens = Levels = Embeddings = Simplex = Mask = Seeds = Tensor
    else:
        Context = Int[Tensor, "N C"]
        """Clean token ids to the left of a block."""
        Block = Int[Tensor, "N B"]
        """Token ids of a block."""
        Tokens = Int[Tensor, "N S"]
        """Token ids of whole rows."""
        Levels = Float[Tensor, "N B"]
        """One number for each position of a block: a level of noise, a uniform draw."""
        Embeddings = Float[Tensor, "N S D"]
        """What a transformer reads."""
        Simplex = Float[Tensor, "N B V"]
        """One number for each position and vocabulary entry: logits, noise, probabilities."""
        Mask = Bool[Tensor, "N B V"]
        """A set of vocabulary entries for each position."""
        Seeds = Int[Tensor, " N"]
        """One random seed per row."""

__all__ = [
    "Block",
    "Context",
    "Embeddings",
    "Levels",
    "Mask",
    "Seeds",
    "Simplex",
    "Tensor",
    "Tokens",
]

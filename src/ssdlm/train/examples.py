"""The examples of an optimiser step, and random numbers for them.  windows -> [examples] -> levels

Every draw is a function of an example's own seed, or of the step's seed and the example's index in
the step's batch; so a batch may be cut into any pieces, for any number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ssdlm.ops import counters
from ssdlm.ops.fusing import fused
from ssdlm.ops.padding import padded
from ssdlm.shapes import Seeds, Tensor, Tokens

NOISE, LEVEL, SHAPE, WIDTH, OWN, SPLIT, BEFORE, FRESH, GAP = range(9)
"""What a row's seed is used for; each use has random numbers of its own."""


@dataclass(frozen=True)
class Examples:
    """Some examples of an optimiser step."""

    tokens: Tokens
    seeds: Seeds
    """One for each example, the same in whatever batch it comes."""
    indices: Tensor
    """Where each example is in the step's whole batch, (N,)."""
    step_seed: int
    """One for the step, whichever examples these are."""
    is_context_only: bool = False
    """Whether no block is noised in this step."""

    def to(self, device: torch.device) -> Examples:
        """Return the examples on a device, sent without waiting for it."""
        tokens, seeds, indices = (
            send(part, device) for part in (self.tokens, self.seeds, self.indices)
        )
        return replace(self, tokens=tokens, seeds=seeds, indices=indices)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; from pinned memory, since any other copy waits for the GPU."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def uniforms(seeds: Seeds, use: int, count: int) -> Tensor:
    """Return uniform numbers (N, count) for one use of the rows' seeds."""
    if not seeds.is_cuda:
        return counters.uniform(seeds, block=use, step=0, B=count)
    position = torch.arange(count, device=seeds.device)
    stream = torch.full_like(position[:1], use * counters.NUM_STREAMS + counters.UNIFORM)
    return fused_uniforms(seeds.unsqueeze(1), position, torch.zeros_like(stream), stream)


@fused
def fused_uniforms(seeds: Tensor, position: Tensor, zero: Tensor, stream: Tensor) -> Tensor:
    """Return `counters.uniform` (N, count) from counters that come from outside, as for normals."""
    key = seeds & counters.WORD, (seeds >> 32) & counters.WORD
    word, *_ = counters.philox((zero, position, zero, stream), key)
    return counters.to_unit(word)


def normals(seeds: Seeds, count: int, V: int, *, use: int = NOISE) -> Tensor:
    """Return the rows' noise (N, count, V); on a GPU in bf16, which halves what is kept.

    There it is also wider, as matrix units like it; the rest of a row belongs to no token.
    """
    if not seeds.is_cuda:
        return counters.normal(seeds, block=use, step=0, B=count, V=V)
    # Counters come from outside: inductor counts in 32 bits and cannot multiply those by 2^31.
    column = torch.arange(padded(V) // 4, device=seeds.device).view(1, 1, -1)
    position = torch.arange(count, device=seeds.device).view(1, -1, 1)
    stream = torch.full_like(seeds[0], use * counters.NUM_STREAMS + counters.NORMAL)
    four = fused_normals(seeds, column, position, torch.zeros_like(stream), stream)
    return four.view(torch.bfloat16)


@fused
def fused_normals(
    seeds: Seeds, column: Tensor, position: Tensor, zero: Tensor, stream: Tensor
) -> Tensor:
    """Return the normals of each counter's four words, as bf16 side by side in one int64.

    So they leave one kernel in the order of `counters.normal`, and Philox runs once for all four.
    """
    key = (seeds & counters.WORD).view(-1, 1, 1), ((seeds >> 32) & counters.WORD).view(-1, 1, 1)
    a, b, c, d = counters.philox((column, position, zero, stream), key)
    four = (*counters.box_muller(a, b), *counters.box_muller(c, d))
    bits = [x.to(torch.bfloat16).view(torch.int16).long() & 0xFFFF for x in four]
    return bits[0] | (bits[1] << 16) | (bits[2] << 32) | (bits[3] << 48)

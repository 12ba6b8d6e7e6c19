"""What a network pass must read and multiply, counted.  diffusion, engine -> [costs] -> decode

A pass reads every weight that it uses once, and the cached context once. Of a table of words it
reads the rows that it looks up; all of the table only where a simplex as wide as the vocabulary is
multiplied by it. The head counts where logits are asked for. The state, the logits and the noise
are not counted: a fused step need not write them down. Neither are guides.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ssdlm.denoiser import Denoiser, DenoiserModule, RowDenoiser
from ssdlm.diffusion.grid import Sliding
from ssdlm.diffusion.sampler import windows_for
from ssdlm.engine.strategy import strategy_of
from ssdlm.options import GenerateOptions
from ssdlm.shapes import Tensor


@dataclass(frozen=True)
class Network:
    """The sizes of a denoiser that decide what a pass costs."""

    V: int
    D: int
    num_layers: int
    layer_weights: int
    """In all layers."""
    other_weights: int
    """Around the layers, tables of words and positions left out."""
    item_bytes: int
    """Bytes per weight."""


@dataclass(frozen=True)
class Pass:
    """One pass of the network, per row of the batch."""

    positions: int
    """Positions that go through the layers."""
    past: int = 0
    """Cached positions that they see as well."""
    wide: int = 0
    """Of the positions, those whose input is a simplex over the whole vocabulary."""
    heads: int = 0
    """Of the positions, those whose logits are asked for."""
    is_causal: bool = False
    """Whether a position sees only those before it, not all of the pass."""


def network_of(denoiser: DenoiserModule) -> Network:
    """Return the sizes of a denoiser."""
    layers = list(denoiser.transformer_layers())
    inside = {id(weight) for layer in layers for weight in layer.parameters()}
    tables = [module.weight for module in denoiser.modules() if isinstance(module, nn.Embedding)]
    rows = {id(weight) for weight in tables}
    words = next(weight for weight in denoiser.parameters() if denoiser.V in weight.shape)
    outside = [weight for weight in denoiser.parameters() if id(weight) not in inside | rows]
    return Network(
        V=denoiser.V,
        D=words.numel() // denoiser.V,
        num_layers=len(layers),
        layer_weights=sum(w.numel() for layer in layers for w in layer.parameters()),
        other_weights=sum(w.numel() for w in outside if denoiser.V not in w.shape),
        item_bytes=words.element_size(),
    )


def bytes_of(network: Network, one: Pass, batch: int) -> int:
    """Return the bytes that a pass reads: weights once, cached keys and values once."""
    table = network.V * network.D
    looked_up = min(network.V, batch * (one.positions - one.wide)) * network.D
    weights = network.layer_weights + (table if one.wide else looked_up)
    if one.heads:
        weights += table + network.other_weights
    cache = batch * one.past * network.num_layers * 2 * network.D
    return (weights + cache) * network.item_bytes


def flops_of(network: Network, one: Pass, batch: int) -> int:
    """Return the FLOPs of a pass's matrix products, two per multiplication and addition."""
    D, count = network.D, network.num_layers
    layer = network.layer_weights // count
    seen = one.past + ((one.positions + 1) / 2 if one.is_causal else one.positions)
    # Of the last layer, keys and values of all positions are needed, the rest where logits are.
    linear = one.positions * ((count - 1) * layer + 2 * D**2) + one.heads * (layer - 2 * D**2)
    attention = 2 * seen * D * ((count - 1) * one.positions + one.heads)
    around = network.V * D * (one.wide + one.heads) + network.other_weights * one.heads
    return round(2 * batch * (linear + attention + around))


def diffusion_passes(denoiser: Denoiser, options: GenerateOptions, *, context: int) -> list[Pass]:
    """Return the passes that the plain loop takes for one text after a context of some length."""
    if options.grid == "sliding":
        return sliding_passes(denoiser, options, context=context)
    strategy, passes, num_read = strategy_of(options, denoiser), [], 0
    has_cache = denoiser.num_context_passes > 0
    for B in options.blocks():
        if has_cache:
            passes.append(Pass(context - num_read, past=num_read, is_causal=True))
            num_read = context
        grid = strategy.grid(B)
        windows = windows_for(denoiser, strategy, grid, B=B)
        for t in range(grid.T, 0, -1):
            heads = windows[t].stop - windows[t].start
            wide = num_wide(denoiser, grid.part(windows[t]).progress[t].expand(heads))
            positions, past = (B, context) if has_cache else (context + B, 0)
            passes.append(Pass(positions, past=past, wide=wide, heads=heads))
        context += B
    return passes


def sliding_passes(denoiser: Denoiser, options: GenerateOptions, *, context: int) -> list[Pass]:
    """Return the passes of a window that slides through a text: what is new, and what is open."""
    blocks, passes, num_read = options.blocks(), [], 0
    is_cached = isinstance(denoiser, RowDenoiser)
    whole = [options.whole_block(number) for number in range(len(blocks))]
    for move in Sliding(options.T, options.width).moves(blocks, whole):
        decided, heads = context + move.window.start, move.window.stop - move.window.start
        wide = num_wide(denoiser, move.levels.progress[1])
        new = decided - num_read
        is_causal = is_cached and new > heads  # mostly, where a prompt is read
        passes.append(Pass(new + heads, num_read, wide, heads, is_causal))
        num_read = decided if is_cached else 0
    return passes


def num_wide(denoiser: Denoiser, levels: Tensor) -> int:
    """Return how many positions at these levels are read as wide as the vocabulary."""
    # Without evidence noise is read as it is; with it, pure noise says nothing.
    is_wide = (levels > 0) & (levels < 1) if denoiser.has_evidence else levels >= 0
    return int(is_wide.sum())


def autoregressive_passes(*, context: int, length: int) -> list[Pass]:
    """Return the passes of a text that is written token by token."""
    first = Pass(context, heads=1, is_causal=True)
    return [first, *(Pass(1, past=context + i, heads=1) for i in range(length - 1))]


@dataclass(frozen=True)
class Floor:
    """The least time of a text's passes on a machine: nothing but reading, or multiplying."""

    ms: float
    """Per pass, on the mean of all."""
    bytes_per_pass: float
    flops_per_pass: float

    @classmethod
    def under(
        cls, network: Network, passes: list[Pass], batch: int, *, bandwidth: float, peak: float
    ) -> Floor:
        """Return the floor of passes; each takes the larger of its two times."""
        reads = [bytes_of(network, one, batch) for one in passes]
        sums = [flops_of(network, one, batch) for one in passes]
        both = zip(reads, sums, strict=True)
        seconds = sum(max(read / bandwidth, flops / peak) for read, flops in both)
        count = len(passes)
        return cls(1000 * seconds / count, sum(reads) / count, sum(sums) / count)

"""What every denoiser can do: read a context once, then turn noise into logits, step after step.

Three families answer to it: `encoder.EncoderDenoiser`, the paper's, `block.BlockDenoiser`, ours,
and `causal.CausalDenoiser`, a causal language model with one open position.
What one of them can do beyond that, it tells itself: by attributes that are False by default.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from ssdlm.denoiser.tree import TreePass, TreeRows
from ssdlm.shapes import Block, Context, Simplex, Tensor, Tokens

IS_ARM = platform.machine() == "aarch64"


@runtime_checkable
class Cache(Protocol):
    """What a denoiser keeps of the context while a block is denoised."""

    @property
    def context(self) -> Context: ...


class Denoiser:
    """A network that estimates a clean block from a noisy one and the context to its left.

    A subclass has V, K and a device, and the methods `prefill`, `extend` and `denoise`. Each other
    method comes with the attribute that announces it; nobody calls one that was not announced.
    """

    V: int
    """Vocabulary size."""
    K: float
    """Simplex scale."""
    B: int = 25
    """The block length that it was trained with."""
    max_len: int | None = None
    """The longest context and block together; None where any length goes."""
    num_context_passes: int = 0
    """Passes of the network that reading the context takes, per block; 0 where each step does."""
    denoises_blocks: bool = True
    """Whether it was trained to denoise; an autoregressive model was not."""
    most_open: int | None = None
    """Positions that it denoises at once at the most; None for any number."""
    has_levels: bool = False
    """Whether each position may have a noise level of its own: then progress may be (N, B)."""
    has_memory: bool = False
    """Whether `denoise` reads the logits of the step before: self-conditioning."""
    has_windows: bool = False
    """Whether it has `denoise_window`."""
    has_slides: bool = False
    """Whether it has `read_and_denoise`."""
    has_slots: bool = False
    """Whether `slots.Slots` runs its layers: texts of different lengths go through together."""
    has_evidence: bool = False
    """Whether its logits are a sum of what the network adds and `evidence`."""
    has_context_stream: bool = False
    """Whether it has `next_logits` and `read_next`: it is a causal language model too."""
    has_drafts: bool = False
    """Whether it has `check_and_draft`, `accept`, `after_alone` and `guess_logits`."""
    has_all_blocks: bool = False
    """Whether it has `all_logits`."""
    has_fast_loss: bool = False
    """Whether it has `one_block`."""

    @property
    def device(self) -> torch.device:
        raise NotImplementedError

    def prefill(self, context: Context) -> Any:
        """Return a cache of all that can be computed from the context alone; C may be 0."""
        raise NotImplementedError

    def extend(self, cache: Any, block: Block) -> Any:
        """Return the cache of the context followed by a decided block."""
        raise NotImplementedError

    def denoise(
        self, cache: Any, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        """Return w_logits (Eq. 13); progress is t/T, a scalar, one per row, or one per position.

        `previous` are the logits of the step before, given only where `has_memory` says so.
        """
        raise NotImplementedError

    def denoise_window(
        self, cache: Any, w_t: Simplex, progress: Tensor, tokens: Block, window: slice
    ) -> Tensor:
        """Return `denoise(...)[:, window]`, (N, b, V), for levels (N, B), one per position.

        Every position outside the window is clean, and then `tokens` has its token, or noise alone.
        """
        raise NotImplementedError

    def read_and_denoise(
        self, cache: Any, new: Context, w_t: Simplex, progress: Tensor
    ) -> tuple[Any, Simplex]:
        """Return `extend(cache, new)` and then `denoise(...)`, by one pass of the network."""
        raise NotImplementedError

    def evidence(self, w_t: Tensor, progress: Tensor) -> Tensor:
        """Return what w_t and the level say by themselves, in logits."""
        raise NotImplementedError

    def next_logits(self, cache: Any, block: Block) -> Simplex:
        """Return the logits for the token after each token of a block."""
        raise NotImplementedError

    def read_next(self, cache: Any, tokens: Block) -> tuple[Tensor, Any]:
        """Return the logits (N, V) for the token after some new ones, and the longer cache."""
        return self.next_logits(cache, tokens)[:, -1], self.extend(cache, tokens)

    def check_and_draft(self, cache: Any, tokens: Block, rows: TreeRows) -> TreePass:
        """Return what is said after the words of a tree, and in blocks of noise behind them."""
        raise NotImplementedError

    def accept(self, cache: Any, tokens: Block, keys_values: Tensor) -> Any:
        """Return the cache of the context followed by words whose keys and values are known."""
        raise NotImplementedError

    def after_alone(self, tokens: Tensor) -> Tensor:
        """Return the context stream's output (n, D) after each of some words, alone."""
        raise NotImplementedError

    def guess_logits(self, drafts: Tensor, alone: Tensor) -> Tensor:
        """Return logits (n, V) from the output of draft rows and after the word before, alone."""
        raise NotImplementedError

    def all_logits(
        self, tokens: Tokens, progress: Tensor, *, z: Simplex, blocks: Tensor
    ) -> Simplex:
        """Return the logits of every noised token of whole sequences, all blocks in one pass."""
        raise NotImplementedError

    def one_block(
        self, context: Context, block: Block, progress: Tensor, *, z: Simplex, loss: str
    ) -> Tensor:
        """Return the mean loss of one noised block per row, with nothing V-wide kept for it."""
        raise NotImplementedError

    def store_for_cpu(self) -> None:
        """Lay the weights out as a CPU multiplies them fastest, where that makes a difference."""


class DenoiserModule(nn.Module, Denoiser):
    """A denoiser with weights: it can be trained, saved and opened again."""

    config: Any
    """What it is built from: an EncoderConfig or a BlockConfig."""

    def set_unigram(self, counts: Tensor) -> None:
        """Take in how often each token occurs in the training text, where the network reads it."""

    def transformer_layers(self) -> Sequence[nn.Module]:
        """Return the layers in order, for training to shard, compile or recompute one by one."""
        raise NotImplementedError

    def compile_layers(self) -> None:
        """Compile the layers for training; what is compiled serves them all."""
        raise NotImplementedError


class DenoiserWrapper(Denoiser):
    """A denoiser around another one: takes over what stays true, and announces nothing else."""

    denoiser: Denoiser

    def __post_init__(self) -> None:
        inner = self.denoiser
        self.V, self.K, self.B, self.max_len = inner.V, inner.K, inner.B, inner.max_len
        self.num_context_passes, self.most_open = inner.num_context_passes, inner.most_open
        self.denoises_blocks, self.has_levels = inner.denoises_blocks, inner.has_levels
        self.has_evidence = inner.has_evidence

    @property
    def device(self) -> torch.device:
        return self.denoiser.device

    def evidence(self, w_t: Tensor, progress: Tensor) -> Tensor:
        return self.denoiser.evidence(w_t, progress)


def remember(denoiser: Denoiser, cache: Any, context: Context, *, B: int) -> Any:
    """Return the cache of a context, of its latest tokens where the model has no room for all."""
    C = context.shape[1]
    keep = C if denoiser.max_len is None else denoiser.max_len - B
    if keep < 0:  # not even the block alone has room
        raise ValueError(f"B={B} is longer than the model's {denoiser.max_len} positions; lower B")
    # Once the oldest tokens fall out, every position moves, so nothing cached is true any more.
    if cache is None or keep < C:
        return denoiser.prefill(context[:, max(0, C - keep) :])
    return denoiser.extend(cache, context[:, cache.context.shape[1] :])


def advance(
    denoiser: Denoiser, cache: Any, context: Context, w_t: Simplex, progress: Tensor
) -> tuple[Any, Simplex, int]:
    """Return the cache of a context, the logits of the block behind it, and the passes it took.

    That is one where the denoiser reads new tokens in the same pass.
    """
    room, C = denoiser.max_len, context.shape[1]
    num_read = 0 if cache is None else cache.context.shape[1]
    has_room = room is None or C + w_t.shape[1] <= room
    if not denoiser.has_slides or not has_room:
        cache = remember(denoiser, cache, context, B=w_t.shape[1])
        num_passes = 1 + (denoiser.num_context_passes if C > num_read else 0)
        return cache, denoiser.denoise(cache, w_t, progress), num_passes
    cache = denoiser.prefill(context[:, :0]) if cache is None else cache
    return *denoiser.read_and_denoise(cache, context[:, num_read:], w_t, progress), 1


def row_by_row(forward: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Apply `forward` so that a row's result cannot depend on how many rows there are.

    Matrix products on a CPU choose their order of summation by the number of rows, so there each
    row goes alone; the last bit would differ otherwise. Other devices take the whole batch.
    """
    if inputs[0].device.type != "cpu":
        return forward(*inputs)
    rows = zip(*(tensor.split(1) for tensor in inputs), strict=True)
    with plain_products():
        found = [forward(*row) for row in rows]
    return found[0] if len(found) == 1 else torch.cat(found)


@contextmanager
def plain_products() -> Iterator[None]:
    """Multiply without oneDNN on ARM, where it takes up to twice as long for products of few rows.

    It is one switch for all threads; the worst that two who meet here do is to leave it off.
    """
    onednn = torch.backends.mkldnn
    was_on = IS_ARM and onednn.enabled
    if was_on:
        onednn.enabled = False
    try:
        yield
    finally:
        if was_on:
            onednn.enabled = True

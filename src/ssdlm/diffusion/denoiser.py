"""What the loops ask of a network: read a context once, then turn noise into logits, step by step.

    schedule, simplex -> [denoiser] -> sampler, sliding, autoregressive

`Denoiser` is all that the paper's loops need, three methods. `RowDenoiser` is a causal language
model too. Networks of both kinds are in `ssdlm.denoiser`; anybody may write another.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from ssdlm.diffusion import schedule, simplex
from ssdlm.diffusion.evidence import as_levels, evidence_gain
from ssdlm.diffusion.loss import block_loss
from ssdlm.diffusion.noising import add_noise
from ssdlm.shapes import Block, Context, Simplex, Tensor, Tokens


class Denoiser:
    """A network that estimates a clean block from a noisy one and the context to its left.

    A subclass has V, K and a device, and the methods `prefill`, `extend` and `denoise`. A cache is
    any object with the context that it is about, as `context`.
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
    most_open: int | None = None
    """Positions that it denoises at once at the most; None for any number."""
    has_memory: bool = False
    """Whether `denoise` reads the logits of the step before: self-conditioning."""
    num_given: int = 0
    """Tokens at the start of a sequence that are never noised: 1 where a word must come first."""
    has_windows: bool = False
    """Whether a step may be about a window of a block, and nobody looks at the rest."""
    has_evidence: bool = False
    """Whether its logits are a sum of what the network adds and `evidence`."""

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
        """Return the logits (N, b, V) of a window, for levels (N, B), one per position.

        Every position outside the window is clean, and then `tokens` has its token, or noise alone.
        """
        del tokens
        return self.denoise(cache, w_t, progress)[:, window]

    def read_and_denoise(
        self, cache: Any, new: Context, w_t: Simplex, progress: Tensor
    ) -> tuple[Any, Simplex]:
        """Return the cache of a longer context, and the logits of a block behind it."""
        cache = self.extend(cache, new)
        return cache, self.denoise(cache, w_t, progress)

    def evidence(self, w_t: Tensor, progress: Tensor) -> Tensor:
        """Return ell = gain * w_t: how much likelier w_t is under each token, in log-odds."""
        return self.gain(as_levels(progress)).unsqueeze(-1) * w_t.float()

    def gain(self, progress: Tensor) -> Tensor:
        """Return what w_t is multiplied by, which makes it evidence; 1 in the paper's form."""
        if self.has_evidence:
            return evidence_gain(progress, self.K)
        return torch.ones_like(progress, dtype=torch.float32)

    def one_block(
        self,
        context: Context,
        block: Block,
        progress: Tensor,
        *,
        z: Simplex,
        loss: Literal["cross_entropy", "l2"] = "cross_entropy",
    ) -> Tensor:
        """Noise one block of each row at its own level (N,) and return the mean loss: Algorithm 1.

        Networks may keep nothing V-wide for it, and take noise z that is wider than V.
        """
        w_0 = simplex.to_logits(block, V=self.V, K=self.K)
        w_t = add_noise(w_0, schedule.cosine(progress), K=self.K, z=z[..., : self.V])
        logits = self.denoise(self.prefill(context), w_t, progress)
        return block_loss(logits, block, loss=loss)


class RowDenoiser(Denoiser):
    """A denoiser that is a causal language model too: it reads rows behind what it has read.

    A row is a word of the context or a noisy position at a level of its own, so that progress may
    be (N, B). The words' rows are the *context stream*, which predicts the next token.
    """

    num_context_passes = 1
    has_windows = True

    def next_logits(self, cache: Any, block: Block) -> Simplex:
        """Return the logits for the token after each token of a block."""
        raise NotImplementedError

    def read_next(self, cache: Any, tokens: Block) -> tuple[Tensor, Any]:
        """Return the logits (N, V) for the token after some new ones, and the longer cache."""
        return self.next_logits(cache, tokens)[:, -1], self.extend(cache, tokens)

    def all_logits(
        self, tokens: Tokens, progress: Tensor, *, z: Simplex, blocks: Tensor
    ) -> Simplex:
        """Return the logits of every noised token of whole sequences, all blocks in one pass."""
        raise NotImplementedError


class DenoiserWrapper(Denoiser):
    """A denoiser around another one: takes over what stays true of it."""

    denoiser: Denoiser

    def __post_init__(self) -> None:
        inner = self.denoiser
        self.V, self.K, self.B, self.max_len = inner.V, inner.K, inner.B, inner.max_len
        self.num_context_passes, self.most_open = inner.num_context_passes, inner.most_open
        self.has_evidence = inner.has_evidence

    @property
    def device(self) -> torch.device:
        return self.denoiser.device

    def evidence(self, w_t: Tensor, progress: Tensor) -> Tensor:
        return self.denoiser.evidence(w_t, progress)


def reads_rows(denoiser: Denoiser) -> bool:
    """Tell whether the network is a `RowDenoiser`, within all that is wrapped around it."""
    while isinstance(denoiser, DenoiserWrapper):
        denoiser = denoiser.denoiser
    return isinstance(denoiser, RowDenoiser)


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
    if not has_room or not reads_rows(denoiser):
        cache = remember(denoiser, cache, context, B=w_t.shape[1])
        num_passes = 1 + (denoiser.num_context_passes if C > num_read else 0)
        return cache, denoiser.denoise(cache, w_t, progress), num_passes
    cache = denoiser.prefill(context[:, :0]) if cache is None else cache
    return *denoiser.read_and_denoise(cache, context[:, num_read:], w_t, progress), 1

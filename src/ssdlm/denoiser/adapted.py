"""A causal language model that has learnt to diffuse: its own weights frozen, an adapter beside it.

    context -> words ---------------------------------> keys and values, kept; next-token logits
    w_t -> evidence ell -> softmax(log unigram + ell) -> soft words -> network + ell -> logits

Words' rows are the language model's, to the bit. A noisy row starts from the word before it, at
that word's place, as next-token prediction does, and has low-rank additions to every matrix. It
does not see the row of the word before its block, which it starts from: a block of one row without
evidence computes what that row does.  adapter, causal -> [adapted] -> storage.checkpoint, train
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from ssdlm.config import AdapterConfig
from ssdlm.denoiser import row_by_row
from ssdlm.denoiser.adapter import (
    AdapterLayer,
    RowLayer,
    clean_pass,
    compiled_clean,
    norm,
    own_weights,
)
from ssdlm.denoiser.attention import noisy_bias
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.denoiser.network import (
    NUM_TIME_FEATURES,
    NoisyNetwork,
    running_dtype,
)
from ssdlm.denoiser.words import WordCache
from ssdlm.diffusion.evidence import as_levels
from ssdlm.diffusion.loss import Losses
from ssdlm.ops.noisy_logits import Noisy
from ssdlm.shapes import Block, Simplex, Tensor, Tokens


class AdaptedDenoiser(NoisyNetwork):
    """logits_theta of Eq. 13 as network + ell, by a causal language model and its adapter."""

    config: AdapterConfig
    has_evidence = True
    is_exact = True
    num_given = 1

    def __init__(self, config: AdapterConfig, model: LlamaDenoiser) -> None:
        super().__init__()
        # Beside the module's own parts: no checkpoint, optimiser or average has the model's.
        self.frozen = (model.requires_grad_(False),)
        self.config, own = config, model.config
        self.V, self.K, self.B, self.max_len = own.V, config.K, config.B, own.max_len
        layers = (AdapterLayer(own, config.rank) for _ in range(own.num_layers))
        self.layers = nn.ModuleList(layers)
        self.own_embed = nn.Parameter(torch.zeros(own.D, own.D))
        self.time_embed = nn.Parameter(torch.zeros(own.D, NUM_TIME_FEATURES))
        # Uniform until `set_unigram`; a buffer, so that checkpoints carry it.
        self.register_buffer("log_unigram", torch.full((own.V,), -math.log(own.V)))

    @property
    def model(self) -> LlamaDenoiser:
        """The language model."""
        return self.frozen[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AdaptedDenoiser:
        self.model._apply(fn, recurse)
        return super()._apply(fn, recurse)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return running_dtype(self.model.words)

    @property
    def head(self) -> Tensor:
        return self.model.head

    @property
    def prior(self) -> Tensor:
        """What the head adds to its logits: as the model's, nothing."""
        return self.model.prior

    @property
    def key_shape(self) -> tuple[int, int]:
        return self.model.key_shape

    def rotary(self, positions: Tensor) -> Tensor:
        return self.model.rotary(positions)

    def embed(self, tokens: Block) -> Tensor:
        return self.model.embed(tokens).to(self.dtype)

    def tables(self) -> Tensor:
        """Return what simplexes are multiplied by: the words."""
        return self.model.words.to(self.dtype)

    def transformer_layers(self) -> list[AdapterLayer]:
        return cast(list[AdapterLayer], list(self.layers))

    def row_layers(self) -> list[RowLayer]:
        pairs = zip(self.transformer_layers(), self.model.transformer_layers(), strict=True)
        return [layer.beside(own) for layer, own in pairs]

    def compile_layers(self) -> None:
        for layer in self.transformer_layers():
            layer.is_compiled = True

    def run_words(self, tokens: Block, past: Tensor | None, num_read: int) -> tuple[Tensor, Tensor]:
        return self.model.run_words(tokens, past, num_read)

    def denoise(
        self, cache: WordCache, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        """Return the logits; where the language model's own are exact, those and the evidence.

        That is so where all before a position is certain and nothing after it has evidence. Words
        at a block's beginning that are certain are read as words.
        """
        del previous
        progress = as_levels(progress).expand(w_t.shape[:2]).to(self.device)
        count = int((progress == 0).all(0).long().cumprod(0).sum())
        if count > 0:
            clean = self.evidence(w_t[:, :count], progress[:, :count])
            if count == w_t.shape[1]:
                return clean
            cache = self.extend(cache, w_t[:, :count].argmax(-1))
            rest = self.denoise(cache, w_t[:, count:], progress[:, count:])
            return torch.cat((clean, rest), 1)
        if cache.logits is None:
            raise ValueError("0 words before a block: a language model needs one; give a prompt")
        is_alone = (progress[:, 1:] == 1).all(1)
        exact = cache.logits.unsqueeze(1) + self.evidence(w_t[:, :1], progress[:, :1])
        if w_t.shape[1] == 1:
            return exact
        logits = self.adapted_logits(cache, w_t, progress)
        first = torch.where(is_alone.view(-1, 1, 1), exact, logits[:, :1])
        return torch.cat((first, logits[:, 1:]), 1)

    def adapted_logits(self, cache: WordCache, w_t: Simplex, progress: Tensor) -> Simplex:
        """Return what the adapted rows of a block say, whatever is exact."""
        past = cache.past.movedim(2, 0)  # (N, layers, 2, heads, C, d)
        rows = partial(self.block_rows, blank=cache.blank)
        return row_by_row(rows, w_t, progress, cache.context[:, -1:], past)

    def block_rows(
        self, w_t: Tensor, progress: Tensor, last: Block, past: Tensor, *, blank: Tensor
    ) -> Tensor:
        """Return the logits of a block behind its context, whose last word it starts from."""
        num_past, B = past.shape[4] - 1, w_t.shape[1]
        soft = self.read_state(w_t, progress, blank)
        x = self.embed_block(soft, self.embed(last), progress, blank)
        rotary = self.rotary(torch.arange(num_past, num_past + B, device=self.device))
        for layer, own, seen in zip(
            self.layers, self.model.transformer_layers(), past.unbind(1), strict=True
        ):
            x = layer(own, x, rotary, None, seen[..., :num_past, :].movedim(1, 0))
        return self.to_logits(self.last_norm(x)) + self.evidence(w_t, progress)

    def last_norm(self, x: Tensor) -> Tensor:
        return norm(x, self.model.norm, self.model.config.eps)

    def forward(
        self,
        tokens: Tokens,
        progress: Tensor,
        *,
        z: Tensor,
        blocks: Tensor,
        earlier: Any = None,
        loss: str = "cross_entropy",
    ) -> Losses:
        """Noise all tokens but the first, each at its level (N, L - 1), and return the losses.

        `blocks` (L - 1,) numbers their blocks from the left; z (N, L - 1, V) is standard normal.
        """
        del earlier
        noisy = self.noised(tokens, progress, z)
        hidden = self.noisy_rows(tokens, progress, noisy, blocks)
        total = self.block_loss(hidden.flatten(0, 1), noisy, loss)
        return Losses(total, total.detach(), torch.zeros_like(total).detach())

    def noisy_rows(self, tokens: Tokens, progress: Tensor, noisy: Noisy, blocks: Tensor) -> Tensor:
        """Return what the head reads of the noisy rows (N, L - 1, D).

        Row i starts from word i, noisy or clean, at its place, and is about the token after it. It
        sees words before the one that its block starts from, and its block.
        """
        words, length = self.embed(tokens[:, :-1]), tokens.shape[1] - 1
        with torch.no_grad():
            soft = self.soft_words(noisy).unflatten(0, words.shape[:2])
        is_first = F.pad(blocks[1:] != blocks[:-1], (1, 0), value=True).to(self.device)
        before = torch.cat((words[:, :1], soft[:, :-1]), 1)
        left = torch.where(is_first.unsqueeze(-1), words, before)
        x = self.embed_noisy(soft, left, progress, self.blank())
        rotary = self.rotary(torch.arange(length, device=self.device))
        bias = noisy_bias(blocks.to(self.device), self.dtype)
        for layer, own in zip(
            self.transformer_layers(), self.model.transformer_layers(), strict=True
        ):
            with torch.no_grad():
                read = compiled_clean() if layer.is_compiled else clean_pass
                words, seen = read(words, rotary, own_weights(own), own.config)
            x = layer(own, x, rotary, bias, seen)
        return self.last_norm(x)

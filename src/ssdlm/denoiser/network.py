"""The network of our denoiser: its weights, and what enters and leaves them.

layer -> [network] -> denoiser.block, which runs it on blocks to decode and to train
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from ssdlm.config import BlockConfig
from ssdlm.denoiser.layer import Layer
from ssdlm.denoiser.slots import Network
from ssdlm.denoiser.words import WordCache
from ssdlm.diffusion import schedule
from ssdlm.diffusion.evidence import MAX_SNR
from ssdlm.ops import rows
from ssdlm.ops.cross_entropy import head_loss
from ssdlm.ops.noisy_logits import Noisy, noisy_logits
from ssdlm.ops.padding import pad_prior, pad_table, padded_head
from ssdlm.ops.rotary import rotation
from ssdlm.ops.soft_embedding import soft_embedding
from ssdlm.shapes import Block, Context, Tensor, Tokens

NUM_TIME_FEATURES = 16


class NoisyNetwork(Network):
    """A network whose noisy rows start from their left neighbour, if it is shifted."""

    log_unigram: Tensor
    own_embed: Tensor
    time_embed: Tensor
    has_tied_simplex = True
    """Whether simplexes are multiplied by the words, and what comes out by `own_embed`."""

    def prefill(self, context: Context) -> WordCache:
        return replace(super().prefill(context), blank=self.blank())

    @torch.no_grad()
    def set_unigram(self, counts: Tensor) -> None:
        """Store the smoothed log frequencies of the training tokens."""
        self.log_unigram.copy_(smoothed_unigram(counts))

    def embed_noisy(self, soft: Tensor, left: Tensor, progress: Tensor, blank: Tensor) -> Tensor:
        """Return the input of noisy rows: left neighbour, own evidence and level.

        Evidence and level enter as what they add to knowing nothing, which adds nothing.
        """
        width = len(self.time_embed)
        own = soft[..., -width:] - blank[-width:]
        if self.has_tied_simplex:
            own = F.linear(own, self.own_embed.to(own.dtype))
        x = own + left if self.is_shifted else own
        return x + F.linear(level_features(progress).to(x.dtype), self.time_embed.to(x.dtype))

    @property
    def unigram(self) -> Tensor:
        """What is known of a noisy token before any evidence; in the paper's form, nothing."""
        return self.log_unigram if self.has_evidence else torch.zeros_like(self.log_unigram)

    def tables(self) -> Tensor:
        """Return what simplexes are multiplied by."""
        raise NotImplementedError

    def noisy_rows(self, tokens: Tokens, progress: Tensor, noisy: Noisy, blocks: Tensor) -> Tensor:
        """Return what the head reads of noised tokens, all blocks at once."""
        raise NotImplementedError

    def blank(self) -> Tensor:
        """Return what a position without evidence reads: the mean word under the prior."""
        return self.unigram.softmax(-1).to(self.dtype) @ self.tables()

    def read_state(self, w_t: Tensor, progress: Tensor, blank: Tensor) -> Tensor:
        """Return a state's soft words softmax(prior + ell) @ tables.

        Where there is no evidence at all they are `blank`; only a CPU can tell without a wait.
        """
        if w_t.device.type == "cpu" and not w_t.any():
            return blank.expand(*w_t.shape[:2], -1)
        belief = (self.unigram + self.evidence(w_t, progress)).softmax(-1)
        return belief.to(self.dtype) @ self.tables()

    def soft_words(self, noisy: Noisy) -> Tensor:
        """Return softmax(prior + noisy logits) @ tables, a row for each noised token."""
        width = noisy.z.shape[-1]
        return soft_embedding(
            noisy, pad_prior(self.unigram, width), pad_table(self.tables(), width)
        )

    def embed_block(self, soft: Tensor, left: Tensor, progress: Tensor, blank: Tensor) -> Tensor:
        """Return the input of a noisy block, behind what stands before it: `left` (N, 1, D)."""
        left = torch.cat((left, soft[:, :-1, : left.shape[-1]]), 1)
        return self.embed_noisy(soft, left, progress, blank)

    def all_logits(self, tokens: Tokens, progress: Tensor, *, z: Tensor, blocks: Tensor) -> Tensor:
        """Return the logits of every noised token, all blocks at once, as `denoise` gives them."""
        noisy = self.noised(tokens, progress, z)
        logits = self.to_logits(self.noisy_rows(tokens, progress, noisy, blocks))
        if not self.has_evidence:
            return logits
        return logits + noisy_logits(*noisy.parts())[:, : self.V].view_as(logits)

    def noised(self, tokens: Tokens, progress: Tensor, z: Tensor) -> Noisy:
        """Return noised tokens in factors: gain * w_t (Eq. 7), up to a constant per position."""
        # w_t = K sqrt(a) (2 onehot - 1) + K sqrt(1 - a) z; a softmax does not see the -1.
        a, scale = schedule.cosine(progress), self.gain(progress) * self.K
        gain_z, gain_w = scale * (1 - a).sqrt(), 2 * scale * a.sqrt()
        own = tokens[:, self.num_given :].flatten()
        return Noisy(z.flatten(0, 1), own, gain_z.flatten(), gain_w.flatten())

    def block_loss(self, hidden: Tensor, noisy: Noisy, loss: str) -> Tensor:
        """Return the mean loss of noised tokens (Eq. 8-9); evidence is added if it is used."""
        head = padded_head(self.head.to(self.dtype), self.prior, noisy.z.shape[-1])
        seen = noisy if self.has_evidence else None
        return head_loss(hidden, *head, noisy.tokens, seen, loss=loss)

    def to_logits(self, hidden: Tensor) -> Tensor:
        """Return next-token or network logits; the prior is in them, evidence is not."""
        # In float32 from here on: differences of logits decide, and bf16 has three digits.
        return (hidden @ self.head.to(self.dtype).T).float() + self.prior


class BlockNetwork(NoisyNetwork):
    """A transformer over words and soft words, and the tables around it."""

    config: BlockConfig

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.V, self.K, self.B = config.V, config.K, config.B
        self.denoises_blocks = config.block_weight > 0
        self.has_memory = config.has_self_conditioning
        self.has_evidence = config.has_evidence
        self.is_shifted, self.has_tied_simplex = config.is_shifted, config.has_tied_simplex
        width = config.D
        self.words = nn.Parameter(torch.empty(config.V, width))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        # Uniform until `set_unigram`; a buffer, so that checkpoints carry it.
        self.register_buffer("log_unigram", torch.full((config.V,), -math.log(config.V)))
        if config.is_shifted:
            self.start = nn.Parameter(torch.empty(width))
        if config.has_tied_simplex:
            self.own_embed = nn.Parameter(torch.empty(width, width))
        else:
            self.simplex_embed = nn.Parameter(torch.empty(config.V, width))
        self.time_embed = nn.Parameter(torch.empty(width, NUM_TIME_FEATURES))
        self.head = nn.Parameter(torch.empty(config.V, width))
        if config.has_self_conditioning:
            self.self_embed = nn.Parameter(torch.empty(width, width))
        if not self.words.is_meta:
            for name, value in self.initial_values():
                self.get_parameter(name).data.copy_(value)

    def initial_values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a new network by name, one at a time, always in the same order.

        So a process that keeps a part of each has the values of one that keeps them whole.
        """
        width = self.config.D
        yield "words", torch.randn(self.words.shape)
        for index, layer in enumerate(self.transformer_layers()):
            for name, value in layer.initial_values():
                yield f"layers.{index}.{name}", value
        if self.has_tied_simplex:
            yield "own_embed", torch.randn(width, width) * width**-0.5
        else:
            yield "simplex_embed", torch.randn(self.simplex_embed.shape)
        # With its head at 0 a new network is silent: it predicts the posterior of the unigram.
        for name in ("start", "time_embed", "head", "self_embed"):
            if hasattr(self, name):
                yield name, torch.zeros(self.get_parameter(name).shape)

    @property
    def device(self) -> torch.device:
        return self.words.device

    @property
    def dtype(self) -> torch.dtype:
        return running_dtype(self.words)

    @property
    def prior(self) -> Tensor:
        return self.unigram

    def transformer_layers(self) -> list[Layer]:
        return cast(list[Layer], list(self.layers))

    def compile_layers(self) -> None:
        """Compile the layers for training on all blocks; one compiled layer serves them all.

        Single blocks come after contexts of many lengths, and on those inductor fails.
        """
        for layer in self.transformer_layers():
            layer.is_compiled = True

    @torch.no_grad()
    def store_for_cpu(self) -> None:
        """Lay matrices out as a CPU multiplies few rows fastest; their values stay.

        On x86, too, such products are batch-invariant (`ops.rows.ragged_product`).
        """
        layers = self.transformer_layers()
        inside = [w for layer in layers for w in (layer.qkv, layer.out, layer.up, layer.down)]
        for weight in (*inside, self.head):
            columns = weight.flatten(0, -2).t().contiguous()
            weight.data = columns.t().unflatten(0, weight.shape[:-1])

    def embed_belief(self, belief: Tensor, soft: Tensor) -> Tensor:
        """Return what a belief adds to the evidence alone: self-conditioning."""
        news = belief - soft[..., : self.config.D]
        return F.linear(news, self.self_embed.to(news.dtype))

    def noisy_positions(self, num_past: int, num_new: int) -> Tensor:
        """Return the rotary positions of a noisy block: of the words it starts from, if shifted."""
        first = num_past - self.is_shifted
        return torch.arange(first, first + num_new, device=self.device)

    def rotary(self, positions: Tensor) -> Tensor:
        return rotation(positions, self.config.D // self.config.num_heads)

    @property
    def key_shape(self) -> tuple[int, int]:
        """How many heads the keys of a token have, and how wide they are."""
        return self.config.num_heads, self.config.D // self.config.num_heads

    def last_norm(self, x: Tensor) -> Tensor:
        """Return what the head reads of rows that have gone through the layers."""
        return rows.norm(x)

    def embed(self, tokens: Block) -> Tensor:
        return F.embedding(tokens, self.words).to(self.dtype)

    def word_before(self, context: Context) -> Tensor:
        """Return what stands before a block, (N, 1, D): a word, or the start of a text."""
        if context.shape[1] == 0 and self.is_shifted:
            return self.start.to(self.dtype).expand(len(context), 1, -1)
        return self.embed(context[:, -1:])

    def tables(self) -> Tensor:
        """Return what simplexes are multiplied by: the words, and W_diff where it is apart."""
        if self.has_tied_simplex:
            return self.words.to(self.dtype)
        return torch.cat((self.words, self.simplex_embed), 1).to(self.dtype)


def running_dtype(weight: Tensor) -> torch.dtype:
    """Return the precision that rows run in: the weights', or what autocast says."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def smoothed_unigram(counts: Tensor) -> Tensor:
    """Return log frequencies of tokens; one that was never seen is rare, not impossible."""
    smoothed = counts.double() + 1.0
    return (smoothed / smoothed.sum()).log()


def level_features(progress: Tensor) -> Tensor:
    """Return snr / (snr + c) for c from 0.003 to 100, (..., 16): sigmoids of log snr, or 0."""
    snr = schedule.snr(progress).clamp(max=MAX_SNR).float().unsqueeze(-1)
    scale = torch.logspace(-2.5, 2.0, NUM_TIME_FEATURES, device=progress.device)
    return snr / (snr + scale)

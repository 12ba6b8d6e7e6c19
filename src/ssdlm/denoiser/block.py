"""Our denoiser: a causal context stream and a noisy block through one transformer.

    context -> words ---------------------------------> keys and values, kept; next-token logits
    w_t -> evidence ell -> softmax(log unigram + ell) -> soft words -> network + ell -> logits

The noisy block sees the context's keys and values and, both ways, itself. A noisy position starts
from its left neighbour's word, as next-token prediction does, plus what its own evidence adds; with
a clean left side and pure noise elsewhere the two tasks are one, and what is learnt is shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.denoiser import each_row, row_by_row
from ssdlm.denoiser.attention import causal_mask, noisy_bias
from ssdlm.denoiser.layer import norm
from ssdlm.denoiser.network import BlockNetwork, noised
from ssdlm.diffusion.evidence import as_levels
from ssdlm.diffusion.loss import Losses
from ssdlm.ops.cross_entropy import head_loss
from ssdlm.ops.noisy_logits import Noisy, noisy_logits
from ssdlm.ops.padding import padded, padded_head
from ssdlm.ops.soft_embedding import chunks
from ssdlm.shapes import Block, Context, Simplex, Tensor

NOISY_WEIGHTS = ("start", "own_embed", "simplex_embed", "time_embed", "self_embed")
"""The weights that only noisy positions have."""


class Earlier(NamedTuple):
    """Levels (N, L) and noise (N, L, V) of a first pass, for self-conditioning."""

    progress: Tensor
    z: Tensor


@dataclass(frozen=True)
class BlockCache:
    """The context and its keys and values, (N, layers, 2, heads, C, d)."""

    context: Context
    keys_values: Tensor
    blank: Tensor
    """What a position without evidence reads."""


class BlockDenoiser(BlockNetwork):
    """logits_theta of Eq. 13 as network + ell, with the context computed once."""

    def prefill(self, context: Context) -> BlockCache:
        config = self.config
        heads = (2, config.num_heads, 0, config.D // config.num_heads)
        nothing = torch.zeros(
            len(context), config.num_layers, *heads, device=self.device, dtype=self.dtype
        )
        return self.extend(BlockCache(context[:, :0], nothing, self.blank()), context)

    def extend(self, cache: BlockCache, block: Block) -> BlockCache:
        if block.shape[1] == 0:
            return cache
        new = row_by_row(lambda *row: self.run_context(*row)[1], block, cache.keys_values)
        return self.accept(cache, block, new)

    def accept(self, cache: BlockCache, tokens: Block, keys_values: Tensor) -> BlockCache:
        """Return the cache of the context followed by words whose keys and values are known."""
        context = torch.cat((cache.context, tokens), 1)
        return BlockCache(context, torch.cat((cache.keys_values, keys_values), 4), cache.blank)

    def next_logits(self, cache: BlockCache, block: Block) -> Simplex:
        """Return log p(next token) (Eq. 4), up to a constant, after each token of a block."""
        hidden = row_by_row(lambda *row: self.run_context(*row)[0], block, cache.keys_values)
        return self.to_logits(hidden)

    def read_next(self, cache: BlockCache, tokens: Block) -> tuple[Tensor, BlockCache]:
        """Return the logits after the last of some new tokens, and the longer cache: one pass."""

        def read(*row: Tensor) -> tuple[Tensor, Tensor]:
            hidden, new = self.run_context(*row)
            return self.to_logits(hidden[:, -1]), new

        logits, new = each_row(read, tokens, cache.keys_values)
        return logits, self.accept(cache, tokens, new)

    def run_context(self, tokens: Block, past: Tensor) -> tuple[Tensor, Tensor]:
        """Run the context stream over tokens that follow `past`: its output, keys and values."""
        num_past, num_new = past.shape[4], tokens.shape[1]
        positions = torch.arange(num_past, num_past + num_new, device=self.device)
        mask = causal_mask(num_new, num_past, self.device)
        return self.run(self.embed(tokens), positions, mask, past)

    def denoise(
        self, cache: BlockCache, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        """Return the logits; `previous` are those of the step before, for self-conditioning."""
        progress = as_levels(progress.to(self.device)).expand(w_t.shape[:2])
        nothing = cache.context[:, :0]
        left, memory = self.word_before(cache.context), () if previous is None else (previous,)
        rows = partial(self.block_rows, blank=cache.blank)
        inputs = nothing, w_t, progress, left, cache.keys_values, *memory
        return row_by_row(lambda *row: rows(*row)[0], *inputs)

    def read_and_denoise(
        self, cache: BlockCache, new: Context, w_t: Simplex, progress: Tensor
    ) -> tuple[BlockCache, Simplex]:
        """Return the longer cache and the logits behind it: context and block in one pass."""
        left = self.word_before(torch.cat((cache.context, new), 1))
        rows = partial(self.block_rows, blank=cache.blank)
        logits, keys_values = each_row(rows, new, w_t, progress, left, cache.keys_values)
        return self.accept(cache, new, keys_values), logits

    def block_rows(
        self,
        new: Context,
        w_t: Simplex,
        progress: Tensor,
        left: Tensor,
        past: Tensor,
        previous: Simplex | None = None,
        *,
        blank: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of a block behind new words, and the words' keys and values."""
        ell, soft = self.read_state(w_t, progress, blank)
        x = self.embed_block(soft, left, progress, blank)
        if self.has_memory and previous is not None:
            belief = previous.softmax(-1).to(self.dtype) @ self.words.to(self.dtype)
            x = x + self.embed_belief(belief, soft)
        return self.run_block(new, x, ell, past)

    def denoise_window(
        self, cache: BlockCache, w_t: Simplex, progress: Tensor, tokens: Block, window: slice
    ) -> Tensor:
        """Return `denoise(...)[:, window]`, reading only words and levels outside the window.

        What is clean reads as its own word, what is noise alone as `blank`: nothing as wide as the
        vocabulary is computed for either. The paper's form reads noise too, and so reads it all.
        """
        # Without evidence noise is read as it is, so no two noisy positions are alike.
        if not self.has_evidence:
            return super().denoise_window(cache, w_t, progress, tokens, window)
        left = self.word_before(cache.context)
        rows = partial(self.window_rows, blank=cache.blank, window=window)
        return row_by_row(rows, w_t[:, window], progress, tokens, left, cache.keys_values)

    def window_rows(
        self,
        w_t: Tensor,
        progress: Tensor,
        tokens: Block,
        left: Tensor,
        past: Tensor,
        *,
        blank: Tensor,
        window: slice,
    ) -> Tensor:
        """Return the window's logits, given its own state and the tokens around it."""
        ell, inside = self.read_state(w_t, progress[:, window], blank)
        clean = F.embedding(tokens, self.tables())
        around = torch.where((progress == 0).unsqueeze(-1), clean, blank)
        soft = torch.cat((around[:, : window.start], inside, around[:, window.stop :]), 1)
        x = self.embed_block(soft, left, progress, blank)
        return self.run_block(tokens[:, :0], x, ell, past, window)[0]

    def run_block(
        self, new: Context, x: Tensor, ell: Tensor, past: Tensor, window: slice | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run new words and the noisy block x behind them.

        Return the logits of a window of the block, and the words' keys and values.
        """
        num_past, num_new, B = past.shape[4], new.shape[1], x.shape[1]
        positions = torch.arange(num_past, num_past + num_new, device=self.device)
        positions = torch.cat((positions, self.noisy_positions(num_past + num_new, B)))
        mask = causal_mask(num_new + B, num_past, self.device) if num_new else None
        if mask is not None:
            mask[num_new:] = True  # the block sees everything, both ways
        window = window or slice(0, B)
        read = slice(num_new + window.start, num_new + window.stop)
        both = torch.cat((self.embed(new), x), 1)
        hidden, keys_values = self.run(both, positions, mask, past, read)
        logits = self.to_logits(hidden)
        return logits + ell if self.has_evidence else logits, keys_values[..., :num_new, :]

    def forward(
        self,
        tokens: Block,
        progress: Tensor,
        *,
        z: Simplex,
        blocks: Tensor,
        earlier: Earlier | None = None,
        loss: str = "cross_entropy",
    ) -> Losses:
        """Noise every token at its own level (N, L), denoise all blocks at once, return the losses.

        `blocks` (L,) numbers each position's block from the left; z (N, L, V) is standard normal,
        and may be wider than V, as a GPU likes it. With `earlier`, the network's output at those
        levels comes in by self-conditioning. With loss "l2" the blocks' is a squared distance.
        """
        noisy = self.noised(tokens, progress, z)
        belief = None if earlier is None else self.belief(tokens, earlier, blocks)
        clean, noised = self.streams(tokens, progress, noisy, blocks, belief)
        block = self.block_loss(noised.flatten(0, 1), noisy, loss)
        next_token = self.next_token_loss(clean, tokens, z.shape[-1])
        total = self.config.block_weight * block + self.config.next_token_weight * next_token
        return Losses(total, block.detach(), next_token.detach())

    def context_losses(self, tokens: Block) -> Losses:
        """Return the losses of the context stream alone; no block is noised."""
        x, length = self.embed(tokens), tokens.shape[1]
        rotary = self.rotary(torch.arange(length, device=self.device))
        for layer in self.layers:
            x = layer(x, rotary, None, 0)
        width = padded(self.V) if x.is_cuda else self.V
        next_token = self.next_token_loss(norm(x), tokens, width)
        total = self.config.next_token_weight * next_token
        if self.denoises_blocks:
            # Processes that train together wait for a gradient of every weight, if only of 0.
            named = dict(self.named_parameters())
            idle = torch.stack([named[name].sum() for name in NOISY_WEIGHTS if name in named])
            total = total + 0 * idle.sum()
        return Losses(total, torch.zeros_like(total).detach(), next_token.detach())

    def freeze_blocks(self) -> None:
        """Leave alone the weights that only noisy positions have: they would get no gradient."""
        for name, weight in self.named_parameters():
            if name in NOISY_WEIGHTS:
                weight.requires_grad_(False)

    def one_block(
        self,
        context: Context,
        block: Block,
        progress: Tensor,
        *,
        z: Simplex,
        loss: str = "cross_entropy",
    ) -> Tensor:
        """Noise one block of each row at its level (N,) and return its mean loss.

        The same as `prefill` and `denoise`, with context and block in one pass.
        """
        (num_rows, num_past), num_new = context.shape, block.shape[1]
        levels = progress.unsqueeze(1).expand(num_rows, num_new)
        noisy = self.noised(block, levels, z)
        soft = self.soft_words(noisy).unflatten(0, block.shape)
        x = self.embed_block(soft, self.word_before(context), levels, self.blank())
        both = torch.cat((self.embed(context), x), 1)
        positions = torch.arange(num_past, device=self.device)
        rotary = self.rotary(torch.cat((positions, self.noisy_positions(num_past, num_new))))
        for layer in self.layers:
            both = layer(both, rotary, None, num_new)
        hidden = norm(both[:, num_past:]).flatten(0, 1)
        return self.block_loss(hidden, noisy, loss)

    def all_logits(self, tokens: Block, progress: Tensor, *, z: Simplex, blocks: Tensor) -> Simplex:
        """Return the logits of every noised token, all blocks at once, as `denoise` gives them."""
        noisy = self.noised(tokens, progress, z)
        _, noised = self.streams(tokens, progress, noisy, blocks)
        logits = self.to_logits(noised)
        if not self.has_evidence:
            return logits
        return logits + noisy_logits(*noisy.parts())[:, : self.V].view_as(logits)

    def noised(self, tokens: Block, progress: Tensor, z: Simplex) -> Noisy:
        """Return noised tokens in factors: gain * w_t (Eq. 7), up to a constant per position."""
        return noised(tokens, progress, z, gain=self.gain(progress), K=self.K)

    def streams(
        self,
        tokens: Block,
        progress: Tensor,
        noisy: Noisy,
        blocks: Tensor,
        belief: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run [clean | noisy] through the layers; return both streams' outputs (N, L, D)."""
        length, words = tokens.shape[1], self.embed(tokens)
        soft = self.soft_words(noisy).unflatten(0, tokens.shape)
        left = words
        if self.is_shifted:
            # The left neighbour is noisy inside a block, and clean at a block's first position.
            start = self.start.to(words.dtype).expand(len(words), 1, -1)
            clean = torch.cat((start, words[:, :-1]), 1)
            noised = torch.cat((start, soft[:, :-1, : self.config.D]), 1)
            is_first = F.pad(blocks[1:] != blocks[:-1], (1, 0), value=True).to(self.device)
            left = torch.where(is_first.unsqueeze(-1), clean, noised)
        x = self.embed_noisy(soft, left, progress, self.blank())
        if self.has_memory and belief is not None:
            x = x + self.embed_belief(belief, soft)
        positions = torch.arange(length, device=self.device)
        rotary = self.rotary(torch.cat((positions, self.noisy_positions(0, length))))
        bias = noisy_bias(blocks.to(self.device), words.dtype)
        both = torch.cat((words, x), 1)
        for layer in self.layers:
            both = layer(both, rotary, bias, length)
        clean, noised = norm(both).split(length, 1)
        return clean, noised

    @torch.no_grad()
    def belief(self, tokens: Block, earlier: Earlier, blocks: Tensor) -> Tensor:
        """Return softmax(logits) @ words (N, L, D) of the logits at earlier levels."""
        before = self.noised(tokens, earlier.progress, earlier.z)
        _, hidden = self.streams(tokens, earlier.progress, before, blocks)
        hidden, words = hidden.flatten(0, 1), self.words.to(hidden.dtype)
        pieces = []
        for part in chunks(len(hidden)):  # V-wide logits of a whole batch would not fit
            logits = self.to_logits(hidden[part])
            if self.has_evidence:
                logits = logits + noisy_logits(*before.rows(part).parts())[:, : self.V]
            pieces.append(logits.softmax(-1).to(words.dtype) @ words)
        return torch.cat(pieces).unflatten(0, tokens.shape)

    def block_loss(self, hidden: Tensor, noisy: Noisy, loss: str) -> Tensor:
        """Return the mean loss of noised tokens (Eq. 8-9); evidence is added if it is used."""
        head = padded_head(self.head.to(self.dtype), self.prior, noisy.z.shape[-1])
        seen = noisy if self.has_evidence else None
        return head_loss(hidden, *head, noisy.tokens, seen, loss=loss)

    def next_token_loss(self, clean: Tensor, tokens: Block, width: int) -> Tensor:
        """Return the mean loss of the context stream's output (N, L, D); `width` pads V."""
        targets = tokens[:, 1:].flatten()
        head = padded_head(self.head.to(self.dtype), self.prior, width)
        return head_loss(clean[:, :-1].flatten(0, 1), *head, targets)

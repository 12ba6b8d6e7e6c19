"""Our denoiser: a causal context stream and a noisy block through one transformer.

    context -> words ---------------------------------> keys and values, kept; next-token logits
    w_t -> evidence ell -> softmax(log unigram + ell) -> soft words -> network + ell -> logits

The noisy block sees the context's keys and values and, both ways, itself. A noisy position starts
from its left neighbour's word, as next-token prediction does, plus what its own evidence adds; with
a clean left side and pure noise elsewhere the two tasks are one, and what is learnt is shared.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.denoiser import row_by_row
from ssdlm.denoiser.attention import noisy_bias
from ssdlm.denoiser.layer import norm
from ssdlm.denoiser.network import BlockNetwork
from ssdlm.denoiser.words import WordCache
from ssdlm.diffusion.evidence import as_levels
from ssdlm.diffusion.loss import Losses
from ssdlm.ops.cross_entropy import head_loss
from ssdlm.ops.noisy_logits import Noisy, noisy_logits
from ssdlm.ops.padding import padded, padded_head
from ssdlm.ops.rows import Rows
from ssdlm.ops.soft_embedding import chunks
from ssdlm.shapes import Block, Context, Simplex, Tensor, Tokens

NOISY_WEIGHTS = ("start", "own_embed", "simplex_embed", "time_embed", "self_embed")
"""The weights that only noisy positions have."""


class Earlier(NamedTuple):
    """Levels (N, L) and noise (N, L, V) of a first pass, for self-conditioning."""

    progress: Tensor
    z: Tensor


class BlockDenoiser(BlockNetwork):
    """logits_theta of Eq. 13 as network + ell, with the context computed once."""

    def denoise(
        self, cache: WordCache, w_t: Simplex, progress: Tensor, previous: Simplex | None = None
    ) -> Simplex:
        """Return the logits; `previous` are those of the step before, for self-conditioning."""
        return self.read_block(cache, cache.context[:, :0], w_t, progress, previous)[1]

    def read_and_denoise(
        self, cache: WordCache, new: Context, w_t: Simplex, progress: Tensor
    ) -> tuple[WordCache, Simplex]:
        """Return the longer cache and the logits behind it: context and block in one pass."""
        return self.read_block(cache, new, w_t, progress)

    def read_block(
        self,
        cache: WordCache,
        new: Context,
        w_t: Simplex,
        progress: Tensor,
        previous: Simplex | None = None,
    ) -> tuple[WordCache, Simplex]:
        """Return the cache of a context and new words, and the logits of a block behind them."""
        progress = as_levels(progress.to(self.device)).expand(w_t.shape[:2])
        context, num_new = torch.cat((cache.context, new), 1), new.shape[1]
        memory = () if previous is None else (previous,)
        enter = partial(self.entering, blank=cache.blank)
        x = row_by_row(enter, self.word_before(context), w_t, progress, *memory)
        # Where no word is before a block, its rows stand from the text's beginning on.
        first = num_new - int(self.is_shifted and context.shape[1] > 0)
        rows = Rows.block(num_new, w_t.shape[1], self.device, first=first)
        both = torch.cat((self.embed(new), x), 1)
        logits, kept = self.read(both, cache.past, rows, slice(num_new, None))
        logits = logits + self.evidence(w_t, progress) if self.has_evidence else logits
        kept = kept[..., : context.shape[1], :]
        return replace(cache, context=context, past=kept, logits=None), logits

    def entering(
        self,
        left: Tensor,
        w_t: Simplex,
        progress: Tensor,
        previous: Simplex | None = None,
        *,
        blank: Tensor,
    ) -> Tensor:
        """Return what the rows of a block read, behind the word `left` (N, 1, D)."""
        soft = self.read_state(w_t, progress, blank)
        x = self.embed_block(soft, left, progress, blank)
        if self.has_memory and previous is not None:
            belief = previous.softmax(-1).to(self.dtype) @ self.words.to(self.dtype)
            x = x + self.embed_belief(belief, soft)
        return x

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

    def noisy_rows(self, tokens: Tokens, progress: Tensor, noisy: Noisy, blocks: Tensor) -> Tensor:
        return self.streams(tokens, progress, noisy, blocks)[1]

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

    def next_token_loss(self, clean: Tensor, tokens: Block, width: int) -> Tensor:
        """Return the mean loss of the context stream's output (N, L, D); `width` pads V."""
        targets = tokens[:, 1:].flatten()
        head = padded_head(self.head.to(self.dtype), self.prior, width)
        return head_loss(clean[:, :-1].flatten(0, 1), *head, targets)

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

from ssdlm.config import BlockConfig
from ssdlm.denoiser import row_by_row
from ssdlm.denoiser.attention import causal_mask, noisy_bias
from ssdlm.denoiser.kernels.cross_entropy import block_cross_entropy, clean_cross_entropy
from ssdlm.denoiser.kernels.noisy_logits import Noisy, noisy_logits
from ssdlm.denoiser.kernels.padding import pad_prior, pad_table, padded
from ssdlm.denoiser.kernels.soft_embedding import chunks, soft_embedding
from ssdlm.denoiser.layer import norm
from ssdlm.denoiser.network import BlockNetwork
from ssdlm.diffusion import schedule
from ssdlm.shapes import Block, Context, Simplex, Tensor

NOISY_WEIGHTS = ("start", "own_embed", "simplex_embed", "time_embed", "self_embed")


class Nll(NamedTuple):
    """Mean losses of a batch, in nats a token, and each noisy token's own (N, L), detached."""

    block: Tensor
    next_token: Tensor
    per_token: Tensor


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

    @classmethod
    def from_config(cls, config: BlockConfig) -> BlockDenoiser:
        """Build the network of a configuration, with random weights."""
        return cls(config)

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
        new = row_by_row(lambda *row: self.read(*row)[1], block, cache.keys_values)
        keys_values = torch.cat((cache.keys_values, new), 4)
        return BlockCache(torch.cat((cache.context, block), 1), keys_values, cache.blank)

    def next_logits(self, cache: BlockCache, block: Block) -> Simplex:
        """Return the context stream's logits for the token after each token of a block."""
        hidden = row_by_row(lambda *row: self.read(*row)[0], block, cache.keys_values)
        return self.to_logits(hidden)

    def read(self, tokens: Block, past: Tensor) -> tuple[Tensor, Tensor]:
        """Run the context stream over tokens that follow `past`: its output, keys and values."""
        num_past, num_new = past.shape[4], tokens.shape[1]
        places = torch.arange(num_past, num_past + num_new, device=self.device)
        mask = causal_mask(num_new, num_past, self.device)
        return self.run(self.embed(tokens), places, mask, past)

    def denoise(
        self,
        cache: BlockCache,
        w_t: Simplex,
        progress: Tensor,
        previous: Simplex | None = None,
    ) -> Simplex:
        """Return the logits; `previous` are those of the step before, for self-conditioning."""
        progress = progress.to(self.device).reshape(*progress.shape, *[1] * (2 - progress.dim()))
        progress = progress.expand(w_t.shape[:2])
        last, blank = self.last_word(cache.context), cache.blank
        rows = partial(self.denoise_rows, blank=blank)
        said = () if previous is None else (previous,)
        return row_by_row(rows, w_t, progress, last, cache.keys_values, *said)

    def denoise_rows(
        self,
        w_t: Simplex,
        progress: Tensor,
        last: Tensor,
        past: Tensor,
        said: Simplex | None = None,
        *,
        blank: Tensor,
    ) -> Simplex:
        """Return the block's logits, given the word before it and the context's keys and values."""
        read = self.gain(progress).unsqueeze(-1) * w_t.float()
        soft = (self.prior + read).softmax(-1).to(self.dtype) @ self.tables()
        x = self.enter(soft, torch.cat((last, soft[:, :-1, : self.config.D]), 1), progress, blank)
        if self.config.has_self_conditioning and said is not None:
            belief = said.softmax(-1).to(self.dtype) @ self.words.to(self.dtype)
            x = x + self.believed(belief, soft)
        hidden, _ = self.run(x, self.places(past.shape[4], w_t.shape[1]), None, past)
        logits = self.to_logits(hidden)
        return logits + read if self.config.has_evidence else logits

    def denoise_window(
        self, cache: BlockCache, w_t: Simplex, progress: Tensor, tokens: Block, at: slice
    ) -> Tensor:
        """Return `denoise(...)[:, at]`; of other positions only words and levels are looked at.

        What is clean reads as its own word, what is noise alone as `blank`: nothing as wide as the
        vocabulary is computed for either. The paper's form reads noise too, and so looks at all.
        """
        if not self.config.has_evidence:
            return self.denoise(cache, w_t, progress)[:, at]
        last, blank = self.last_word(cache.context), cache.blank
        rows = partial(self.window_rows, blank=blank, at=at)
        return row_by_row(rows, w_t[:, at], progress, tokens, last, cache.keys_values)

    def window_rows(
        self,
        w: Tensor,
        progress: Tensor,
        tokens: Block,
        last: Tensor,
        past: Tensor,
        *,
        blank: Tensor,
        at: slice,
    ) -> Tensor:
        """Return the window's logits, given its own state and the tokens around it."""
        read = self.gain(progress[:, at]).unsqueeze(-1) * w.float()
        near = (self.prior + read).softmax(-1).to(self.dtype) @ self.tables()
        clean = F.embedding(tokens, self.tables())
        soft = torch.where((progress == 0).unsqueeze(-1), clean, blank)
        soft = torch.cat((soft[:, : at.start], near, soft[:, at.stop :]), 1)
        x = self.enter(soft, torch.cat((last, soft[:, :-1, : self.config.D]), 1), progress, blank)
        hidden, _ = self.run(x, self.places(past.shape[4], x.shape[1]), None, past, at)
        return self.to_logits(hidden) + read

    def noised(self, tokens: Block, progress: Tensor, z: Simplex) -> Noisy:
        """Return noised tokens in factors: gain * w_t, up to a constant a position."""
        a = schedule.cosine(progress)
        scale = self.gain(progress) * self.K
        gain_z, gain_w = scale * (1 - a).sqrt(), 2 * scale * a.sqrt()
        return Noisy(z.flatten(0, 1), tokens.flatten(), gain_z.flatten(), gain_w.flatten())

    def forward(
        self,
        tokens: Block,
        progress: Tensor,
        *,
        z: Simplex,
        blocks: Tensor,
        earlier: Earlier | None = None,
        loss: str = "cross_entropy",
    ) -> Nll:
        """Noise every token at its own level (N, L), denoise all blocks at once, return the losses.

        `blocks` (L,) numbers each position's block from the left; z (N, L, V) is standard normal,
        and may be wider than V, as a GPU likes it. With `earlier`, what the network says at those
        levels comes in by self-conditioning. With loss "l2" the blocks' is a squared distance.
        """
        noisy = self.noised(tokens, progress, z)
        belief = None if earlier is None else self.belief(tokens, earlier, blocks)
        clean, noised = self.streams(tokens, progress, noisy, blocks, belief)
        block, per_token = self.block_loss(noised.flatten(0, 1), noisy, loss)
        next_token = self.next_token_loss(clean, tokens, z.shape[-1])
        return Nll(block, next_token, per_token.view_as(progress))

    def next_token_loss(self, clean: Tensor, tokens: Block, width: int) -> Tensor:
        """Return the mean loss of the context stream's output (N, L, D); `width` pads V."""
        targets = tokens[:, 1:].flatten()
        hidden, even = clean[:, :-1].flatten(0, 1), self.even(len(targets))
        head, prior = pad_table(self.output_table(), width), pad_prior(self.prior, width)
        return clean_cross_entropy(hidden, head, prior, even, targets)[0]

    def context_loss(self, tokens: Block) -> Tensor:
        """Return the next-token loss alone, from the context stream alone."""
        x, length = self.embed(tokens), tokens.shape[1]
        turn = self.turn(torch.arange(length, device=self.device))
        for layer in self.layers:
            x = layer(x, turn, None, 0)
        return self.next_token_loss(norm(x), tokens, padded(self.V) if x.is_cuda else self.V)

    def freeze_blocks(self) -> None:
        """Leave alone the weights that only noisy positions have: they would get no gradient."""
        for name, weight in self.named_parameters():
            if name in NOISY_WEIGHTS:
                weight.requires_grad_(False)

    def no_blocks(self) -> Tensor:
        """Return 0, of which the weights that only noisy positions have get gradients of 0.

        Processes that train together wait for a gradient of every weight.
        """
        named = dict(self.named_parameters())
        return 0 * torch.stack([named[n].sum() for n in NOISY_WEIGHTS if n in named]).sum()

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
        left = torch.cat((self.last_word(context), soft[:, :-1, : self.config.D]), 1)
        both = torch.cat((self.embed(context), self.enter(soft, left, levels, self.blank())), 1)
        places = torch.arange(num_past, device=self.device)
        turn = self.turn(torch.cat((places, self.places(num_past, num_new))))
        for layer in self.layers:
            both = layer(both, turn, None, num_new)
        hidden = norm(both[:, num_past:]).flatten(0, 1)
        return self.block_loss(hidden, noisy, loss)[0]

    def soft_words(self, noisy: Noisy) -> Tensor:
        """Return softmax(prior + noisy logits) @ tables, a row for each noised token."""
        width = noisy.z.shape[-1]
        return soft_embedding(noisy, pad_prior(self.prior, width), pad_table(self.tables(), width))

    def even(self, count: int) -> Tensor:
        """Return the weights of a mean over `count` tokens."""
        return torch.full((count,), 1 / count, device=self.device)

    def all_logits(self, tokens: Block, progress: Tensor, *, z: Simplex, blocks: Tensor) -> Simplex:
        """Return the logits of every noised token, all blocks at once, as `denoise` gives them."""
        noisy = self.noised(tokens, progress, z)
        _, noised = self.streams(tokens, progress, noisy, blocks)
        logits = self.to_logits(noised)
        if not self.config.has_evidence:
            return logits
        return logits + noisy_logits(*noisy.parts())[:, : self.V].view_as(logits)

    def block_loss(self, hidden: Tensor, noisy: Noisy, loss: str) -> tuple[Tensor, Tensor]:
        """Return the mean loss of noised tokens, and each one's nats; evidence is added if used."""
        width, even = noisy.z.shape[-1], self.even(len(hidden))
        head, prior = pad_table(self.output_table(), width), pad_prior(self.prior, width)
        if self.config.has_evidence:
            return block_cross_entropy(hidden, head, prior, even, noisy, loss=loss)
        return clean_cross_entropy(hidden, head, prior, even, noisy.tokens, loss=loss)

    @torch.no_grad()
    def belief(self, tokens: Block, earlier: Earlier, blocks: Tensor) -> Tensor:
        """Return softmax(logits) @ words (N, L, D) of the logits at earlier levels."""
        before = self.noised(tokens, earlier.progress, earlier.z)
        _, hidden = self.streams(tokens, earlier.progress, before, blocks)
        hidden, words = hidden.flatten(0, 1), self.words.to(hidden.dtype)
        pieces = []
        for part in chunks(len(hidden)):
            logits = self.to_logits(hidden[part])
            if self.config.has_evidence:
                logits = logits + noisy_logits(*before.rows(part).parts())[:, : self.V]
            pieces.append(logits.softmax(-1).to(words.dtype) @ words)
        return torch.cat(pieces).unflatten(0, tokens.shape)

    def streams(
        self,
        tokens: Block,
        progress: Tensor,
        noisy: Noisy,
        blocks: Tensor,
        belief: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run [clean | noisy] through the layers; return both streams' outputs (N, L, D)."""
        length = tokens.shape[1]
        words = self.embed(tokens)
        soft = self.soft_words(noisy).unflatten(0, tokens.shape)
        left = self.left_of(words, soft, blocks) if self.config.is_shifted else words
        x = self.enter(soft, left, progress, self.blank())
        if self.config.has_self_conditioning and belief is not None:
            x = x + self.believed(belief, soft)
        places = torch.arange(length, device=self.device)
        turn = self.turn(torch.cat((places, self.places(0, length))))
        bias = noisy_bias(blocks.to(self.device), words.dtype)
        both = torch.cat((words, x), 1)
        for layer in self.layers:
            both = layer(both, turn, bias, length)
        clean, noised = norm(both).split(length, 1)
        return clean, noised

    def left_of(self, words: Tensor, soft: Tensor, blocks: Tensor) -> Tensor:
        """Return each noisy position's left neighbour: soft inside a block, clean before it."""
        start = self.start.to(words.dtype).expand(len(words), 1, -1)
        clean = torch.cat((start, words[:, :-1]), 1)
        noised = torch.cat((start, soft[:, :-1, : self.config.D]), 1)
        is_first = F.pad(blocks[1:] != blocks[:-1], (1, 0), value=True).to(self.device)
        return torch.where(is_first.unsqueeze(-1), clean, noised)

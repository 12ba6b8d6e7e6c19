"""Guesses at the tokens after a model's newest one, by narrow layers beside the frozen model.

    hidden state before the newest token, that token, a place  ->  a row for each guess
    rows -> [attention to what the model has read -> feed-forward] x layers -> the model's head
    + what the guess before adds, by a small cell  ->  log q of each guess

The rows of a pass are computed at once; the cell alone goes from guess to guess, so that the chain
of guesses is coherent. The layers have no keys of their own: they read the model's.
llama, block -> [drafter] -> diffusion.speculative, engine.programs.drafted, train.drafting
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import nn

from ssdlm.config import DrafterConfig
from ssdlm.denoiser import Denoiser, plain_products
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.llama import LlamaDenoiser, empty
from ssdlm.denoiser.slots import SlotLayer, Slots
from ssdlm.ops.guesses import Cell, Start, start_rows
from ssdlm.ops.rotary import rotate
from ssdlm.ops.rows import (
    Behind,
    Rows,
    plain_norm,
)
from ssdlm.shapes import Block, Tensor

BaseNetwork = BlockDenoiser | LlamaDenoiser


class ReadTexts(NamedTuple):
    """Texts as a model has read them."""

    hidden: Tensor
    """(N, L, D) what the head reads after each token."""
    keys_values: list[Tensor]
    """Of some layers: (2, N, heads, L, d) each."""


class DrafterLayer(nn.Module):
    """Attention to the keys and values of one layer of the model, and a feed-forward part."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        heads, self.head_size = config.num_heads * config.head_size, config.head_size
        self.query, self.out = empty(heads, config.D), empty(config.D, heads)
        self.up, self.down = empty(config.hidden, config.D), empty(config.D, config.hidden)

    def forward(self, x: Tensor, rotary: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
        """Return rows (N, R, D) after this layer; the mask (R, L) says what they see."""
        query = F.linear(plain_norm(x), self.query).unflatten(-1, (-1, self.head_size))
        query = rotate(query, rotary).transpose(1, 2)
        groups = query.shape[1] // seen.shape[2]
        keys, values = (part.repeat_interleave(groups, 1) for part in seen)
        kind = keys.dtype
        attended = F.scaled_dot_product_attention(query.to(kind), keys, values, attn_mask=mask)
        x = x + F.linear(attended.transpose(1, 2).flatten(2), self.out)
        return x + F.linear(F.relu(F.linear(plain_norm(x), self.up)).square(), self.down)


class Drafter(nn.Module):
    """What writes guesses for one model, whose weights are not among its own."""

    def __init__(self, config: DrafterConfig, network: BaseNetwork) -> None:
        super().__init__()
        # Beside the module's own parts: no file, optimiser or average has the model's weights.
        self.config, self.frozen = config, (network,)
        D, rank = config.D, config.rank
        self.into, self.places = empty(D, 2 * D), empty(config.num_guesses, D)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in config.reads)
        self.before, self.beside = empty(rank, D), empty(rank, D)
        """What the cell reads: the token before a guess, and the guess's row."""
        self.after = empty(D, rank)
        """What it adds to the row."""

    @property
    def network(self) -> BaseNetwork:
        return self.frozen[0]

    @torch.no_grad()
    def start(self, generator: torch.Generator) -> None:
        """Fill in the weights of a new drafter, which guesses what the model said last."""
        for name, weight in self.named_parameters():
            last = name.rpartition(".")[2]
            if last in ("out", "down", "after", "places"):
                weight.zero_()
                continue
            noise = torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5
            weight.copy_(noise)
        # The head's norm has weights of its own, which hidden states have gone through.
        weight = getattr(self.network, "norm", torch.ones(1)).float().cpu() * self.scales[0]
        self.into.copy_(torch.eye(*self.into.shape) / weight.clamp(min=0.2).unsqueeze(-1))

    @cached_property
    def scales(self) -> tuple[float, float]:
        """What brings hidden states and words to about size 1."""
        words, norm = self.network.words.float(), getattr(self.network, "norm", torch.ones(1))
        by_hidden, by_word = (float(x.float().square().mean().rsqrt()) for x in (norm, words))
        return by_hidden, by_word

    def own_layers(self) -> list[DrafterLayer]:
        return cast(list[DrafterLayer], list(self.layers))

    def forward(self, tokens: Block, texts: ReadTexts, anchors: Tensor) -> Tensor:
        """Return what the head is to read for the guesses after each anchor (N, A, G, D).

        An anchor is the place of a newest token; it and all behind it is not read. The tokens
        before each guess are those of the text, as if all guesses before were right.
        """
        kind = self.network.dtype
        with torch.autocast(tokens.device.type, kind, enabled=kind is torch.bfloat16):
            return self.rows(tokens, texts, anchors)

    def rows(self, tokens: Block, texts: ReadTexts, anchors: Tensor) -> Tensor:
        """Return the same in the precision that is set."""
        count = self.config.num_guesses
        places = anchors.unsqueeze(1) + torch.arange(count, device=anchors.device)  # (A, G)
        by_hidden, by_word = self.scales
        words = self.network.embed(tokens) * by_word
        newest = torch.cat((texts.hidden[:, anchors - 1] * by_hidden, words[:, anchors]), -1)
        x = F.linear(newest, self.into).unsqueeze(2) + self.places
        x = x.flatten(1, 2)
        mask = torch.arange(tokens.shape[1], device=anchors.device) < anchors.unsqueeze(1)
        mask = mask.repeat_interleave(count, 0)
        rotary = self.network.rotary(places.flatten())
        for layer, seen in zip(self.layers, texts.keys_values, strict=True):
            x = layer(x, rotary, seen, mask)
        rows = self.last_norm(x).unflatten(1, (-1, count))
        return rows + self.chained(rows, words[:, places])

    def chained(self, rows: Tensor, words: Tensor) -> Tensor:
        """Return what the cell adds to rows (N, A, G, D), the words before them being known."""
        return F.linear(
            F.silu(F.linear(words, self.before) + F.linear(rows, self.beside)), self.after
        )

    def last_norm(self, x: Tensor) -> Tensor:
        """Return what the head reads of rows, by operations that have a gradient."""
        weight = getattr(self.network, "norm", None)
        return plain_norm(x) if weight is None else plain_norm(x) * weight

    def logits(self, rows: Tensor) -> Tensor:
        """Return log q (.., V) up to a constant, by the model's own head."""
        network = self.network
        return F.linear(rows.to(network.dtype), network.head).float() + network.prior


def base_of(denoiser: Denoiser) -> BaseNetwork | None:
    """Return the network whose rows a drafter reads, None where there can be none."""
    own = getattr(denoiser, "model", denoiser)
    if not isinstance(own, BlockDenoiser | LlamaDenoiser):
        return None
    is_read = own.has_evidence and not getattr(own, "has_memory", False)
    return own if is_read and getattr(own.config, "is_shifted", True) else None


@torch.no_grad()
def read_texts(network: BaseNetwork, tokens: Block, layers: Sequence[int]) -> ReadTexts:
    """Return texts (N, L) as a model reads them, with the keys and values of some layers."""
    N, L = tokens.shape
    slots = Slots(network, N, L)
    behind = Behind(Rows.causal(L, network.device), slots.all_slots, slots.lengths)
    hidden = slots.read(network.embed(tokens), behind)
    return ReadTexts(hidden, [slots.keys_values[number].clone() for number in layers])


class GuessLayer(SlotLayer):
    """A drafter's layer for rows behind slots: it reads a model's keys, and has none of its own."""

    def __init__(self, layer: DrafterLayer, num_more: int, own: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head_size = layer.head_size
        # What lies behind the slot's keys and values is left at 0.
        self.qkv = own(F.pad(layer.query, (0, 0, 0, num_more)))
        self.out, self.up, self.down = map(own, (layer.out, layer.up, layer.down))

    def head_norms(self) -> None:
        return None


class DraftedRows:
    """A drafter while texts are written: its rows stand behind slots, in the model's numbers."""

    def __init__(self, drafter: Drafter, slots: Slots, head: Tensor, count: int) -> None:
        self.config, self.slots, self.head = drafter.config, slots, head
        network, (by_hidden, by_word) = drafter.network, drafter.scales
        self.network, D = network, drafter.config.D

        def own(weight: Tensor) -> Tensor:
            return weight.detach().to(network.device, network.dtype).contiguous()

        into = drafter.into.detach()
        parts = own(into[:, :D] * by_hidden), own(into[:, D:] * by_word)
        self.start = Start(*parts, network.words.detach(), own(drafter.places[:count]))
        self.beside = own(drafter.beside)
        more = 2 * slots.keys_values.shape[3] * slots.d
        pairs = zip(self.config.reads, drafter.own_layers(), strict=True)
        self.layers = [(number, GuessLayer(layer, more, own)) for number, layer in pairs]
        sees = torch.zeros(count, count, dtype=torch.bool, device=network.device)
        self.rows = Rows(torch.arange(count, device=network.device), sees)
        self.cell = Cell(
            network.words.detach(),
            head.contiguous(),  # rows of it are looked up
            own(drafter.before * by_word),
            own(drafter.after),
        )

    def __call__(
        self, hidden: Tensor, ends: Tensor, newest: Tensor, at: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return what the head reads for the guesses (N, G, D) behind slots `at` (N,).

        Of `hidden` (N, R, D), number `ends` (N,) is what it read before the newest tokens (N,).
        """
        how = {"is_invariant": self.slots.is_invariant, "is_single": False}
        x = start_rows(hidden, ends, newest, self.start, is_invariant=self.slots.is_invariant)
        behind = Behind(self.rows, at, lengths)
        with plain_products():
            for number, layer in self.layers:
                keys_values, rotary = self.slots.keys_values[number], self.slots.rotary
                x = layer.read(x, keys_values, behind, rotary, slice(None), how)
        return self.network.last_norm(x)

"""An encoder over texts of different lengths, for GPUs.  encoder -> [padded] -> engine.programs

Rows are a block's positions and, behind them, its context's, padded to a common length; keys that
are only padding are not looked at. The plain reference is `EncoderDenoiser.forward`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ssdlm.denoiser.encoder import HEADS, EncoderDenoiser, before_decoder
from ssdlm.ops.encoder import add_norm_, attend_all, gelu_product
from ssdlm.ops.padding import pad_prior, pad_table, padded
from ssdlm.ops.rows import has_row_kernels
from ssdlm.shapes import Tensor


class PaddedEncoder:
    """The weights of an encoder, laid out for passes over padded rows."""

    def __init__(self, denoiser: EncoderDenoiser) -> None:
        backbone = denoiser.backbone
        self.denoiser, self.dtype, self.V = denoiser, denoiser.dtype, denoiser.V
        self.H = backbone.config.num_attention_heads
        self.width = padded(self.V)
        self.table = pad_table(denoiser.simplex_embed.weight.T.to(self.dtype), self.width)
        decoder = backbone.get_output_embeddings()
        self.head = pad_table(decoder.weight.to(self.dtype), self.width)
        self.bias = pad_prior(decoder.bias.to(self.dtype), self.width)
        embeddings = backbone.base_model.embeddings
        self.norm, places = embeddings.LayerNorm, embeddings.position_embeddings
        # RoBERTa's positions start after the padding index.
        start = 0 if places.padding_idx is None else places.padding_idx + 1
        self.places = places.weight[start:] + embeddings.token_type_embeddings.weight[0]
        self.layers: list[tuple[Any, Tensor, Tensor]] = [
            (layer, *stacked(layer)) for layer in denoiser.transformer_layers()
        ]

    @staticmethod
    def takes(denoiser: Any) -> bool:
        """Tell whether there are kernels for a denoiser where it is."""
        if not isinstance(denoiser, EncoderDenoiser):
            return False
        config = denoiser.backbone.config
        size = config.hidden_size // config.num_attention_heads
        is_usual = config.hidden_act == "gelu" and not getattr(config, "is_decoder", False)
        is_absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
        is_known = config.model_type in HEADS and is_usual and is_absolute
        return is_known and has_row_kernels(denoiser.device, size)

    def embed_context(self, ids: Tensor) -> Tensor:
        """Return the embeddings (N, C, D) of contexts from their first position on."""
        return self.denoiser.words(ids) + self.places[: ids.shape[1]]

    def embed_block(
        self, weights: Tensor, sums: Tensor, progress: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return the embeddings (N, B, D) of blocks by the weights of all words, at their places.

        The weights (N * B, width) are not normed; `sums` is what they add up to.
        """
        N = len(lengths)
        soft = ((weights @ self.table) / sums).to(self.dtype).unflatten(0, (N, -1))
        time = self.denoiser.time_embed(progress.view(N, 1, 1).to(self.dtype))
        place = lengths.unsqueeze(1) + torch.arange(soft.shape[1], device=lengths.device)
        return soft + time + self.places[place.clamp(max=len(self.places) - 1)]

    def logits(self, block: Tensor, context: Tensor, lengths: Tensor, sizes: Tensor) -> Tensor:
        """Return logits (N, B, width) of blocks before contexts, both embedded and padded.

        Of a block the first `sizes` positions are there, of a context the first `lengths`.
        """
        N, B, D = block.shape
        x = self.norm(torch.cat((block, context), 1))
        R = x.shape[1]
        x = x.view(-1, D)
        for layer, qkv, qkv_bias in self.layers:
            together = F.linear(x, qkv, qkv_bias).view(N, R, 3, self.H, -1)
            count = R
            if layer is self.layers[-1][0]:  # past it nobody looks at contexts
                count, x = B, x.view(N, R, D)[:, :B].reshape(-1, D)
            seen = attend_all(together, lengths, sizes, B, count=count).view(-1, D)
            attention, output = layer.attention.output, layer.output
            x = add_norm_(x, attention.dense(seen), attention.LayerNorm)
            up = gelu_product(x, layer.intermediate.dense)
            x = add_norm_(x, output.dense(up), output.LayerNorm)
        hidden = before_decoder(self.denoiser.backbone, x)
        return F.linear(hidden, self.head, self.bias).unflatten(0, (N, B))


def stacked(layer: Any) -> tuple[Tensor, Tensor]:
    """Return the weights and biases of a layer's queries, keys and values as one."""
    own = layer.attention.self
    parts = own.query, own.key, own.value
    return torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])

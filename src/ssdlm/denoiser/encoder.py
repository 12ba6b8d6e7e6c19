"""The paper's denoiser: a bidirectional masked LM that reads tokens and simplexes alike.

    context -> word embeddings                        \\
                                                       -> masked LM -> logits of the block
    softmax(w_t) @ W_diff + W_time(t/T)               /
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from ssdlm.config import EncoderConfig
from ssdlm.denoiser import DenoiserModule, row_by_row
from ssdlm.diffusion import schedule
from ssdlm.diffusion.evidence import as_levels
from ssdlm.ops.cross_entropy import head_loss
from ssdlm.ops.noisy_logits import Noisy
from ssdlm.ops.padding import pad_prior, pad_table
from ssdlm.ops.soft_embedding import soft_embedding
from ssdlm.shapes import Block, Context, Embeddings, Simplex, Tensor
from ssdlm.values import quote

HEADS = {"roberta": "lm_head", "xlm-roberta": "lm_head", "camembert": "lm_head", "bert": "cls"}
"""Where a model type keeps its LM head; others are run whole and cut to the block."""


@dataclass(frozen=True)
class EncoderCache:
    """The context and its word embeddings; it attends to the block, so no more can be kept."""

    context: Context
    embeddings: Embeddings


class EncoderDenoiser(DenoiserModule):
    """logits_theta of Eq. 13 over any masked LM of `transformers`."""

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, backbone: Any) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        words = self.words
        self.V, width = words.weight.shape
        self.K, self.B = config.K, config.B
        self.max_len = longest_input(backbone)
        self.simplex_embed = nn.Linear(self.V, width, bias=False)
        self.time_embed = nn.Linear(1, width)
        with torch.no_grad():
            self.simplex_embed.weight.copy_(words.weight.T)

    @classmethod
    def from_config(cls, config: EncoderConfig) -> EncoderDenoiser:
        """Build the network of a configuration, with random weights."""
        return cls(config, masked_lm(config.backbone))

    @classmethod
    def from_masked_lm(cls, backbone: Any, **settings: Any) -> EncoderDenoiser:
        """Start from a pretrained masked LM: W_diff is a copy of its word embeddings."""
        return cls(EncoderConfig(backbone=describe(backbone), **settings), backbone)

    @property
    def words(self) -> nn.Embedding:
        return self.backbone.get_input_embeddings()

    @property
    def device(self) -> torch.device:
        return self.time_embed.weight.device

    def transformer_layers(self) -> list[nn.Module]:
        stacks = [part for part in self.modules() if isinstance(part, nn.ModuleList)]
        return list(max(stacks, key=len, default=[]))

    def compile_layers(self) -> None:
        for layer in self.transformer_layers():
            layer.compile(dynamic=True)  # contexts differ in length

    def prefill(self, context: Context) -> EncoderCache:
        return EncoderCache(context, self.words(context))

    def extend(self, cache: EncoderCache, block: Block) -> EncoderCache:
        return self.prefill(torch.cat((cache.context, block), 1))

    def denoise(
        self,
        cache: EncoderCache,
        w_t: Simplex,
        progress: Tensor,
        previous: Simplex | None = None,
    ) -> Simplex:
        del previous
        progress = as_levels(progress.to(w_t)).expand(w_t.shape[:2])
        inputs = cache.embeddings, w_t, progress
        # Training promises no independence of rows to the bit, and is faster with all at once.
        return self.forward(*inputs) if self.training else row_by_row(self.forward, *inputs)

    def forward(self, context: Tensor, w_t: Simplex, progress: Tensor) -> Simplex:
        """Return the block's logits; the LM head sees the block's positions only."""
        dtype = self.simplex_embed.weight.dtype
        noisy = self.simplex_embed(w_t.softmax(-1).to(dtype))
        noisy = noisy + self.time_embed(progress.unsqueeze(-1).to(dtype))
        embeddings = torch.cat((context.to(dtype), noisy), 1)
        return block_logits(self.backbone, embeddings, num_context=context.shape[1]).float()

    def one_block(
        self,
        context: Context,
        block: Block,
        progress: Tensor,
        *,
        z: Simplex,
        loss: Literal["cross_entropy", "l2"] = "cross_entropy",
    ) -> Tensor:
        """Noise one block of each row at its level (N,) and return its mean loss.

        Nothing V-wide is kept for the backward pass; z may be wider than V, as a GPU likes it.
        """
        if self.backbone.config.model_type not in HEADS:
            return super().one_block(context, block, progress, z=z, loss=loss)
        embeddings = torch.cat((self.words(context), self.embed_noised(block, progress, z)), 1)
        hidden = self.backbone.base_model(inputs_embeds=embeddings).last_hidden_state
        hidden = before_decoder(self.backbone, hidden[:, context.shape[1] :]).flatten(0, 1)
        decoder, width, dtype = self.backbone.get_output_embeddings(), z.shape[-1], self.dtype
        head = pad_table(decoder.weight.to(dtype), width)
        bias = pad_prior(decoder.bias.float(), width)
        return head_loss(hidden.to(dtype), head, bias, block.flatten(), loss=loss)

    def embed_noised(self, block: Block, progress: Tensor, z: Simplex) -> Tensor:
        """Return softmax(w_t) @ W_diff + W_time(t/T) (N, B, D) of noised tokens.

        w_t is never built: up to a constant it is noise, and a bonus at the token's own entry.
        """
        a, (num_rows, length) = schedule.cosine(progress), block.shape
        # The gain of the noise, and the token's bonus: its entry is 2 K sqrt(a) above the others.
        gains = self.K * (1 - a).sqrt(), 2 * self.K * a.sqrt()
        spread = [gain.float().repeat_interleave(length) for gain in gains]
        noisy = Noisy(z.flatten(0, 1), block.flatten(), *spread)
        nothing = torch.zeros(self.V, device=self.device)
        table, width = self.simplex_embed.weight.T.to(self.dtype), z.shape[-1]
        soft = soft_embedding(noisy, pad_prior(nothing, width), pad_table(table, width))
        time = self.time_embed(progress.to(self.time_embed.weight.dtype).view(-1, 1, 1))
        return soft.unflatten(0, (num_rows, length)) + time

    @property
    def dtype(self) -> torch.dtype:
        """The precision of matrix products: the weights', or what autocast says."""
        kind, own = self.device.type, self.simplex_embed.weight.dtype
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else own


def masked_lm(settings: dict[str, Any]) -> Any:
    """Return the masked LM that a `transformers` configuration describes, with random weights."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    kind = settings.get("model_type")
    try:
        config = AutoConfig.for_model(**settings)
        return AutoModelForMaskedLM.from_config(config)
    except Exception as error:  # from a wrong kind of value to sizes beyond any memory
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"model_type={quote(kind)} makes no masked LM with these settings ({reason}); "
            "use a RoBERTa or BERT configuration"
        ) from error


def block_logits(backbone: Any, embeddings: Tensor, *, num_context: int) -> Tensor:
    """Run a masked LM and apply its head after the context; most of the head's work is V-wide."""
    head = HEADS.get(backbone.config.model_type)
    if head is None:
        return block_logits_of_all(backbone, embeddings, num_context=num_context)
    hidden = backbone.base_model(inputs_embeds=embeddings).last_hidden_state
    head_fn: Callable[[Tensor], Tensor] = getattr(backbone, head)
    return head_fn(hidden[:, num_context:])


def before_decoder(backbone: Any, hidden: Tensor) -> Tensor:
    """Return what a masked LM's head multiplies by its V-wide matrix; `HEADS` are of two makes."""
    if backbone.config.model_type == "bert":
        return backbone.cls.predictions.transform(hidden)
    head = backbone.lm_head
    return head.layer_norm(F.gelu(head.dense(hidden)))


def block_logits_of_all(backbone: Any, embeddings: Tensor, *, num_context: int) -> Tensor:
    """Run a masked LM whole and cut: the plain reference of `block_logits`."""
    return backbone(inputs_embeds=embeddings).logits[:, num_context:]


def longest_input(backbone: Any) -> int | None:
    """Return how many positions a masked LM has room for, None if it says nothing."""
    length = getattr(backbone.config, "max_position_embeddings", None)
    embeddings = getattr(backbone.base_model, "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    if length is None or table is None or table.padding_idx is None:
        return length
    return length - table.padding_idx - 1  # RoBERTa's positions start after the padding index


def describe(backbone: Any) -> dict[str, Any]:
    """Return a backbone's configuration as JSON-ready values, defaults included.

    Defaults change between versions of `transformers`; what a checkpoint means must not.
    """
    leave = {"dtype", "torch_dtype", "transformers_version", "_name_or_path", "architectures"}
    leave |= {"id2label", "label2id"}
    settings = backbone.config.to_dict().items()
    return {key: value for key, value in settings if key not in leave and value is not None}

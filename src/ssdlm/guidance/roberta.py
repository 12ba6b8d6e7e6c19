"""A RoBERTa classifier in torch alone: importing transformers takes longer than writing a text.

folder -> [roberta] -> classifiers.load_classifier

Modules have the names that transformers gives them, so that weights and readers of its insides fit.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from ssdlm.shapes import Tensor
from ssdlm.storage.files import read_json
from ssdlm.storage.int8 import dequantise

ARCHITECTURE = "RobertaForSequenceClassification"
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}
PLAIN = {
    "model_type": ("roberta",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "position_embedding_type": ("absolute",),
    "hidden_act": tuple(ACTIVATIONS),
}
"""Settings and what they must be where config.json has them."""
STATED = ("bos_token_id", "eos_token_id", "hidden_act", "id2label")
"""Settings that config.json must have; defaults are transformers' own."""


def load_roberta(folder: Path) -> RobertaClassifier | None:
    """Return the classifier of a folder; None for any other kind, which transformers may know."""
    path = folder / "config.json"
    stored = read_json(path) if path.is_file() else {}
    is_plain = all(stored.get(name, known[0]) in known for name, known in PLAIN.items())
    if ARCHITECTURE not in (stored.get("architectures") or ()) or not is_plain:
        return None
    if not all(name in stored for name in STATED) or stored.get("pad_token_id") is None:
        return None
    try:
        with torch.device("meta"):  # sizes are held against the weights before they take memory
            classifier = RobertaClassifier(stored)
        weights = dequantise(load_file(folder / "model.safetensors"))
        classifier.load_state_dict({k: v.float() for k, v in weights.items()}, assign=True)
    except Exception:  # transformers knows more kinds of folders, and says what is wrong
        return None
    return classifier


class Found(NamedTuple):
    """What a classifier finds in texts."""

    logits: Tensor


class RobertaClassifier(nn.Module):
    """A bidirectional transformer, and a head that reads its first position."""

    def __init__(self, stored: dict[str, Any]) -> None:
        super().__init__()
        labels = {int(number): name for number, name in stored["id2label"].items()}
        own = {"id2label": labels, "num_labels": len(labels), "is_encoder_decoder": False}
        config = SimpleNamespace(**{"problem_type": None, "is_decoder": False} | stored | own)
        self.config = config
        layers = [Layer(config) for _ in range(config.num_hidden_layers)]
        encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.roberta = nn.ModuleDict({"embeddings": Embeddings(config), "encoder": encoder})
        self.classifier = Head(config.hidden_size, len(labels))

    @property
    def base_model(self) -> Any:
        return self.roberta

    @property
    def device(self) -> torch.device:
        return self.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.get_input_embeddings().weight.dtype

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.embeddings.word_embeddings

    def set_attn_implementation(self, name: str) -> None:
        """Attend with torch's own kernel, "sdpa", or by plain products, "eager"."""
        for layer in self.base_model.encoder.layer:
            layer.attention.self.is_eager = name == "eager"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Found:
        """Return the logits of each row of ids or embeddings.

        A mask has 0 where a row is padded (N, L), or is added to the scores (N, 1, L, L).
        """
        if attention_mask is not None and attention_mask.dim() == 2:
            is_padded = attention_mask.eq(0)[:, None, None]
            below_all = torch.finfo(self.dtype).min
            attention_mask = is_padded.to(self.dtype) * below_all if is_padded.any() else None
        x = self.base_model.embeddings(input_ids, inputs_embeds)
        for layer in self.base_model.encoder.layer:
            x = layer(x, attention_mask)
        return Found(self.classifier(x))


class Embeddings(nn.Module):
    """A word's vector, plus where it stands; positions count from behind the padding's index."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        D, padding = config.hidden_size, config.pad_token_id
        self.word_embeddings = table(config.vocab_size, D, padding)
        self.position_embeddings = table(config.max_position_embeddings, D, padding)
        self.token_type_embeddings = table(config.type_vocab_size, D)
        self.LayerNorm = nn.LayerNorm(D, config.layer_norm_eps)

    def forward(self, ids: Tensor | None, words: Tensor | None) -> Tensor:
        padding = self.position_embeddings.padding_idx
        assert padding is not None
        if words is None:
            assert ids is not None
            is_text = ids.ne(padding).int()
            place = (is_text.cumsum(1).type_as(is_text) * is_text).long() + padding
            known = self.word_embeddings(ids)
        else:
            known, start = words, padding + 1
            place = torch.arange(start, start + words.shape[1], device=words.device).unsqueeze(0)
        kind = self.token_type_embeddings.weight[0]
        return self.LayerNorm(known + kind + self.position_embeddings(place))


def table(rows: int, D: int, padding: int | None = None) -> nn.Embedding:
    """Return a table to be filled; torch's own first numbers would import its compiler."""
    return nn.Embedding(rows, D, padding, _weight=torch.empty(rows, D))


class Attention(nn.Module):
    """Every position reads all others."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        D, self.num_attention_heads = config.hidden_size, config.num_attention_heads
        if D % self.num_attention_heads:
            raise ValueError(f"hidden_size={D} is no multiple of {self.num_attention_heads} heads")
        self.scaling = (D // self.num_attention_heads) ** -0.5
        self.query, self.key, self.value = (nn.Linear(D, D) for _ in range(3))
        self.is_eager = False

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        heads = (part.unflatten(-1, (self.num_attention_heads, -1)) for part in parts)
        q, k, v = (head.transpose(1, 2) for head in heads)
        if not self.is_eager:
            read = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scaling)
        else:
            scores = q @ k.transpose(2, 3) * self.scaling
            read = (scores if mask is None else scores + mask).softmax(-1) @ v
        return read.transpose(1, 2).flatten(2)


class AddNorm(nn.Module):
    """A product, added to what went in and normalised."""

    def __init__(self, width: int, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class Layer(nn.Module):
    """Attention, then two products at each position alone."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        D, inner = config.hidden_size, config.intermediate_size
        self.attention = nn.ModuleDict({"self": Attention(config), "output": AddNorm(D, config)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(D, inner)})
        self.output = AddNorm(inner, config)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        read = self.attention["self"](x, mask)
        return self.feed_forward_chunk(self.attention["output"](read, x))

    def feed_forward_chunk(self, x: Tensor) -> Tensor:
        return self.output(self.activation(self.intermediate["dense"](x)), x)


class Head(nn.Module):
    """The logits of the labels, by the first position."""

    def __init__(self, D: int, num_labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(D, D)
        self.out_proj = nn.Linear(D, num_labels)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.dense(x[:, 0]).tanh())

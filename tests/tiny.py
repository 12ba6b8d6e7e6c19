"""The small models that tests share: random weights, V = 64, two layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch

from ssdlm.config import AdapterConfig, BlockConfig, CausalConfig, DrafterConfig
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.drafter import Drafter
from ssdlm.denoiser.encoder import EncoderDenoiser, masked_lm
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.tokenizer import Tokenizer

V = 64
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def encoder(kind: str = "roberta", *, V: int = V, max_len: int = 64, seed: int = 0) -> Any:
    """Return an EncoderDenoiser with random weights."""
    torch.manual_seed(seed)
    positions = max_len + 2 if kind == "roberta" else max_len
    settings = {"model_type": kind, "vocab_size": V, "max_position_embeddings": positions} | SIZES
    denoiser = EncoderDenoiser.from_masked_lm(masked_lm(settings), B=6, T=50)
    return denoiser.eval().requires_grad_(False)


def block(*, V: int = V, seed: int = 0, **settings: Any) -> BlockDenoiser:
    """Return a BlockDenoiser with random weights, none of them silent."""
    generator = torch.Generator().manual_seed(seed)
    denoiser = BlockDenoiser(BlockConfig(V=V, D=32, num_layers=2, num_heads=2, B=6, **settings))
    for weight in denoiser.parameters():
        weight.data.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    denoiser.set_unigram(torch.randint(100, (V,), generator=generator))
    return denoiser.eval().requires_grad_(False)


def llama(*, V: int = V, seed: int = 0) -> LlamaDenoiser:
    """Return a causal language model on layers of ours, with all that they can have."""
    generator = torch.Generator().manual_seed(seed)
    config = CausalConfig(
        V=V, D=32, num_layers=2, num_heads=4, num_kv_heads=2, head_size=8, hidden=48, max_len=128,
        has_qkv_bias=True, has_out_bias=True, has_qk_norms=True, rope="linear", factor=2.0,
    )  # fmt: skip
    denoiser = LlamaDenoiser(config)
    for weight in denoiser.parameters():
        weight.data.copy_(0.3 * torch.randn(weight.shape, generator=generator))
        if weight.dim() == 1:
            weight.data.add_(1.0)
    return denoiser.eval().requires_grad_(False)


def adapted(*, is_new: bool = False) -> AdaptedDenoiser:
    """Return that model with an adapter of rank 3, new or with loud weights."""
    torch.manual_seed(1)
    denoiser = AdaptedDenoiser(AdapterConfig(rank=3), llama())
    denoiser.set_unigram(torch.arange(V))
    for weight in () if is_new else denoiser.parameters():
        weight.data.normal_(0, 0.1)
    return denoiser.eval().requires_grad_(False)


def drafter(
    network: BlockDenoiser | LlamaDenoiser, *, guesses: int = 4, reads: Sequence[int] = (0, 1)
) -> Drafter:
    """Return a drafter with loud random weights, whose guesses are right by chance."""
    own, sizes = network.config, {"hidden": 16, "rank": 5, "num_guesses": guesses}
    sizes |= {"V": own.V, "D": own.D, "num_heads": own.num_heads, "head_size": network.key_shape[1]}
    config = DrafterConfig(base="tiny", digest="", reads=tuple(reads), **sizes)
    drafter = Drafter(config, network)
    generator = torch.Generator().manual_seed(0)
    for weight in drafter.parameters():
        weight.data.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return drafter.eval().requires_grad_(False)


def save_classifier(
    folder: Path,
    kind: str = "roberta",
    *,
    V: int = V,
    seed: int = 1,
    names: Sequence[str] = ("negative", "neutral", "positive"),
    **sizes: Any,
) -> Path:
    """Write a random sequence classifier with these labels."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(seed)
    labels = dict(enumerate(names))
    config = AutoConfig.for_model(
        kind, vocab_size=V, max_position_embeddings=66, id2label=labels, **SIZES | sizes
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


def save_stranger(folder: Path, *, impossible: str = "") -> Path:
    """Write a classifier of low and high that lacks a token of the model, and so has no gradient.

    One of its labels may have no chance at all, whatever it reads.
    """
    from transformers import AutoModelForSequenceClassification

    names = ("low", "high")
    save_classifier(folder, V=63, names=names)
    if impossible:
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        bias = torch.full((2,), 3e38)  # twice that is beyond float32
        bias[names.index(impossible)] *= -1
        model.classifier.out_proj.bias.data = bias
        model.save_pretrained(folder)
    text = json.loads(tokenizer().to_json())
    del text["model"]["vocab"]["2"]
    text["added_tokens"][0]["id"] = 62
    (folder / "tokenizer.json").write_text(json.dumps(text))
    return folder


def tokenizer() -> Tokenizer:
    """Return a tokenizer of 64 tokens, one a character: lower case, a few signs, end-of-text."""
    letters = "abcdefghijklmnopqrstuvwxyz .,!?'-\nABCDEFGHIJKLMNOPQRSTUVWXYZ012"
    vocabulary = {letter: index for index, letter in enumerate(letters[:63])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], fuse_unk=False))
    backend.add_special_tokens(["<|endoftext|>"])
    backend.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(backend)

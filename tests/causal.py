"""Tiny causal language models of every family, saved by transformers, with loud random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ssdlm.config import AdapterConfig
from ssdlm.options import GenerateOptions
from ssdlm.storage.checkpoint import build, save_denoiser, save_options
from ssdlm.train.checkpoints import NARROW
from tests import tiny

SIZES = {
    "vocab_size": tiny.V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 63,
    "pad_token_id": 63,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
OWN: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, "head_dim": 16},
    "llama-biased": {"model_type": "llama", "attention_bias": True},
    "llama-linear": {"model_type": "llama", "rope_parameters": LINEAR},
    "llama-3": {"model_type": "llama", "rope_parameters": LLAMA3},
    "mistral": {"model_type": "mistral", "sliding_window": 64},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
}
"""Families on layers of ours, and what is special about each."""
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
FOREIGN: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", **GPT2},
    "gpt_neox": {"model_type": "gpt_neox"},
    "opt": {"model_type": "opt", "ffn_dim": 48, "word_embed_proj_dim": 32},
    "gemma": {"model_type": "gemma", "head_dim": 8},
    "llama-yarn": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0},
    },
    "llama-mlp-bias": {"model_type": "llama", "mlp_bias": True},
}
"""Families that run by transformers' own forward pass."""


def save(folder: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write a model whose logits have a standard deviation of 2 or more, and its tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings: dict[str, Any] = SIZES | (OWN | FOREIGN)[family] | changes
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        is_norm = "norm" in name or "ln_" in name
        weight.data.copy_(1 + 0.3 * noise if is_norm and "weight" in name else 0.4 * noise)
    model.save_pretrained(folder)
    tiny.tokenizer().save(folder)
    return folder


def save_adapted(folder: Path, **changes: Any) -> Path:
    """Write a model, and a run with an adapter for it that has loud random weights."""
    base, run = save(folder / "base", "llama-tied", **changes), folder / "run"
    denoiser = build(AdapterConfig(base=str(base), rank=3))
    generator = torch.Generator().manual_seed(1)
    for weight in denoiser.parameters():
        weight.data.normal_(0, 0.1, generator=generator)
    run.mkdir()
    save_denoiser(denoiser, run)
    save_options(GenerateOptions(B=(6,), T=12).change(**NARROW), run)
    tiny.tokenizer().save(run)
    return run


def begin_with_a(folder: Path) -> None:
    """Let a folder's tokenizer put its first token before every text."""
    values = json.loads((folder / "tokenizer.json").read_text())
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "a", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(values))


def theirs(folder: Path) -> Any:
    """Return the model as transformers opens it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

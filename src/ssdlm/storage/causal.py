"""Causal language models in folders of transformers: which there are, and their weights.

config.json  model.safetensors, or shards and their index  -> families -> [causal] -> checkpoint

Some families run on layers of ours where those do all that config.json says (`families`); whatever
else transformers opens runs by its own forward pass. No code of a model is ever run.
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
from torch import Tensor, nn

from ssdlm.config import MOST
from ssdlm.denoiser.causal import CausalDenoiser
from ssdlm.denoiser.foreign import ForeignDenoiser
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.options import GenerateOptions
from ssdlm.progress import without_bars
from ssdlm.storage.families import config_of
from ssdlm.storage.files import about, read_json
from ssdlm.storage.tensors import fill, first_few, is_finite, shapes_in
from ssdlm.values import first_line, shorten

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How the names of transformers' causal language models end."""
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
UNREAD = (HEAD, "rotary_emb.inv_freq", "attn.masked_bias")
"""Tensors that a file may have for nothing: a tied head, and what old versions kept."""
FLOATS = ("F32", "F16", "BF16", "F64")
"""What a safetensors file calls the types that weights may have."""
PAGE = 4096
MOST_LAYERS = 300
"""Layers of a network that is planned before its weights are looked at."""


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
        if settings.get("quantization_config") is None:
            require_floats(path)
        shapes |= found
        home |= dict.fromkeys(found, path)
    require_room(folder, sum(prod(one.shape) for one in shapes.values()) * dtype.itemsize, device)
    require_bounds(settings, shapes, folder)
    config = config_of(settings, path=folder / CONFIG, has_head=HEAD in shapes)
    if config is None:
        return load_foreign(folder, shapes, device, dtype)
    with torch.device("meta"):  # what does not fit is refused before it fills memory
        denoiser = LlamaDenoiser(config).to(dtype)
    parts = {name: parts_of(name) for name in denoiser.state_dict()}
    known = {part for names in parts.values() for part in names}
    require_names(folder, known - shapes.keys(), shapes.keys() - known)
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


def require_floats(path: Path) -> None:
    """Refuse weights that are no floating-point numbers; masks of old versions are no weights."""
    with readable(path), safe_open(path, "pt") as stored:
        for name in stored.keys():  # noqa: SIM118
            found = stored.get_slice(name)
            is_bias = name.endswith("bias") and len(found.get_shape()) == 1
            if (name.endswith("weight") or is_bias) and found.get_dtype() not in FLOATS:
                raise ValueError(
                    f"{path}: {first_few([name])} is a {found.get_dtype()} tensor; give weights as "
                    "float32, float16, bfloat16 or float64"
                )


def parts_of(name: str) -> tuple[str, ...]:
    """Return what transformers calls a weight of ours, or the parts of it."""
    if name in AROUND:
        return AROUND[name]
    _, number, own = name.split(".")
    return tuple(f"model.layers.{number}.{part}" for part in LAYER[own])


def require_names(folder: Path, missing: set[str], unread: set[str]) -> None:
    """Refuse weights that are not those of the model that config.json describes."""
    other = "config.json describes another model"
    if missing:
        raise ValueError(f"{folder} lacks {first_few(sorted(missing))}; {other}")
    if extra := sorted(name for name in unread if not name.endswith(UNREAD)):
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


def word_tables_of(folder: Path) -> list[Tensor]:
    """Return the word embeddings of a model of our families, and its head if it has one."""
    home = {name: path for path in weight_files(folder) for name in shapes_in(path)}
    names = (*AROUND["words"], HEAD)
    return [read_tensor(home[name], name) for name in names if name in home]


def require_bounds(settings: Mapping[str, Any], shapes: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse numbers so large that even a network without memory would take for ever."""
    elements = sum(prod(one.shape) for one in shapes.values())
    for name, value in settings.items():
        if isinstance(value, dict):
            require_bounds(value, shapes, folder)
        elif isinstance(value, int):
            most = max(len(shapes), MOST_LAYERS) if "layer" in name else max(elements, MOST)
            if value > most:
                raise ValueError(
                    f"{folder / CONFIG}: {name}={shorten(str(value))} does not go with weights of "
                    f"{len(shapes)} tensors and {elements} numbers; restore the file"
                )


def load_foreign(
    folder: Path, shapes: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> CausalDenoiser:
    """Return a causal language model that runs by transformers' own forward pass.

    Transformers fills what is missing at random: that is refused, as are other shapes.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with opening(folder), torch.device("meta"):  # what does not fit must not fill the memory
        config = AutoConfig.from_pretrained(folder, **here)
        planned = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    require_weights(folder, planned, shapes, device, dtype)
    with opening(folder):
        opened: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **here
        )
    backbone, info = opened
    require_names(folder, set(info["missing_keys"]), set(info["unexpected_keys"]))
    for name, weight in backbone.named_parameters():
        if not is_finite(weight):
            raise ValueError(f"{folder}: {name} contains infinities or NaN; get the file anew")
    return ForeignDenoiser(backbone).to(device)


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Say in one line that transformers cannot open a model."""
    try:
        with without_bars():
            yield
    except Exception as error:  # unknown kinds, code of their own, wrong shapes
        raise ValueError(
            f"{folder} is no causal language model that transformers opens ({first_line(error)}); "
            "give another"
        ) from error


def require_weights(
    folder: Path,
    planned: nn.Module,
    shapes: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Refuse a network without memory for which there are not nearly enough weights, or no room."""
    stored, wanted = (
        sum(prod(one.shape) for one in tensors)
        for tensors in (shapes.values(), planned.parameters())
    )
    if wanted > 2 * stored and getattr(planned.config, "quantization_config", None) is None:
        raise ValueError(
            f"{folder / CONFIG} describes a network of {wanted} numbers, and the weights beside it "
            f"are {stored}; restore the file"
        )
    masks = sum(prod(one.shape) * one.dtype.itemsize for one in planned.buffers())
    require_room(folder, wanted * dtype.itemsize + masks, device)


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

"""Weights on disk: our folders, the authors' released layout, the Hub.  [checkpoint] -> api

config.json  model.safetensors  tokenizer.json  generation_config.json
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssdlm.config import AdapterConfig, BlockConfig, EncoderConfig
from ssdlm.denoiser import DenoiserModule, RowDenoiser
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.denoiser.encoder import EncoderDenoiser, masked_lm
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.options import GenerateOptions
from ssdlm.settings import DENOISERS, from_json, to_json
from ssdlm.storage.builtin import builtin_folder, is_builtin, refuse_unknown
from ssdlm.storage.causal import causal_options, is_causal, load_causal, weights_digest
from ssdlm.storage.families import network_digest
from ssdlm.storage.files import read_json, sha256, write_file, write_json
from ssdlm.storage.hub import download
from ssdlm.storage.int8 import SCALE, dequantise, is_quantised, quantise
from ssdlm.storage.tensors import (
    fill,
    read_stored,
    read_tensors,
    require_shapes,
    require_sizes,
    save_tensors,
    tensors_to_write,
)
from ssdlm.values import choose, quote

CONFIG, WEIGHTS, DECODING = "config.json", "model.safetensors", "generation_config.json"
MODEL_TYPE = "ssdlm"
"""What config.json calls a model of this package."""
RELEASED = ("embed_sum_layer.pt", "timestep_layer.pt")
"""What the authors' layout has beside a masked LM: W_diff and W_time."""
IDENTITY = (CONFIG, WEIGHTS, "pytorch_model.bin", *RELEASED)
IDENTITY += ("tokenizer.json", "vocab.json", "merges.txt")
"""Files that, with the generation options, decide what a model writes."""
MOST_PARAMETERS = 10**11
"""More than any machine of today has room for."""
DTYPES = ("float32", "bfloat16", "float16", "float64")


def find(
    name_or_path: str | Path, *, revision: str | None = None, local_files_only: bool = False
) -> Path:
    """Return the folder of a checkpoint: built in, a path as it is, or a Hub id downloaded.

    `revision` is a branch, tag or commit of the Hub; with `local_files_only` nothing is downloaded.
    """
    path = Path(name_or_path).expanduser()
    if revision is not None and (is_builtin(name_or_path) or path.is_dir()):
        raise ValueError(
            f"revision={revision!r} is for models of the Hub, and {name_or_path} is a folder here; "
            "leave it out"
        )
    if is_builtin(name_or_path):
        return builtin_folder(str(name_or_path))
    if path.is_dir():
        return path
    refuse_unknown(name_or_path)
    patterns = ["*.json", "*.safetensors", "*.bin", "*.pt", "*.jinja", "merges.txt"]
    options = {"revision": revision, "local_files_only": local_files_only}
    return download(str(name_or_path), patterns, **options)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that makes a checkpoint what it is."""
    paths = [folder / name for name in IDENTITY]
    return {path.name: sha256(path) for path in paths if path.exists()}


def load_denoiser(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> DenoiserModule:
    """Return the denoiser in a folder, ours or the authors' layout, ready to decode.

    With dtype "auto" it is bfloat16 where that was measured to write as well: a model of ours with
    a context stream, on a GPU. Else it is float32.
    """
    choose("dtype", dtype, ("auto", *DTYPES))
    target = resolve_device(device)
    settings = read_json(folder / CONFIG)
    if is_ours(folder):
        denoiser = load_ours(folder)
    elif is_released(folder):
        denoiser = load_released(folder, settings)
    elif is_causal(folder):
        if dtype == "auto":
            dtype = "bfloat16" if target.type == "cuda" else "float32"
        denoiser = load_causal(folder, target, getattr(torch, dtype))
    else:
        raise ValueError(
            f"{folder} contains a {quote(settings.get('model_type'))} model without "
            f"{' and '.join(RELEASED)}; give an SSD-LM checkpoint or a causal language model "
            "(architectures ...ForCausalLM), or train from it with init="
        )
    if dtype == "auto":
        is_half = target.type == "cuda" and isinstance(denoiser, RowDenoiser)
        dtype = "bfloat16" if is_half else "float32"
    denoiser = denoiser.to(device=target, dtype=getattr(torch, dtype)).eval().requires_grad_(False)
    require_running(denoiser, folder)
    return denoiser


def require_running(denoiser: DenoiserModule, folder: Path) -> None:
    """Refuse settings with which a network can be built but not be run: a few words are tried.

    Of one word the attention is certain, and what an adapter adds shows from two open ones on.
    """
    try:
        room = (denoiser.max_len or 5) - 1
        width = max(1, min(denoiser.most_open or 2, room))
        length = max(1, min(3, room - width + 1))
        context = torch.zeros(1, length, dtype=torch.long, device=denoiser.device)
        w_t = torch.zeros(1, width, denoiser.V, device=denoiser.device)
        logits = denoiser.denoise(denoiser.prefill(context), w_t, torch.tensor(0.5).to(w_t))
        reason = "" if bool(logits.isfinite().all()) else "its logits are not finite"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # odd settings fail in many ways
        reason = " ".join(str(error).split())[:200] or type(error).__name__
    if reason:
        raise ValueError(
            f"{folder / CONFIG} describes a network that does not run ({reason}); restore the file"
        )


def is_ours(folder: Path) -> bool:
    """Tell whether a folder contains a denoiser that this package wrote."""
    path = folder / CONFIG
    return path.is_file() and read_json(path).get("model_type") == MODEL_TYPE


def is_released(folder: Path) -> bool:
    """Tell whether a folder has the authors' layout."""
    return all((folder / name).exists() for name in RELEASED)


def resolve_device(device: str) -> torch.device:
    """Return a device by name; "auto" is a GPU where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
        torch.zeros(1, device=resolved).item()  # fails without such a device, or on "meta"
    except Exception as error:  # each kind of device fails in its own way
        reason = " ".join(str(error).split("\n")[0].split())[:200] or type(error).__name__
        raise ValueError(
            f"device={quote(device)} is not there ({reason}); use auto or cpu"
        ) from error
    return resolved


def resolve_dtype(dtype: str) -> torch.dtype:
    """Return a type of numbers by name, with torch. before it or without."""
    return getattr(torch, choose("dtype", dtype.removeprefix("torch."), DTYPES))


def load_ours(folder: Path) -> DenoiserModule:
    """Return the denoiser that `save_denoiser` wrote."""
    config, source = read_config(folder), folder / WEIGHTS
    stored = read_stored(source)
    sizes = config.backbone if isinstance(config, EncoderConfig) else vars(config)
    require_sizes(sizes, stored, source=source)
    with torch.device("meta"):  # what does not fit is refused before it fills memory
        denoiser = build(config)  # the model under an adapter is read all the same
    own = denoiser.state_dict()
    require_shapes(own, stored, source=source)
    known = {key: value for key, value in stored.items() if key.removesuffix(SCALE) in own}
    tensors = dequantise(known) | {k: v for k, v in stored.items() if k not in known}
    if isinstance(config, EncoderConfig):  # it has tied weights, and buffers that no file contains
        denoiser = build(config)
    fill(denoiser, tensors, source=source, is_copied=not is_quantised(stored))
    return denoiser


def read_config(folder: Path) -> EncoderConfig | BlockConfig | AdapterConfig:
    """Return the denoiser's settings in the config.json of a folder of ours."""
    settings = read_json(folder / CONFIG)
    kind, path = settings.get("denoiser", ""), folder / CONFIG
    if not isinstance(kind, str) or kind not in DENOISERS:
        raise ValueError(f"{path}: denoiser={quote(kind)} is not one of {list(DENOISERS)}")
    known = {k: v for k, v in settings.items() if k not in ("model_type", "architectures")}
    try:
        return from_json(DENOISERS[kind], known)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def build(config: EncoderConfig | BlockConfig | AdapterConfig) -> DenoiserModule:
    """Return a denoiser with random weights; those under an adapter are a language model's."""
    if isinstance(config, AdapterConfig):
        return build_adapted(config)
    if isinstance(config, EncoderConfig):
        return EncoderDenoiser.from_config(config)
    from ssdlm.denoiser.block import BlockDenoiser

    sizes = ("V", "D", "num_layers", "num_heads", "expansion")
    if any(getattr(config, name) < 1 for name in sizes) or config.D % config.num_heads:
        given = ", ".join(f"{name}={getattr(config, name)}" for name in sizes)
        raise ValueError(f"no network has {given}; use 1 or more, D a multiple of num_heads")
    per_layer = (4 + 2 * config.expansion) * config.D**2
    if config.V * config.D + config.num_layers * per_layer > MOST_PARAMETERS:
        given = ", ".join(f"{name}={getattr(config, name)}" for name in sizes)
        raise ValueError(f"there is no room for a network of {given}; use smaller sizes")
    return BlockDenoiser(config)


def build_adapted(config: AdapterConfig) -> AdaptedDenoiser:
    """Return a language model with an adapter that changes nothing; another model is refused."""
    if not config.base:
        raise ValueError("the adapter has no language model; give init=MODEL, such as smollm2")
    folder = find(config.base)
    if not is_causal(folder):
        raise ValueError(
            f"{config.base} is no causal language model (architectures ...ForCausalLM), which an "
            "adapter is for; give another"
        )
    digest = weights_digest(folder)
    if config.digest not in ("", digest):
        raise ValueError(
            f"the adapter is for other weights than those of {config.base} ({folder}); give it the "
            f"model it was trained with, whose digest is {config.digest[:12]}"
        )
    model = load_causal(folder, torch.device("cpu"), torch.float32)
    if not isinstance(model, LlamaDenoiser):
        raise ValueError(
            f"{config.base} runs by transformers' own code, which takes no adapter; give a model "
            "of the Llama family"
        )
    network = network_digest(model.config)
    if config.network not in ("", network):
        raise ValueError(
            f"{folder / CONFIG} has other settings than when the adapter was trained with "
            f"{config.base}; restore the file"
        )
    return AdaptedDenoiser(replace(config, digest=digest, network=network), model)


def load_released(folder: Path, settings: dict[str, Any]) -> EncoderDenoiser:
    """Return the denoiser in the authors' layout: masked LM, W_diff and W_time in three files."""
    if "model_type" not in settings:
        raise ValueError(
            f"{folder / CONFIG} names no model_type; it should be a masked LM's config"
        )
    weights = WEIGHTS if (folder / WEIGHTS).exists() else "pytorch_model.bin"
    tensors = {name: read_tensors(folder / name) for name in (weights, *RELEASED)}
    require_sizes(settings, tensors[weights], source=folder / weights)
    with torch.device("meta"):  # sizes that do not fit are refused before they fill the memory
        require_shapes(masked_lm(settings).state_dict(), tensors[weights], source=folder / weights)
    denoiser = EncoderDenoiser.from_masked_lm(masked_lm(settings))
    modules = denoiser.backbone, denoiser.simplex_embed, denoiser.time_embed
    for (name, values), module in zip(tensors.items(), modules, strict=True):
        fill(module, values, source=folder / name)
    return denoiser


def save_denoiser(
    denoiser: DenoiserModule, folder: Path, tensors: dict[str, Tensor] | None = None
) -> None:
    """Write config.json and model.safetensors into an existing folder, each in one move.

    `tensors` are written instead of the denoiser's own: gathered shards, a moving average.
    """
    chosen = tensors_to_write(denoiser) if tensors is None else tensors
    write_file(folder / WEIGHTS, lambda path: save_tensors(chosen, path))
    save_config(denoiser, folder)


def save_config(denoiser: DenoiserModule, folder: Path) -> None:
    """Write config.json into an existing folder."""
    settings = {"model_type": MODEL_TYPE, "architectures": [type(denoiser).__name__]}
    write_json(folder / CONFIG, settings | to_json(denoiser.config))


def save_as_int8(denoiser: DenoiserModule, folder: Path) -> None:
    """Write the same with every matrix as int8 and fp16 scales, in a quarter of the space."""
    save_denoiser(denoiser, folder, quantise(tensors_to_write(denoiser)))


def load_options(folder: Path) -> GenerateOptions | None:
    """Return the folder's own generation options, None if it has none."""
    path = folder / DECODING
    if is_causal(folder):
        return causal_options(folder)
    if not path.exists():
        return None
    try:
        values: dict[str, Any] = read_json(path)
        if "threshold" in values:  # of a folder from when any word could be helped
            values.setdefault("plausible", 0.0)
        return GenerateOptions().change(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def save_options(options: GenerateOptions, folder: Path) -> None:
    """Write generation_config.json."""
    write_json(folder / DECODING, options.to_json(is_stored=True))

"""Weights on disk: our folders, the authors' released layout, the Hub.  [checkpoint] -> api

config.json  model.safetensors  tokenizer.json  generation_config.json
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ssdlm.config import BlockConfig, DecodeConfig, EncoderConfig, choose
from ssdlm.denoiser.encoder import EncoderDenoiser, masked_lm
from ssdlm.settings import DENOISERS, from_json, to_json
from ssdlm.storage.builtin import PREFIX, builtin_folder
from ssdlm.storage.files import write, write_json
from ssdlm.storage.int8 import dequantise, quantise

CONFIG, WEIGHTS, DECODING = "config.json", "model.safetensors", "generation_config.json"
RELEASED = ("embed_sum_layer.pt", "timestep_layer.pt")
"""What the authors' layout has beside a masked LM: W_diff and W_time."""
DTYPES = ("float32", "bfloat16", "float16", "float64")
LEGACY = ("position_ids", "pooler.", "seq_relationship.")
"""Entries of old checkpoints that no masked LM reads."""


def find(name_or_path: str | Path) -> Path:
    """Return the folder of a checkpoint: built in, a path as it is, or a Hub id downloaded."""
    if str(name_or_path).startswith(PREFIX):
        return builtin_folder(str(name_or_path))
    path = Path(name_or_path)
    if path.is_dir():
        return path
    if path.exists() or str(name_or_path).count("/") != 1 or str(name_or_path).startswith("."):
        raise ValueError(f"{name_or_path} is not a folder with a checkpoint, nor a Hub id org/name")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.bin", "*.pt", "merges.txt"]
    try:
        return Path(snapshot_download(str(name_or_path), allow_patterns=patterns))
    except Exception as error:
        told = str(error).splitlines()[0]
        raise ValueError(
            f"{name_or_path} is no folder here and the Hub did not give it ({told}); "
            "check the name, or give a folder"
        ) from error


def load_denoiser(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> Any:
    """Return the denoiser in a folder, ours or the authors' layout, ready to decode."""
    choose("dtype", dtype, DTYPES)
    place = place_of(device)
    settings = read_json(folder / CONFIG)
    if settings.get("model_type") == "ssdlm":
        denoiser = load_ours(folder, settings)
    elif all((folder / name).exists() for name in RELEASED):
        denoiser = load_released(folder, settings)
    else:
        raise ValueError(
            f"{folder} holds a {settings.get('model_type')!r} model without "
            f"{' and '.join(RELEASED)}; give an SSD-LM checkpoint, or train from it with init="
        )
    return denoiser.to(device=place, dtype=getattr(torch, dtype)).eval().requires_grad_(False)


def place_of(device: str) -> torch.device:
    """Return a device by name; "auto" is a GPU where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # fails where there is no device, or nothing behind it
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={device!r} is not there ({str(error).splitlines()[0]}); use auto or cpu"
        ) from error
    return place


def load_ours(folder: Path, settings: dict[str, Any]) -> nn.Module:
    """Return the denoiser that `save_denoiser` wrote."""
    config, source = config_of(folder, settings), folder / WEIGHTS
    tensors = read_tensors(source)
    with torch.device("meta"), unfilled():  # what does not fit is refused before it fills memory
        denoiser = build(config)
    require_shapes(denoiser.state_dict(), tensors, source=source)
    if isinstance(config, EncoderConfig):  # it has tied weights, and buffers that no file holds
        denoiser = build(config)
    fill(denoiser, tensors, source=source)
    return denoiser


class unfilled(TorchFunctionMode):
    """Networks are built as shapes: no random weight is drawn, or scaled."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.mul:
            return args[0]
        return (torch.empty if func is torch.randn else func)(*args, **(kwargs or {}))


def config_of(folder: Path, settings: dict[str, Any]) -> EncoderConfig | BlockConfig:
    """Return the denoiser's own settings from those of config.json."""
    kind = settings.get("denoiser", "")
    if not isinstance(kind, str) or kind not in DENOISERS:
        raise ValueError(f"{folder / CONFIG}: denoiser={kind!r} is not one of {list(DENOISERS)}")
    known = {k: v for k, v in settings.items() if k not in ("model_type", "architectures")}
    return from_json(DENOISERS[kind], known)


def build(config: EncoderConfig | BlockConfig) -> nn.Module:
    """Return a denoiser with random weights."""
    if isinstance(config, EncoderConfig):
        return EncoderDenoiser.from_config(config)
    from ssdlm.denoiser.block import BlockDenoiser

    sizes = ("V", "D", "num_layers", "num_heads", "expansion")
    if any(getattr(config, name) < 1 for name in sizes) or config.D % config.num_heads:
        told = ", ".join(f"{name}={getattr(config, name)}" for name in sizes)
        raise ValueError(f"no network has {told}; use 1 or more of each, D a multiple of num_heads")
    return BlockDenoiser(config)


def load_released(folder: Path, settings: dict[str, Any]) -> EncoderDenoiser:
    """Return the denoiser in the authors' layout: masked LM, W_diff and W_time in three files."""
    if "model_type" not in settings:
        raise ValueError(
            f"{folder / CONFIG} names no model_type; it should be a masked LM's config"
        )
    weights = WEIGHTS if (folder / WEIGHTS).exists() else "pytorch_model.bin"
    tensors = {name: read_tensors(folder / name) for name in (weights, *RELEASED)}
    with torch.device("meta"):  # sizes that do not fit are refused before they fill the memory
        require_shapes(masked_lm(settings).state_dict(), tensors[weights], source=folder / weights)
    denoiser = EncoderDenoiser.from_masked_lm(masked_lm(settings))
    modules = denoiser.backbone, denoiser.simplex_embed, denoiser.time_embed
    for (name, values), module in zip(tensors.items(), modules, strict=True):
        fill(module, values, source=folder / name)
    return denoiser


def fill(module: nn.Module, tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Copy tensors into a module, which may be on no device yet; every name and shape must fit.

    A leading `module.` is dropped, entries of old versions are ignored, and a tensor that is tied
    to another may be absent.
    """
    tensors, own = renamed(tensors), module.state_dict()
    where = {key: key if value.is_meta else value.data_ptr() for key, value in own.items()}
    given = {where[key]: value for key, value in tensors.items() if key in own}
    if missing := [key for key in own if where[key] not in given]:
        raise ValueError(f"{source} lacks {some(missing)}; config.json describes another model")
    if extra := [key for key in tensors if key not in own]:
        raise ValueError(f"{source} also holds {some(extra)}; config.json describes another model")
    require_shapes(own, tensors, source=source)
    for key, value in tensors.items():
        if not bool(value.isfinite().all()):
            raise ValueError(f"{source}: {key} holds infinities or NaN; get the file anew")
        twin = given[where[key]]
        if twin is not value and not torch.equal(value, twin):
            raise ValueError(
                f"{source}: {key} differs from the tensor it is tied to; "
                "set tie_word_embeddings to false in config.json"
            )
    for key, value in tensors.items():
        if own[key].is_meta:
            tensors[key] = value.to(own[key].dtype, copy=True)  # a file's own memory may change
    module.load_state_dict(tensors, strict=False, assign=any(x.is_meta for x in own.values()))


def renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without a leading `module.` and without what only old versions had."""
    plain = {key.removeprefix("module."): value for key, value in tensors.items()}
    return {key: value for key, value in plain.items() if not is_legacy(key)}


def require_shapes(
    own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, source: Path
) -> None:
    """Refuse tensors of other shapes than a module's own of the same names."""
    for key, value in renamed(tensors).items():
        if key in own and value.shape != own[key].shape:
            raise ValueError(
                f"{source}: {key} is {tuple(value.shape)} where config.json means "
                f"{tuple(own[key].shape)}; the two belong to different models"
            )


def is_legacy(key: str) -> bool:
    """Tell whether an entry is one that only older versions of a masked LM had."""
    return any(part in key for part in LEGACY)


def some(names: list[str]) -> str:
    """Return the first few of many names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; is {path.parent} a checkpoint's folder?") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}); restore the file") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, not an object; restore the file")
    return values


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a weight file, int8 ones as floats.

    A pickle is read as data and never runs code.
    """
    if not path.exists():
        raise ValueError(f"{path} is missing; copy the whole checkpoint folder")
    try:
        if path.suffix == ".safetensors":
            return dequantise(load_file(path))
        values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        unsafe = "weights_only" in str(error) or "WeightsUnpickler" in str(error)
        why = "wants to run code when opened" if unsafe else "is truncated or corrupt"
        if isinstance(error, PermissionError | IsADirectoryError):
            raise
        raise ValueError(f"{path} {why}; get it anew from a source you trust") from error
    if not is_state_dict(values):
        raise ValueError(f"{path} holds no state dict of tensors; get it anew")
    return values


def is_state_dict(values: Any) -> bool:
    """Tell whether a loaded object maps names to tensors."""
    return isinstance(values, Mapping) and all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in values.items()
    )


def save_denoiser(denoiser: Any, folder: Path, tensors: dict[str, Tensor] | None = None) -> None:
    """Write config.json and model.safetensors into an existing folder, each in one move.

    `tensors` are written instead of the denoiser's own: gathered shards, a moving average.
    """
    settings = {"model_type": "ssdlm", "architectures": [type(denoiser).__name__]}
    chosen = unique_tensors(denoiser) if tensors is None else tensors
    write(folder / WEIGHTS, lambda path: save_file(chosen, path, {"format": "pt"}))
    write_json(folder / CONFIG, settings | to_json(denoiser.config))


def save_as_int8(denoiser: Any, folder: Path) -> None:
    """Write the same with every matrix as int8 and fp16 scales, in a quarter of the space."""
    save_denoiser(denoiser, folder, quantise(unique_tensors(denoiser)))


def unique_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors, those that are tied once."""
    unique = {value.data_ptr(): key for key, value in reversed(module.state_dict().items())}
    names = set(unique.values())
    return {k: v.contiguous().cpu() for k, v in module.state_dict().items() if k in names}


def load_decoding(folder: Path) -> DecodeConfig | None:
    """Return the folder's own decoding settings, None if it has none."""
    path = folder / DECODING
    return from_json(DecodeConfig, read_json(path)) if path.exists() else None


def save_decoding(decoding: DecodeConfig, folder: Path) -> None:
    """Write generation_config.json."""
    write_json(folder / DECODING, to_json(decoding))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes `path` when the block ends well, else vanishes."""
    if path.exists():
        raise ValueError(f"{path} exists already; choose another name or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

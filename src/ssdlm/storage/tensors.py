"""Tensors in files: read without running code, checked, put into modules.  int8 -> [tensors]"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ssdlm.config import MOST
from ssdlm.storage.files import about
from ssdlm.storage.int8 import SCALE, dequantise
from ssdlm.values import shorten

LEGACY = ("position_ids", "pooler.", "seq_relationship.")
"""Entries of old checkpoints that no masked LM reads."""
STORED_AS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
"""What a safetensors file calls the types that a network in training has."""
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SIZES = ("V", "D", "expansion", "max_position_embeddings")
"""Settings that are sizes, beside those named `num_...` and `..._size`."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a weight file, int8 ones as floats."""
    return dequantise(read_stored(path))


def read_stored(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a weight file as they are stored.

    A pickle is read as data and never runs code.
    """
    if not path.exists():
        raise ValueError(f"{path} is missing; copy the whole checkpoint folder")
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
            require_numbers(tensors, path)
            return tensors
        values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        unsafe = "weights_only" in str(error) or "WeightsUnpickler" in str(error)
        why = "wants to run code when opened" if unsafe else "is truncated or corrupt"
        if isinstance(error, PermissionError | IsADirectoryError | ValueError):
            raise
        raise ValueError(f"{path} {why}; get it anew from a source you trust") from error
    is_state_dict = isinstance(values, Mapping) and all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in values.items()
    )
    if not is_state_dict:
        raise ValueError(f"{path} contains no state dict of tensors; get it anew")
    require_numbers(values, path)
    return dict(values)


def require_numbers(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that are not plain arrays of numbers, or int8 without its scales."""
    for key, value in tensors.items():
        scale = tensors.get(key + SCALE)
        if scale is None:
            continue
        if value.dtype is not torch.int8 or scale.shape != value.shape[:-1]:
            kind = str(value.dtype).removeprefix("torch.")
            raise ValueError(
                f"{path}: {first_few([key])} is {kind} {tuple(value.shape)} and its scales are "
                f"{tuple(scale.shape)}, where int8 has one for each row; get the file anew"
            )
    for key, value in without_legacy(tensors).items():
        is_plain = value.layout is torch.strided and not value.is_meta and not value.is_quantized
        has_scale = value.dtype is torch.int8 and key + SCALE in tensors
        if not is_plain or not (value.dtype in FLOATS or has_scale):
            kind = str(value.dtype if is_plain else value.layout).removeprefix("torch.")
            kind = "meta" if value.is_meta else kind
            raise ValueError(
                f"{path}: {first_few([key])} is a {kind} tensor; give weights as plain float32, "
                "float16, bfloat16 or float64, or make int8 with `ssdlm convert --quantise int8`"
            )


def shapes_in(path: Path) -> dict[str, Tensor]:
    """Return a safetensors file's tensors as shapes without memory; the types are not theirs."""
    with safe_open(path, "pt") as stored:
        shapes = {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def names_in(path: Path) -> list[str]:
    """Return the names of a safetensors file's tensors."""
    with safe_open(path, "pt") as stored:
        return list(stored.keys())


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file; the library's errors become those of the operating system."""
    with as_os_errors(path):
        save_file(tensors, path, {"format": "pt"})


def write_one_by_one(path: Path, like: Mapping[str, Tensor], read: Callable[[str], Tensor]) -> None:
    """Write a safetensors file of tensors that are never in memory all at once.

    `like` has their names, shapes and types; `read` returns one of them whole.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in like.items():
        begin, end = end, end + prod(tensor.shape) * tensor.dtype.itemsize
        kind = STORED_AS[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with about(path), open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in like:
            file.write(read(name).contiguous().flatten().view(torch.uint8).numpy().data)


@contextmanager
def as_os_errors(path: Path) -> Iterator[None]:
    """Raise what the library says of a file that cannot be written as the operating system does."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


def require_sizes(sizes: Mapping[str, Any], tensors: Mapping[str, Any], *, source: Path) -> None:
    """Refuse sizes of a network that weights of these shapes cannot have, before it is built."""
    elements = sum(prod(value.shape) for value in tensors.values())
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        is_size = name in SIZES or name.startswith("num_") or name.endswith("_size")
        most = len(tensors) if "layers" in name else max(elements, MOST)
        if value > most or (is_size and value < 1):
            raise ValueError(
                f"config.json: {name}={shorten(str(value))} does not go with {source}, which has "
                f"{len(tensors)} tensors and {elements} numbers; the two belong to different models"
            )


def fill(
    module: nn.Module, tensors: Mapping[str, Tensor], *, source: Path, is_copied: bool = True
) -> None:
    """Copy tensors into a module, which may be on no device yet; every name and shape must fit.

    A leading `module.` is dropped, entries of old versions are ignored, and a tensor that is tied
    to another may be absent. Without `is_copied` a module on no device takes the tensors over.
    """
    tensors, own = without_legacy(tensors), module.state_dict()
    # Tied tensors share their memory: what is given for one of them is given for all.
    memory = {key: key if value.is_meta else value.data_ptr() for key, value in own.items()}
    given = {memory[key]: value for key, value in tensors.items() if key in own}
    other_model = "config.json describes another model"
    if missing := [key for key in own if memory[key] not in given]:
        raise ValueError(f"{source} lacks {first_few(missing)}; {other_model}")
    if extra := [key for key in tensors if key not in own]:
        raise ValueError(f"{source} also contains {first_few(extra)}; {other_model}")
    require_shapes(own, tensors, source=source)
    for key, value in tensors.items():
        if not is_finite(value):
            raise ValueError(f"{source}: {key} contains infinities or NaN; get the file anew")
        tied = given[memory[key]]
        if tied is not value and not torch.equal(value, tied):
            raise ValueError(
                f"{source}: {key} differs from the tensor it is tied to; "
                "set tie_word_embeddings to false in config.json"
            )
    for key, value in tensors.items():
        if own[key].is_meta:
            # Memory of a file may change with it.
            tensors[key] = value.to(own[key].dtype, copy=is_copied)
    module.load_state_dict(tensors, strict=False, assign=any(x.is_meta for x in own.values()))


def is_finite(tensor: Tensor) -> bool:
    """Tell whether all numbers are; one sum is fast, and says so unless it overflows."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def without_legacy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without a leading `module.` and without what only old versions had."""
    plain = {key.removeprefix("module."): value for key, value in tensors.items()}
    return {key: value for key, value in plain.items() if not any(part in key for part in LEGACY)}


def require_shapes(
    own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, source: Path
) -> None:
    """Refuse tensors of other shapes than a module's own of the same names."""
    for key, value in without_legacy(tensors).items():
        if key in own and value.shape != own[key].shape:
            raise ValueError(
                f"{source}: {key} is {tuple(value.shape)} where config.json means "
                f"{tuple(own[key].shape)}; the two belong to different models"
            )


def first_few(names: list[str]) -> str:
    """Return the first few of many names."""
    shown = ", ".join(shorten(name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def unique_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's weights and buffers by name, themselves and not copies; tied ones once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        found.setdefault(id(value), (name, value))
    return dict(found.values())


def tensors_to_write(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors as a file takes them, those that are tied once."""
    own = unique_tensors(module)
    return {name: value.detach().contiguous().cpu() for name, value in own.items()}

"""Drafters on disk: small folders that name the model they were trained with by its digest.

    config.json  model.safetensors (int8)  README.md

tensors, int8 -> [drafter] -> train.drafting, api
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ssdlm.config import DrafterConfig
from ssdlm.denoiser.drafter import BaseNetwork, Drafter
from ssdlm.settings import from_json, to_json
from ssdlm.shapes import Tensor
from ssdlm.storage.builtin import MODELS, SMOLLM2, unpacked_smollm2
from ssdlm.storage.causal import weights_digest
from ssdlm.storage.files import read_json, write_file, write_json
from ssdlm.storage.int8 import quantise
from ssdlm.storage.tensors import fill, read_tensors, save_tensors
from ssdlm.values import quote

CONFIG, WEIGHTS = "config.json", "model.safetensors"
KIND = "ssdlm-drafter"
"""What config.json calls a drafter."""
BESIDE = "drafter"
"""The folder of a model's own drafter, within the model's."""


def save_drafter(config: DrafterConfig, weights: dict[str, Tensor], folder: Path) -> None:
    """Write a drafter into an existing folder: its matrices as int8, with a scale for each row."""
    small = {name: value.contiguous().cpu() for name, value in quantise(weights).items()}
    write_file(folder / WEIGHTS, lambda path: save_tensors(small, path))
    write_json(folder / CONFIG, {"model_type": KIND} | to_json(config))


def find_drafter(home: Path) -> Path | None:
    """Return the drafter that comes with the model in a folder: within it, or built in."""
    shipped = {MODELS / "mini": "mini", unpacked_smollm2(): SMOLLM2}.get(home)
    places = [home / BESIDE, *([MODELS / "drafters" / shipped] if shipped else [])]
    return next((place for place in places if (place / CONFIG).is_file()), None)


def load_drafter(folder: Path, network: BaseNetwork, home: Path) -> Drafter:
    """Return the drafter in a folder for a model; one of another model is refused.

    `home` is the model's own folder.
    """
    path = folder / CONFIG
    settings: dict[str, Any] = read_json(path)
    if settings.pop("model_type", None) != KIND:
        raise ValueError(
            f"{folder} contains no drafter; give a folder that `ssdlm train-drafter` wrote"
        )
    try:
        config = from_json(DrafterConfig, settings)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    require_base(config, network, folder, home)
    with torch.device("meta"):
        drafter = Drafter(config, network)
    fill(drafter, read_tensors(folder / WEIGHTS), source=folder / WEIGHTS)
    return drafter.to(network.device).eval().requires_grad_(False)


def require_base(config: DrafterConfig, network: BaseNetwork, folder: Path, home: Path) -> None:
    """Refuse a drafter of another model than the one in a folder."""
    remedy = f"give a drafter of this model, or the model {quote(config.base)}"
    if config.V != network.V:
        raise ValueError(
            f"the drafter in {folder} has a vocabulary of {config.V}, and {home} one of "
            f"{network.V}; {remedy}"
        )
    if config.digest != weights_digest(home):
        raise ValueError(
            f"the drafter in {folder} was trained with {quote(config.base)}, and {home} has other "
            f"weights; {remedy}"
        )
    own = network.config.D, network.config.num_heads, network.key_shape[1]
    fits = (config.D, config.num_heads, config.head_size) == own
    if not fits or not all(0 <= layer < network.config.num_layers for layer in config.reads):
        raise ValueError(f"{folder / CONFIG} describes another drafter; restore the file")

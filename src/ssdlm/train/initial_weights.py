"""The weights that a run begins with: random, a checkpoint's, or a masked LM's.

checkpoint, shards -> [initial_weights] -> sharded_weights, run, resume
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ssdlm.config import AdapterConfig, BlockConfig, Config, EncoderConfig
from ssdlm.data.shards import TokenStore
from ssdlm.denoiser import DenoiserModule
from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.progress import without_bars
from ssdlm.shapes import Tensor
from ssdlm.storage import checkpoint
from ssdlm.storage.builtin import is_builtin
from ssdlm.storage.hub import for_transformers
from ssdlm.tokenizer import FILE_NAME, load_tokenizer, require_tokens
from ssdlm.train.checkpoint_folders import EMA, find_newest

UNIGRAM_TOKENS, STRETCHES = 2**24, 64
"""How many training tokens the unigram is counted on, and in how many places."""


def make_denoiser(config: Config, stores: list[TokenStore]) -> DenoiserModule:
    """Return the denoiser a run begins with, whole; refuse one that does not fit the data."""
    denoiser = load_init(config) if config.train.init else build(config.model)
    require_room(config, stores, denoiser)
    model, init = config.model, config.train.init
    is_adapter = isinstance(model, AdapterConfig)
    source = model.base if is_adapter else init
    if source and (find_init(source) / FILE_NAME).is_file():
        remedy = "prepare the data with the model's tokenizer"
        for own in (store.dir for store in stores):
            require_tokens(load_tokenizer(own), find_init(source), of=own, remedy=remedy)
    has_own = checkpoint.is_ours(find_init(init)) if is_adapter else init
    if not isinstance(model, EncoderConfig) and not has_own:
        denoiser.set_unigram(count_tokens(stores, denoiser.V))
    return denoiser


def require_room(config: Config, stores: list[TokenStore], denoiser: DenoiserModule) -> None:
    """Refuse a denoiser that the data's tokens, or a sequence of them, do not fit in."""
    if denoiser.V < stores[0].V:
        raise ValueError(
            f"the model has a vocabulary of {denoiser.V} and the data one of {stores[0].V}; "
            "prepare the data with the model's tokenizer"
        )
    if denoiser.max_len is not None and config.data.max_len > denoiser.max_len:
        raise ValueError(
            f"data.max_len={config.data.max_len} is more than the {denoiser.max_len} positions of "
            "the model; lower it"
        )


def build(model: EncoderConfig | BlockConfig | AdapterConfig) -> DenoiserModule:
    """Return a denoiser with random weights, ready to train."""
    if isinstance(model, EncoderConfig) and not model.backbone:
        raise ValueError("the encoder has no configuration; give train.init or model.backbone")
    return checkpoint.build(model).train()


def load_init(config: Config) -> DenoiserModule:
    """Return the denoiser whose weights `train.init` names."""
    model, init = config.model, config.train.init
    folder = find_init(init)
    if checkpoint.is_ours(folder):
        path = find_weights(folder, config.train.init_from)
        tensors = checkpoint.read_tensors(path)
        sizes = model.backbone if isinstance(model, EncoderConfig) else vars(model)
        checkpoint.require_sizes(sizes, tensors, source=path)
        denoiser = build(model)
        checkpoint.fill(denoiser, tensors, source=path)
        return denoiser
    if isinstance(model, AdapterConfig):
        return build(model)
    if isinstance(model, BlockConfig):
        raise ValueError(f"train.init={init} is not the folder of an SSD-LM checkpoint; give one")
    if checkpoint.is_released(folder):
        return checkpoint.load_denoiser(folder).requires_grad_(True).train()
    return wrap_masked_lm(str(folder), model)


def wrap_masked_lm(init: str, model: EncoderConfig) -> EncoderDenoiser:
    """Return an EncoderDenoiser around a pretrained masked LM, from a folder or the Hub."""
    source = for_transformers(init)
    from transformers import AutoModelForMaskedLM

    try:
        with without_bars():  # a sentence encoder has no head, and gets a random one
            backbone = AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"train.init={init} is not a masked LM ({reason}); give a folder or a Hub name"
        ) from error
    return EncoderDenoiser.from_masked_lm(backbone, K=model.K, B=model.B, T=model.T).train()


def find_init(init: str) -> Path:
    """Return the folder of `train.init`: built in, a path, or a download of the Hub's owner/name.

    A bare name such as roberta-large comes back as it is; `transformers` knows it.
    """
    is_hub_id = init.count("/") == 1 and init[0] not in "./~" and not Path(init).exists()
    return checkpoint.find(init) if is_hub_id or is_builtin(init) else Path(init).expanduser()


def is_denoiser(init: Path) -> bool:
    """Return whether a folder's weights were trained as a denoiser, so a short warm-up will do."""
    return checkpoint.is_ours(init) or checkpoint.is_released(init)


def find_weights(folder: Path, kind: str) -> Path:
    """Return the weight file of a run's or a model's folder: the average's, or the weights' own."""
    state = find_newest(folder) or folder
    has_average = kind == "ema" and (state / EMA).exists()
    return state / (EMA if has_average else checkpoint.WEIGHTS)


def count_tokens(stores: list[TokenStore], V: int) -> Tensor:
    """Return how often each token occurs in stretches spread over the training data."""
    counts = torch.zeros(V, dtype=torch.int64)
    longest = UNIGRAM_TOKENS // STRETCHES // len(stores)
    for store in stores:
        for i in range(STRETCHES):
            first, end = (len(store) * j // STRETCHES for j in (i, i + 1))
            part = store.read(first, min(longest, end - first)).astype(np.int64)
            counts += torch.bincount(torch.from_numpy(part), minlength=V)
    return counts

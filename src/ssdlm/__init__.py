"""Simplex diffusion language models: decode, control, train, measure.

The public names, each brought in when it is first used, so that `import ssdlm` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssdlm import recipes
    from ssdlm.api import SSDLM
    from ssdlm.config import Config, DecodeConfig
    from ssdlm.control import guided
    from ssdlm.guides import classifier_guide
    from ssdlm.projection import greedy, multi_hot, sampling
    from ssdlm.rows import Draft, Generation
    from ssdlm.sampler import Step, Strategy, denoise_block, generate

__version__ = "0.1.0"

HOMES = {
    "SSDLM": "api",
    "Config": "config",
    "DecodeConfig": "config",
    "Draft": "rows",
    "Generation": "rows",
    "Step": "sampler",
    "Strategy": "sampler",
    "classifier_guide": "guides",
    "denoise_block": "sampler",
    "generate": "sampler",
    "greedy": "projection",
    "guided": "control",
    "multi_hot": "projection",
    "sampling": "projection",
}

__all__ = [
    "SSDLM",
    "Config",
    "DecodeConfig",
    "Draft",
    "Generation",
    "Step",
    "Strategy",
    "classifier_guide",
    "denoise_block",
    "generate",
    "greedy",
    "guided",
    "multi_hot",
    "recipes",
    "sampling",
]


def __getattr__(name: str) -> Any:
    if name == "recipes":
        return import_module("ssdlm.recipes")
    if name in HOMES:
        return getattr(import_module(f"ssdlm.{HOMES[name]}"), name)
    raise AttributeError(f"module 'ssdlm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

"""Simplex diffusion language models: decode, control, train, measure.

The public names, each brought in when it is first used, so that `import ssdlm` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssdlm.api import SSDLM
    from ssdlm.config import Config
    from ssdlm.diffusion.projection import greedy, multi_hot, sampling
    from ssdlm.diffusion.sampler import Step, Strategy, denoise_block, generate
    from ssdlm.engine.requests import Draft, Generation
    from ssdlm.engine.scoring import Score
    from ssdlm.guidance import classifier_guide
    from ssdlm.guidance.gradient import guided
    from ssdlm.guidance.scorers import Scorer
    from ssdlm.options import DecodeConfig, GenerateOptions
    from ssdlm.train import recipes

__version__ = "0.2.0"

HOMES = {
    "SSDLM": "api",
    "Scorer": "guidance.scorers",
    "Config": "config",
    "DecodeConfig": "options",
    "GenerateOptions": "options",
    "Draft": "engine.requests",
    "Generation": "engine.requests",
    "Score": "engine.scoring",
    "Step": "diffusion.sampler",
    "Strategy": "diffusion.sampler",
    "classifier_guide": "guidance",
    "denoise_block": "diffusion.sampler",
    "generate": "diffusion.sampler",
    "greedy": "diffusion.projection",
    "guided": "guidance.gradient",
    "multi_hot": "diffusion.projection",
    "sampling": "diffusion.projection",
}

__all__ = [
    "SSDLM",
    "Config",
    "DecodeConfig",
    "Draft",
    "GenerateOptions",
    "Generation",
    "Score",
    "Scorer",
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
        return import_module("ssdlm.train.recipes")
    if name in HOMES:
        return getattr(import_module(f"ssdlm.{HOMES[name]}"), name)
    raise AttributeError(f"module 'ssdlm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

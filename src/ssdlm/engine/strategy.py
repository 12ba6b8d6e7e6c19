"""From settings to how a block is denoised.  config, sampler -> [decoding] -> api"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ssdlm.config import DecodeConfig
from ssdlm.denoiser import Denoiser
from ssdlm.diffusion import stopping
from ssdlm.diffusion.grid import Staggered, Uniform, Warped
from ssdlm.diffusion.projection import Truncation, named
from ssdlm.diffusion.sampler import Strategy
from ssdlm.diffusion.steps import Ddpm, Renoise, StepRule


def decode_config(base: DecodeConfig, **overrides: Any) -> DecodeConfig:
    """Return decoding settings with some replaced; B may be a number."""
    names = [item.name for item in fields(DecodeConfig)]
    for name in overrides:
        if name not in names:
            raise ValueError(f"there is no option {name!r}; there are {', '.join(names)}")
    for name in {"length", "T", "B"} & overrides.keys():
        value = overrides[name]
        for number in value if isinstance(value, list | tuple) else [value]:
            if type(number) is not int:
                raise ValueError(f"{name}={number!r} is not a whole number; write one such as 25")
    if "B" in overrides and not isinstance(overrides["B"], list | tuple):
        overrides["B"] = [overrides["B"]]
    return replace(base, **overrides | ({"B": tuple(overrides["B"])} if "B" in overrides else {}))


def strategy_of(decoding: DecodeConfig, denoiser: Denoiser) -> Strategy:
    """Return the sampler's strategy that the settings name, for this model."""
    is_cut, temperature = decoding.nucleus == "network", decoding.temperature
    if not is_cut and temperature == 1:
        return strategy_for(decoding, K=denoiser.K)
    if not denoiser.has_evidence:
        told = "nucleus=network" if is_cut else f"temperature={temperature}"
        raise ValueError(
            f"{told} needs a network that reads evidence, a BlockDenoiser; "
            "use nucleus=logits and temperature=1"
        )
    strategy = strategy_for(decoding, K=denoiser.K)
    if is_cut:
        strategy = strategy_for(replace(decoding, top_p=1.0), K=denoiser.K)
    top_p = decoding.top_p if is_cut else 1.0
    return replace(strategy, truncate=Truncation(denoiser.evidence, top_p, temperature))


def strategy_for(decoding: DecodeConfig, *, K: float) -> Strategy:
    """Return the sampler's strategy that the settings name."""
    rules: dict[str, StepRule] = {
        "renoise": Renoise(decoding.rho),
        "adaptive": Renoise("adaptive"),
        "ddpm": Ddpm(),
        "ddpm_simplified": Ddpm(simplified=True),
    }
    grids = {
        "uniform": Uniform(decoding.T),
        "warped": Warped(decoding.T),
        "staggered": Staggered(decoding.T, decoding.width),
    }
    return Strategy(
        grid=grids[decoding.grid],
        project=named(decoding.projection, K=K, top_p=decoding.top_p),
        rule=rules[decoding.rule],
        stop=stopping.stable() if decoding.early_exit else stopping.never(),
        returns=decoding.returns,
    )

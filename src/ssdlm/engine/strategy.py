"""From options to how a block is denoised.  options, diffusion -> [strategy] -> plain"""

from __future__ import annotations

import math
from dataclasses import replace

from ssdlm.denoiser import Denoiser
from ssdlm.denoiser.slots import Network
from ssdlm.diffusion import stopping
from ssdlm.diffusion.bias import Bias
from ssdlm.diffusion.grid import BeforeGiven, Staggered, Tilted, Uniform, Warped
from ssdlm.diffusion.projection import Projection, Truncation, greedy, mean, multi_hot, sampling
from ssdlm.diffusion.sampler import Strategy
from ssdlm.diffusion.steps import Ddpm, Renoise, StepRule
from ssdlm.engine.requests import Request
from ssdlm.options import GenerateOptions
from ssdlm.values import quote, show

NEEDS_ADAPTER = (
    "needs several open positions, and a causal language model has one: it needs an adapter "
    "(builtin:smol for smollm2, else `ssdlm train --recipe adapt init=MODEL --data DATA --out RUN`)"
)


def require_one_open(options: GenerateOptions) -> None:
    """Raise on options under which a causal language model would have several open positions."""
    planned = {name: getattr(options, name) for name in ("must", "pin", "suffix")}
    wanted = [
        (f"{name}={quote(value if isinstance(value, str) else list(value))}", "leave it out")
        for name, value in planned.items()
        if value
    ]
    if options.sees == "block":
        wanted.append(("sees=block", "use sees=context"))
    if options.grid != "sliding" or options.width > 1:
        given = f"grid={options.grid}, width={options.width:g}"
        wanted.append((given, "use grid=sliding, width=1, or mode=autoregressive"))
    if any(options.T != B for B in options.B):
        wanted.append((f"B={show(options.B)}, T={options.T}", "use one number for B and T"))
    for given, remedy in wanted[:1]:
        raise ValueError(f"{given} {NEEDS_ADAPTER}; {remedy}")


def strategy_of(options: GenerateOptions, denoiser: Denoiser) -> Strategy:
    """Return the sampler's strategy that the options name, for this model."""
    if denoiser.most_open == 1:
        require_one_open(options)
    if options.grid == "sliding" and denoiser.has_memory:
        raise ValueError(
            "grid=sliding does not go with a model that reads its own estimate of the step before "
            "(self-conditioning); use grid=staggered"
        )
    is_cut, temperature = options.nucleus == "network", options.temperature
    if not is_cut and temperature == 1:
        return strategy_for(options, K=denoiser.K)
    if not denoiser.has_evidence:
        given = "nucleus=network" if is_cut else f"temperature={temperature}"
        raise ValueError(
            f"{given} needs a network that reads evidence, a BlockDenoiser; "
            "use nucleus=logits and temperature=1"
        )
    uncut = replace(options, top_p=1.0, top_k=0, min_p=0.0)
    before, after = (options, uncut) if is_cut else (uncut, options)
    truncate = Truncation(denoiser.evidence, before.top_p, temperature, before.top_k, before.min_p)
    return replace(strategy_for(after, K=denoiser.K), truncate=truncate)


def bias_of(options: GenerateOptions) -> Bias:
    """Return what is added to the logits of a text."""
    return Bias(options.logit_bias, options.presence_penalty, options.frequency_penalty)


def is_adapted(denoiser: Denoiser) -> bool:
    """Tell whether a denoiser is a language model with an adapter."""
    return isinstance(denoiser, Network) and denoiser.is_exact


def for_gap(options: GenerateOptions, denoiser: Denoiser) -> GenerateOptions:
    """Return the options of a text; an adapter fills a gap at once, unless told how.

    Fills fit both sides a little better than by its window, and a program writes them.
    """
    is_told = "grid" in options.began or "width" in options.began
    if not options.suffix or options.grid != "sliding" or not is_adapted(denoiser) or is_told:
        return options
    return replace(options, grid="warped").since(options.began)


def strategy_of_text(request: Request, denoiser: Denoiser) -> Strategy:
    """Return the strategy for a text; on what is given after a gap it spends no step."""
    strategy, num_given = strategy_of(request.options, denoiser), request.num_given
    return before_suffix(strategy, request.options, num_given) if num_given else strategy


def before_suffix(strategy: Strategy, options: GenerateOptions, num_given: int) -> Strategy:
    """Return the strategy for a gap and the tokens after it, on which it spends no step.

    Where a window would slide, it moves through the gap as fast as it slides: B / T positions a
    pass.
    """
    path = strategy.grid
    if options.grid == "sliding":
        T = max(1, math.ceil(options.T * options.length / options.whole_block(0)))
        path = Staggered(T, options.width)
    return replace(strategy, grid=BeforeGiven(path, num_given))


def strategy_for(options: GenerateOptions, *, K: float) -> Strategy:
    """Return the sampler's strategy that the options name, for any model."""
    rules: dict[str, StepRule] = {
        "renoise": Renoise(options.rho),
        "adaptive": Renoise("adaptive"),
        "ddpm": Ddpm(),
        "ddpm_simplified": Ddpm(simplified=True),
    }
    grids = {
        "uniform": Uniform(options.T),
        "warped": Warped(options.T),
        "tilted": Tilted(options.T, options.width),
        "staggered": Staggered(options.T, options.width),
        # The nearest that stays within a block, for what has to see one whole.
        "sliding": Staggered(options.T, options.width),
    }
    cut = options.top_p, options.top_k, options.min_p
    projections: dict[str, Projection] = {
        "greedy": greedy(K),
        "sampling": sampling(K, *cut),
        "multi_hot": multi_hot(K, *cut),
        "mean": mean(K, *cut),
    }
    return Strategy(
        grid=grids[options.grid],
        project=projections[options.projection],
        rule=rules[options.rule],
        stop=stopping.stable() if options.early_exit else stopping.never(),
        returns=options.returns,
    )

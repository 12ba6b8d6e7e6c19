"""What table 3 tries: how a model writes, at which lambdas, and what its texts are steered to.

scale -> [control_grid] -> table3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from ssdlm.reproduce.experiment import Experiment
from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Options
from ssdlm.reproduce.table1 import DIFFUSION, PAPER_SAMPLER

READS: dict[str, Options] = {
    "context": {},
    "block": {"sees": "block", "special_tokens": False},
}
"""Options for what a guide reads: the default, as the paper says, or as the authors' code does."""
STANDING_OUT: Options = {"gradient": "words", "threshold": 2.0, "plausible": 0.0}
"""How our model's own settings steered when the published tables were written."""
ENDINGS = {"context": "", "block": "-block"}
"""How the names of samplers end, by what a guide reads."""


@dataclass(frozen=True)
class Sampler:
    """How a model writes at one length, and the lambdas that are tried with it."""

    role: str
    name: str
    options: Options
    lams: tuple[float, ...]
    is_scored: bool = False
    """Whether a classifier's scores steer alone, without its gradient; a lambda weighs them."""

    @property
    def num_particles(self) -> int:
        return self.options.get("particles", 1)

    @property
    def legend(self) -> str:
        """What a picture calls it."""
        known = self.options
        how = f"{known['projection']}, T = {known['T']}" if "T" in known else "own settings"
        how += ", guided by the block" if known.get("sees") == "block" else ""
        how += f", {self.num_particles} particles" if self.num_particles > 1 else ""
        how += " without a gradient" if self.is_scored else ""
        return f"{DIFFUSION[self.role]}: {how}, top-p {known['top_p']:g}".replace("_", "-")

    @property
    def home(self) -> str:
        """What the names of its settings begin with."""
        return f"control/{self.options['length']}/{self.role}/{self.name}"


@dataclass(frozen=True)
class ControlTarget:
    """What texts are steered to, and each CLASSIFIER=LABEL that is asked, inside and outside."""

    name: str
    control: tuple[str, ...]
    guides: tuple[str, ...]
    judges: tuple[str, ...]


Targets = Callable[[Experiment, Sampler, float], Iterable[ControlTarget]]
"""What a sampler steers to at one lambda."""


def samplers(experiment: Experiment, length: int) -> Iterator[Sampler]:
    """Yield the paper's grid, and our model's own settings."""
    scale = experiment.scale
    fixed = {"length": length, "seed": scale.seed}
    if "paper" in experiment.models:
        paper = fixed | PAPER_SAMPLER | {"B": min(length, scale.B), "gradient": "logits"}
        grid = product(scale.control_sees, scale.projections, scale.control_top_p, scale.control_T)
        for sees, projection, top_p, T in grid:
            options = paper | {"projection": projection, "top_p": top_p, "T": T} | READS[sees]
            name = f"{projection}-p{top_p:g}-T{T}{ENDINGS[sees]}"
            yield Sampler("paper", name, options, scale.lams)
    if "ours" in experiment.models:
        grid = product(scale.own_particles, scale.control_sees, scale.own_top_p)
        for particles, sees, top_p in grid:
            options = fixed | {"top_p": top_p} | STANDING_OUT | READS[sees]
            if sees == "block":  # the path of a window within a block, at lambda = 0 too
                options["grid"] = "staggered"
            name, lams = f"own-p{top_p:g}", scale.own_lams
            if particles > 1:
                options, name = options | {"particles": particles}, f"{name}-n{particles}"
                lams = scale.particle_lams
            yield Sampler("ours", name + ENDINGS[sees], options, lams)
        if length == max(scale.control_lengths):
            yield from scored_samplers(scale, fixed)


def scored_samplers(scale: Scale, fixed: Options) -> Iterator[Sampler]:
    """Yield those of our model that a classifier's scores steer without any gradient."""
    for particles, top_p in product(scale.scorer_particles, scale.own_top_p):
        how = {"top_p": top_p, "particles": particles, "particle_step": scale.scorer_step}
        how["grid"] = "sliding"  # the one path on which particles are weighed within a block
        name, lams = f"own-p{top_p:g}-n{particles}-scored", (0.0, scale.particle_weights[0])
        yield Sampler("ours", name, fixed | how, lams, is_scored=True)


def pair_samplers(experiment: Experiment) -> list[Sampler]:
    """Return the samplers that two controls at once are tried with: ours at the largest length."""
    longest = samplers(experiment, max(experiment.scale.control_lengths))
    return [one for one in longest if one.role == "ours" and not one.is_scored]


def targets(experiment: Experiment, sampler: Sampler, lam: float) -> Iterator[ControlTarget]:
    """Yield what to steer to: each label, or nothing, and then every label is asked about."""
    scale = experiment.scale
    guides = tuple(f"{scale.guide}={label}" for label in scale.labels)
    judges = [tuple(f"{name}={label}" for name in scale.control_judges) for label in scale.labels]
    if lam == 0:
        yield ControlTarget("lam0", (), guides, sum(judges, ()))
        return
    for one, guide, outside in zip(scale.labels, guides, judges, strict=True):
        by_scores = f"{scale.scorer or scale.guide}={one}:0"
        control = by_scores if sampler.is_scored else f"{guide}:{lam:g}"
        yield ControlTarget(f"lam{lam:g}/{one}", (control,), (guide,), outside)


def pairs(experiment: Experiment, sampler: Sampler, lam: float) -> Iterator[ControlTarget]:
    """Yield two controls at once: each label with each of the second guide's; none without lam."""
    scale = experiment.scale
    first = targets(experiment, sampler, lam) if lam else ()
    seconds = scale.particle_second if sampler.num_particles > 1 else scale.second
    for target, second in product(first, seconds):
        guide = second.partition(":")[0]
        label = guide.partition("=")[2]
        outside = tuple(f"{name}={label}" for name in scale.second_judges)
        yield ControlTarget(
            f"{target.name}+{label}",
            (*target.control, second),
            tuple(dict.fromkeys((*target.guides, guide))),  # a pair of one label asks once
            (*target.judges, *outside),
        )

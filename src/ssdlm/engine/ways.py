"""How each control steers: by its gradient, by particles, or by both.  controls -> [ways] -> plain

A gradient needs a classifier that knows every token of the model. Particles need a scorer, which
reads texts: any classifier, any function. Where both would do, particles are a matter of asking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ssdlm.guidance.fitting import ClassifierGuide
from ssdlm.guidance.gradient import LogProb
from ssdlm.guidance.scorers import Scorer
from ssdlm.options import GenerateOptions

PARTICLES = 8
"""How many there are where a control needs them and nobody says how many."""
CLASSIFIER_WEIGHT = 8.0
"""The power of a classifier's odds by which particles are weighed, unless given."""
BESIDE_PARTICLES = 0.8
"""The share of a guide's usual lambda that it has beside particles: it need not steer alone."""


@dataclass(frozen=True)
class Way:
    """How one control steers."""

    name: str
    why: str
    guide: ClassifierGuide | LogProb | None = None
    """What is followed by its gradient, if it is."""
    lam: float = 0.0
    scorer: Scorer | None = None
    """What weighs particles, if they are weighed by it."""
    weight: float = 0.0

    @property
    def title(self) -> str:
        """What the way is called."""
        if self.guide is not None and self.scorer is not None:
            return "both"
        return "gradient" if self.guide is not None else "particles"

    def json(self, options: GenerateOptions, num_particles: int) -> dict[str, object]:
        """Return what is to be known of it."""
        found: dict[str, object] = {"control": self.name, "way": self.title, "why": self.why}
        if self.guide is not None:
            found |= {"gradient": options.gradient, "lam": self.lam}
            if options.gradient == "words":
                found["threshold"] = options.threshold
                if options.plausible:
                    found["plausible"] = options.plausible
        if self.scorer is not None:
            found |= {"particles": num_particles, "weight": self.weight}
        return found


def explained(found: Mapping[str, object]) -> str:
    """Return in one line how a control steers, and why so, of what `Way.json` tells."""
    parts = []
    if "lam" in found:
        names = [name for name in ("threshold", "plausible") if name in found]
        outstanding = "".join(f", {name} {found[name]:g}" for name in names)
        parts.append("gradient ({gradient}{0}, lambda {lam:g})".format(outstanding, **found))
    if "weight" in found:
        parts.append("{particles} particles (weight {weight:g})".format(**found))
    if "led_by" in found:
        parts.append("description (weight {led_by:g})".format(**found))
    return f"{found['control']}: {' and '.join(parts)}; {found['why']}"


def count_particles(ways: Sequence[Way], options: GenerateOptions) -> int:
    """Return how many particles a text gets; 1 is none. Raise where one has to be weighed."""
    needy = [way.name for way in ways if way.guide is None]
    if needy and options.particles == 1:
        raise ValueError(f"particles=1 cannot be steered by {needy[0]}; use 2 or more, such as 8")
    if needy:
        return options.particles or PARTICLES
    return max(1, options.particles)

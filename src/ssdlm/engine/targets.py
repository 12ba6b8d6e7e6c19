"""A share of texts to get a label: which text is steered to it, and which away.  [targets] -> plain

With a target of 0.8 eight of ten texts seek the label, and the other two avoid it: so the share is
that of the texts, whatever scale a classifier has. Where the first text of a prompt stands between
0 and 1 is its own number; each further one is an irrational step on, so that the texts of a prompt
have the share as nearly as so many can.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

from ssdlm.diffusion.noise import mix
from ssdlm.engine.controls import one_each
from ssdlm.engine.requests import Request
from ssdlm.guidance import ClassifierGuide
from ssdlm.guidance.gradient import title_of
from ssdlm.guidance.grammar import find_guide, parse_control, split_labels
from ssdlm.options import GenerateOptions

DRAWING = 1 << 40
"""Parts a text's numbers for its targets from all its others."""
RANGE = 1 << 63
"""Below this are the numbers of `mix`."""


def check_targets(options: GenerateOptions) -> None:
    """Raise on targets that are not each of a classifier of its own."""
    if not options.target:
        return
    one_each("target", options.target, options.control)
    homes: list[str] = []
    for control in options.control:
        if not isinstance(control, str | ClassifierGuide):
            raise ValueError(
                f"target={options.target[0]:g} is the share of texts that get a label, and "
                f"{title_of(control)} has none; give a classifier, or leave target out"
            )
        name = parse_control(control).name if isinstance(control, str) else control.name
        home = name and os.path.realpath(split_labels(find_guide(name))[0])  # has many spellings
        if home and home in homes:
            raise ValueError(f"{name} has two targets; give one control for each classifier")
        homes.append(home)


class Targets:
    """The options of texts that have a target, each of them made once."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, tuple[bool, ...]], tuple[GenerateOptions, GenerateOptions]] = {}
        """By the options that were given, which are kept, and which labels are avoided."""

    def aimed(self, request: Request) -> Request:
        """Return a request that seeks or avoids each label, as the text's own numbers say."""
        options = request.options
        if not options.target:
            return request
        shares = one_each("target", options.target, options.control)
        text, own = request.sample // options.best_of, (options.seed, *request.context)
        drawn = [
            (mix(*own, DRAWING + number) / RANGE + text * math.sqrt(number + 2.5)) % 1
            for number in range(len(shares))
        ]
        flips = tuple(one >= (share or 0) for one, share in zip(drawn, shares, strict=True))
        key = id(options), flips
        if key not in self.made:
            pairs = zip(options.control, flips, strict=True)
            controls = tuple(opposite(one) if is_other else one for one, is_other in pairs)
            self.made[key] = options, replace(options, control=controls, target=())
        return replace(request, options=self.made[key][1])


def opposite(control: Any) -> Any:
    """Return the control that avoids what this one seeks, or seeks what it avoids."""
    if isinstance(control, ClassifierGuide):
        return control.opposite
    name, equals, rest = control.rpartition("=")
    return f"{name[:-1]}={rest}" if name.endswith("!") else f"{name}!{equals}{rest}"

"""Which option needs which other: what cannot have an effect beside the others is refused by name.

One table, `NEEDS`, for the command line, Python, files of prompts and HTTP, all of which pass
`Engine.check`, and for docs/reference/options.md.  values -> [needs] -> options, engine
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ssdlm.values import shorten, show

if TYPE_CHECKING:
    from ssdlm.options import GenerateOptions

PATH = ("T", "grid", "width", "rule", "rho", "returns", "early_exit", "nucleus")
HEARD = ("gradient", "threshold", "plausible", "band", "reduction", "sees", "special_tokens")
"""Options that say how the gradient of a control is heard."""
WEIGHTS = ("lam", "particle_weight")
PARTICLES = ("particles", "particle_step", "particle_potential")
OF_CONTROL = (*HEARD, *WEIGHTS, *PARTICLES, "target")
GRAMMARS = ("regex", "json_schema", "grammar")
"""Options that say what the whole text is."""
CONSTRAINING = ("must", "must_not", "suffix", "pin", "end_at_sentence", *GRAMMARS)
PLANNED = ("must", "suffix", "gap", "pin", "end_at_sentence")
"""Constraints for which a text must be planned ahead, which only the diffusion can do."""


class Steering(NamedTuple):
    """What is known of controls once they are loaded; until then each may steer in any way."""

    has_gradient: bool = True
    has_scorer: bool = True
    has_particles: bool = True


class Need(NamedTuple):
    """What some options need to have an effect."""

    names: tuple[str, ...]
    what: str
    """What they need, as the options page says it."""
    is_met: Callable[[GenerateOptions, Steering], bool]
    why: str
    """What is wrong with a value that was given, after "name=value "; {o} are the options."""
    remedy: str


def is_constrained(o: GenerateOptions) -> bool:
    """Tell whether a text has to obey anything."""
    words = o.must or o.must_not or o.suffix or o.pin or o.end_at_sentence
    return bool(words) or o.has_grammar


def stays_in_block(o: GenerateOptions) -> bool:
    """Tell whether even a sliding window stays within a block, which is planned or read whole."""
    return bool(o.must or o.pin or o.suffix) or o.sees == "block"


def is_weighed_whole(o: GenerateOptions) -> bool:
    """Tell whether a text, or each block of it, is written to its end before it is weighed."""
    has_words = o.must_not or o.end_at_sentence
    return stays_in_block(o) or bool(has_words and not o.has_grammar)


def keeps_state(o: GenerateOptions) -> bool:
    """Tell whether a position stays noisy from one pass to the next, so that its state matters.

    A window that moves on by whole positions, and is one wide, decides each of them in one pass.
    """
    if o.grid in ("uniform", "warped", "tilted"):
        return o.T > 1
    blocks = enumerate([o.length] if o.suffix else o.blocks())
    return any(keeps_state_in(o, size, o.whole_block(number)) for number, size in blocks)


def keeps_state_in(o: GenerateOptions, size: int, whole: int) -> bool:
    """Tell whether a window keeps a state in a block of some size, whose whole length is given."""
    is_cut = o.grid == "sliding" and (o.suffix or not stays_in_block(o))
    T = max(1, math.ceil(o.T * size / whole)) if is_cut else o.T
    if o.grid == "sliding" and not stays_in_block(o):
        return o.width > 1 or T > size or o.width > math.gcd(size, T) / T
    return T > 1 and (o.width != 1 or size % T > 0)


def decides_one(o: GenerateOptions) -> bool:
    """Tell whether each pass decides the next token alone."""
    return o.grid == "sliding" and not stays_in_block(o) and not keeps_state(o)


def is_greedy(o: GenerateOptions) -> bool:
    """Tell whether the likeliest token is taken."""
    return o.projection == "greedy" or o.top_p == 0


def is_drawn(o: GenerateOptions) -> bool:
    """Tell whether what is drawn from the logits matters, or is what is taken anyway."""
    is_read = o.returns == "w_0" or keeps_state(o) or is_constrained(o)
    return o.mode != "diffusion" or is_read or o.projection == "greedy"


def has_text_before(o: GenerateOptions) -> bool:
    """Tell whether some of a text is decided while other positions are open."""
    blocks = [o.length] if o.suffix else o.blocks()
    return o.mode != "diffusion" or o.grid in ("staggered", "sliding") or len(blocks) > 1


DIFFUSION = Need(
    (*PATH, "control", *OF_CONTROL, "control_by", *PLANNED), "mode=diffusion",
    lambda o, s: o.mode == "diffusion",
    "is the diffusion's and does not go with mode={o.mode}", "leave it out, or use mode=diffusion",
)  # fmt: skip

# fmt: off
NEEDS = (
    DIFFUSION,
    Need(
        ("projection",), "mode=diffusion, for multi_hot and mean",
        lambda o, s: o.mode == "diffusion" or o.projection in ("sampling", "greedy"),
        DIFFUSION.why, DIFFUSION.remedy),
    Need(
        ("width",), "grid=tilted, grid=staggered or grid=sliding",
        lambda o, s: o.grid in ("tilted", "staggered", "sliding"),
        "is of a window, and grid={o.grid} has none",
        "leave it out, or use grid=tilted, grid=staggered or grid=sliding"),
    Need(
        ("rho",), "rule=renoise", lambda o, s: o.rule == "renoise",
        "is of rule=renoise, and the rule is {o.rule}", "leave out one of them"),
    Need(
        ("rule", "rho"), "a position that is open for more than one pass: a window wider than 1, "
        "or more passes than positions", lambda o, s: keeps_state(o),
        "has no effect: each position is decided in one pass, and no state is kept",
        "leave it out, or use a larger T or width"),
    Need(
        ("returns",), "a projection that draws, or a constraint",
        lambda o, s: not is_greedy(o) or is_constrained(o),
        "has no effect: what is drawn is the likeliest token, which the logits say too",
        "leave it out, or use projection=sampling and a top_p above 0"),
    Need(
        ("top_p",), "another projection than greedy",
        lambda o, s: o.projection != "greedy" or o.top_p == 0,
        "has no effect: projection=greedy draws nothing",
        "leave it out, or use projection=sampling"),
    Need(
        ("nucleus",), "top_p below 1, top_k or min_p", lambda o, s: o.top_p < 1 or o.is_cut,
        "has no effect: with top_p=1 nothing is cut", "leave it out, or lower top_p"),
    Need(
        ("nucleus",), "another projection than greedy", lambda o, s: o.projection != "greedy",
        "has no effect: projection=greedy draws nothing",
        "leave it out, or use projection=sampling"),
    Need(
        ("temperature", "top_k", "min_p"), "another projection than greedy, and top_p above 0",
        lambda o, s: not is_greedy(o),
        "has no effect: projection=greedy, or top_p=0, draws nothing",
        "leave it out, or use projection=sampling and a top_p above 0"),
    Need(
        ("projection", "top_p", "temperature", "top_k", "min_p"),
        "returns=w_0, a constraint, or a position that is open for more than one pass",
        lambda o, s: is_drawn(o),
        "has no effect: returns=logits takes the likeliest token, and no state is kept",
        "leave it out, or use returns=w_0"),
    Need(
        ("presence_penalty", "frequency_penalty"),
        "text that is decided before other: several blocks, or grid=staggered or grid=sliding",
        lambda o, s: has_text_before(o),
        "has no effect: all of the text is decided at once",
        "leave it out, or use a smaller B, or grid=staggered or grid=sliding"),
    Need(
        ("best_of",), "texts that differ: no greedy choice outside mode=diffusion",
        lambda o, s: o.mode == "diffusion" or not is_greedy(o),
        "has no effect: all candidates are the same text, since nothing is drawn",
        "leave it out, or use projection=sampling and a top_p above 0"),
    Need(
        ("stop_at_end",), "no regex, json_schema and grammar", lambda o, s: not o.has_grammar,
        "has no effect: a grammar says where the text ends", "leave out one of them"),
    Need(
        ("never_end",), "no regex, json_schema and grammar",
        lambda o, s: not (o.never_end and o.has_grammar),
        "has no effect: a grammar says where the text ends", "leave out one of them"),
    Need(
        ("gap",), "suffix", lambda o, s: bool(o.suffix),
        "is what a suffix follows", "give suffix, or length in its place"),
    Need(
        ("B",), "grid=sliding beside suffix", lambda o, s: not o.suffix or o.grid == "sliding",
        "has no effect: a gap is one block", "leave it out, or use grid=sliding"),
    Need(
        WEIGHTS, "control", lambda o, s: bool(o.control),
        "weighs nothing", "give control, or leave it out"),
    Need(
        ("target",), "control", lambda o, s: bool(o.control),
        "is the share of texts that get a label, and none is asked for",
        "give control, or leave it out"),
    Need(
        ("control_by_weight",), "control_by", lambda o, s: o.control_by is not None,
        "weighs nothing", "give control_by, or leave it out"),
    Need(
        ("sees", "special_tokens"), "a control given by name",
        lambda o, s: any(isinstance(one, str) for one in o.control),
        "has no effect without a classifier that control names",
        "give control, or sees and has_special_tokens to classifier_guide"),
    Need(
        HEARD, "control", lambda o, s: bool(o.control),
        "says how control is heard, and there is none", "give control, or leave it out"),
    Need(
        HEARD, "a control with a gradient", lambda o, s: s.has_gradient,
        "has no effect: no control here has a gradient", "leave it out"),
    Need(
        ("threshold", "plausible"), "gradient=words", lambda o, s: o.gradient == "words",
        "is of gradient=words, and the gradient is {o.gradient}",
        "leave it out, or use gradient=words"),
    Need(
        ("gradient",), "for fudge grid=sliding with one open position",
        lambda o, s: o.gradient != "fudge" or decides_one(o),
        "asks what the next token would be worth, and here several are open",
        "use grid=sliding with width=1, or gradient=words"),
    Need(
        ("particles",), "control, regex, json_schema or grammar",
        lambda o, s: bool(o.control) or o.has_grammar,
        "would weigh nothing", "give control or a grammar, or leave it out"),
    Need(
        ("particles",), "a control that reads texts, regex, json_schema or grammar",
        lambda o, s: o.particles <= 1 or s.has_scorer or o.has_grammar,
        "would weigh nothing: control is a function of logits, which has a gradient and reads no "
        "texts", "leave it out"),
    Need(
        ("particle_step", "particle_potential"), "particles",
        lambda o, s: (o.particles > 1 or bool(o.control)) and s.has_particles,
        "is how particles are weighed, and there are none",
        "give particles, such as 8, or leave it out"),
    Need(
        ("particle_step",), "a sliding window, and no words to place",
        lambda o, s: o.grid == "sliding" and not is_weighed_whole(o),
        "has no effect: particles are weighed after each block, or, with words to place, at the "
        "end", "leave it out, or use grid=sliding without such words"),
    Need(
        ("particle_weight",), "particles, or a control without a gradient",
        lambda o, s: s.has_scorer,
        "weighs nothing: control steers by its gradient",
        "give particles, such as 8, or leave it out"),
    Need(
        ("lam",), "a control with a gradient, or no particle_weight",
        lambda o, s: s.has_gradient or not o.particle_weight,
        "weighs nothing: no control has a gradient, and particle_weight weighs the scores",
        "give one of them"),
)
# fmt: on
"""What each option needs; of several that are not met, the first is said."""

NOT_OF_SPANS = {
    "length": "a span is as long as it was; use length=free to try other lengths",
    "gap": "use length=free",
    "suffix": "the text behind a span is its suffix",
    "num_samples": "use alternatives",
    "stop": "a span ends where the text goes on",
    "stop_at_end": "a span ends where the text goes on",
    "never_end": "a span ends where the text goes on",
    "end_at_sentence": "a span ends where the text goes on",
    "regex": "a pattern is for whole texts; use must, must_not or pin",
    "json_schema": "a schema is for whole texts; use must, must_not or pin",
    "grammar": "a grammar is for whole texts; use must, must_not or pin",
    "mode": "only mode=diffusion sees both sides",
    "streamer": "it takes one text; leave it out",
}
"""Options that have no meaning for a span, and what to do."""

EVERYTHING = Steering()


def refuse_idle(
    options: GenerateOptions,
    given: Iterable[str],
    steering: Steering = EVERYTHING,
    needs: Sequence[Need] = NEEDS,
) -> None:
    """Raise on the first option of those given that cannot have an effect beside the others."""
    names = set(given)
    for need in needs:
        if names.isdisjoint(need.names) or need.is_met(options, steering):
            continue
        name = next(name for name in need.names if name in names)
        value = shorten(show(getattr(options, name)))
        raise ValueError(f"{name}={value} {need.why.format(o=options)}; {need.remedy}")

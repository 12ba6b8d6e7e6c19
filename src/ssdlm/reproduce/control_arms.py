"""The arms of `reproduce control`: ways to steer one model, as options of `SSDLM.generate`.

scale -> [control_arms] -> control
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Options

LABELS = {
    "sentiment": ("positive", "negative"),
    "tense": ("past", "present"),
    "source": ("review", "article", "book"),
}
"""What texts are steered to, by attribute."""
INSTRUCTIONS = {
    "sentiment": "sounds {}",
    "tense": "is in the {} tense",
    "source": "reads like part of a {}",
}
"""What a model is told to make of a text, by attribute."""
SURE = 1e6
"""A weight of scores at which the best text is drawn."""


@dataclass(frozen=True)
class Target:
    """What texts are steered to: a label of one attribute, or of each of two."""

    attributes: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def name(self) -> str:
        return "+".join(self.labels)

    def controls(self, scale: Scale, weight: str = "") -> list[str]:
        """Return CLASSIFIER=LABEL for each attribute, with a weight behind it."""
        homes = guides(scale)
        pairs = zip(self.attributes, self.labels, strict=True)
        return [f"{homes[attribute]}={label}{weight}" for attribute, label in pairs]

    def about(self) -> str:
        """Return what a text does that has its labels."""
        pairs = zip(self.attributes, self.labels, strict=True)
        return " and ".join(INSTRUCTIONS[attribute].format(label) for attribute, label in pairs)

    def instruction(self) -> str:
        """Return what a model is told before a text that it is to continue."""
        return f"Continue the text below so that it {self.about()}. Write nothing else.\n\n"

    def description(self) -> str:
        """Return what leads a text as `control_by`."""
        return f"a text that {self.about()}"


@dataclass(frozen=True)
class Arm:
    """A way to steer."""

    name: str
    about: str
    weight: str | None = ""
    """What stands behind each control: "" for its own weight; None where there is no control."""
    options: Options = field(default_factory=dict)
    needs_gradient: bool = False
    """Without one the arm would be another one."""
    is_instructed: bool = False
    is_described: bool = False


def arms(scale: Scale, model: str) -> Iterator[Arm]:
    """Yield the arms of a model, all with particles at an equal budget of passes."""
    count = {"particles": scale.bench_particles}
    yield Arm("none", "no control", None)
    for lam in scale.bench_lams:
        paper = {"gradient": "logits"}
        about = f"the paper's gradient, in the logits, at lambda {lam:g}"
        yield Arm(f"paper-{lam:g}", about, f":{lam:g}", paper, needs_gradient=True)
    for lam in scale.bench_fudge:
        about = f"what each likely token would make of log p, times {lam:g}: FUDGE"
        yield Arm(f"fudge-{lam:g}", about, f":{lam:g}", {"gradient": "fudge"}, needs_gradient=True)
    yield Arm("ours", "the default of `--control NAME=LABEL`")
    yield from words_arms("words", scale.bench_words, {})
    yield Arm(
        "particles", "particles weighed by differences of the guide's log-odds, without a "
        "gradient: Feynman-Kac steering by differences", ":0", count,
    )  # fmt: skip
    yield Arm(
        "fk-maximum", "the same by the highest log-odds so far: Feynman-Kac steering by maxima",
        ":0", count | {"particle_potential": "maximum"},
    )  # fmt: skip
    yield Arm("both", "the gradient, and particles beside it", "", count, needs_gradient=True)
    yield from words_arms("both", scale.bench_both, count)
    last = {"particle_step": scale.bench_length, "particle_weight": [SURE]}
    yield Arm("best-of-n", "of as many whole texts the one with the best log-odds", ":0",
              count | last)  # fmt: skip
    if model in scale.instructed:
        yield Arm("instruction", "an instruction before the text, by the chat template", None,
                  is_instructed=True)  # fmt: skip
        yield Arm("description", "a description that leads the text: `--control-by`", None,
                  is_described=True)  # fmt: skip


def words_arms(name: str, pairs: Sequence[str], options: Options) -> Iterator[Arm]:
    """Yield an arm of gradient=words for each THRESHOLD:LAMBDA, maybe with :PLAUSIBLE."""
    for pair in pairs:
        threshold, lam, *likely = pair.split(":")
        about = f"gradient=words with threshold={threshold}, so of more words, at lambda {lam}"
        about += f", none helped below plausible={likely[0]}" if likely else ""
        about += ", and particles beside it" if options else ""
        own = {"gradient": "words", "threshold": float(threshold)}
        own |= {"plausible": float(likely[0]) if likely else 0.0} | options
        called = "-".join((name, threshold, lam, *likely))
        yield Arm(called, about, f":{lam}", own, needs_gradient=True)


def guides(scale: Scale) -> dict[str, str]:
    """Return the guide of each attribute: a built-in one, or a folder with the attribute's name."""
    found = {Path(home).name: home for home in scale.bench_guides}
    for name, home in found.items():
        if name not in LABELS:
            raise ValueError(
                f"bench_guides={home} is named for no attribute; give folders called "
                f"{', '.join(LABELS)}"
            )
    return found


def targets(scale: Scale, attribute: str) -> list[Target]:
    """Return what texts of an attribute, or of two as `sentiment+tense`, are steered to."""
    names = tuple(attribute.split("+"))
    for name in names:
        if name not in LABELS:
            raise ValueError(f"there is no attribute {name!r}; there are {', '.join(LABELS)}")
        if names.count(name) > 1:
            raise ValueError(f"attributes={attribute} names {name} twice; name it once")
    rows: Sequence[tuple[str, ...]] = [()]
    for name in names:
        rows = [(*row, label) for row in rows for label in LABELS[name]]
    return [Target(names, row) for row in rows]

"""Table 3 and its appendix: continuations steered by a classifier, over lambda and top-p.

For each length and sampler a text is written for every label, and read by the guide itself
(internal) and by a classifier that had no part in it (external); without control both labels are
asked of the same texts. Then two controls at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ssdlm.guidance.classifiers import split_labels
from ssdlm.guidance.judges import VERBS, count_verbs
from ssdlm.reproduce import published
from ssdlm.reproduce.experiment import Definition, Experiment, Result, Results
from ssdlm.reproduce.page import Page
from ssdlm.reproduce.plot import EVEN, FROM_ZERO, LINEAR, Plot, curves
from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Diffusion, Options, Setting, read_if_there
from ssdlm.reproduce.table import COSTS, Row, average, average_interval, columns, row_of, table
from ssdlm.reproduce.table1 import COMPARED, DIFFUSION, PAPER_SAMPLER

PROMPTS = "pplm"
METRICS = ("ppl", "dist")
TEXT_METRICS = ("ppl_macro", "dist-1", "dist-2", "dist-3")
CLASSIFIERS = {"control_external": "control_judges", "control_internal": "control_guides"}
"""Accuracies, and the option of `evaluate` that names their classifiers."""
PAIR_METRICS = (
    *CLASSIFIERS, "control_second_external", "control_second", "control_second_verbs",
    "ppl_macro", "ppl_ratio", "dist-2",
)  # fmt: skip
READS: dict[str, Options] = {
    "context": {},
    "block": {"sees": "block", "special_tokens": False},
}
"""Options for what a guide reads: the default, as the paper says, or as the authors' code does."""
ENDINGS = {"context": "", "block": "-block"}
"""How the names of samplers end, by what a guide reads."""


@dataclass(frozen=True)
class Sampler:
    """How a model writes at one length, and the lambdas that are tried with it."""

    role: str
    name: str
    options: Options
    lams: tuple[float, ...]

    @property
    def legend(self) -> str:
        """What a picture calls it."""
        known = self.options
        how = f"{known['projection']}, T = {known['T']}" if "T" in known else "own settings"
        how += ", guided by the block" if known.get("sees") == "block" else ""
        how += f", {known['particles']} particles" if "particles" in known else ""
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


Targets = Callable[[Experiment, float], Iterable[ControlTarget]]
"""What is steered to at one lambda."""


def settings(experiment: Experiment) -> list[Setting]:
    """Return all settings at all lengths: the paper's sampler, ours, and two controls at once."""
    file = experiment.prompt_file(PROMPTS)
    if file is None:
        raise ValueError(f"there are no prompts; give --prompts {PROMPTS}=FILE, the paper's 15")
    every = [one for n in experiment.scale.control_lengths for one in samplers(experiment, n)]
    return [
        setting_of(experiment, file, sampler, target)
        for some, targets_at in ((every, targets), (pair_samplers(experiment), pairs))
        for sampler in some
        for lam in sampler.lams
        for target in targets_at(experiment, lam)
    ]


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
            options = fixed | {"top_p": top_p, "gradient": "words"} | READS[sees]
            name = f"own-p{top_p:g}"
            if particles > 1:
                options, name = options | {"particles": particles}, f"{name}-n{particles}"
            yield Sampler("ours", name + ENDINGS[sees], options, scale.own_lams)


def pair_samplers(experiment: Experiment) -> list[Sampler]:
    """Return the samplers that two controls at once are tried with: ours at the largest length."""
    longest = samplers(experiment, max(experiment.scale.control_lengths))
    return [sampler for sampler in longest if sampler.role == "ours"]


def targets(experiment: Experiment, lam: float) -> Iterator[ControlTarget]:
    """Yield what to steer to: each label, or nothing, and then every label is asked about."""
    scale = experiment.scale
    guides = tuple(f"{scale.guide}={label}" for label in scale.labels)
    judges = [tuple(f"{name}={label}" for name in scale.control_judges) for label in scale.labels]
    if lam == 0:
        yield ControlTarget("lam0", (), guides, sum(judges, ()))
        return
    for one, guide, outside in zip(scale.labels, guides, judges, strict=True):
        yield ControlTarget(f"lam{lam:g}/{one}", (f"{guide}:{lam:g}",), (guide,), outside)


def pairs(experiment: Experiment, lam: float) -> Iterator[ControlTarget]:
    """Yield two controls at once: each label with each of the second guide's; none without lam."""
    first = targets(experiment, lam) if lam else ()
    for target, second in product(first, experiment.scale.second):
        guide = second.partition(":")[0]
        label = guide.partition("=")[2]
        outside = tuple(f"{name}={label}" for name in experiment.scale.second_judges)
        yield ControlTarget(
            f"{target.name}+{label}",
            (*target.control, second),
            tuple(dict.fromkeys((*target.guides, guide))),  # a pair of one label asks once
            (*target.judges, *outside),
        )


def setting_of(
    experiment: Experiment, file: str, sampler: Sampler, target: ControlTarget
) -> Setting:
    """Return a setting of this table."""
    scale, source = experiment.scale, Diffusion(experiment.models[sampler.role])
    counts = (scale.num_prompts, scale.control_samples)
    options = sampler.options | {"control": list(target.control)}
    if not target.control:  # nothing would weigh particles either
        options = {n: v for n, v in options.items() if n not in ("control", "particles")}
    measures: Options = {"metrics": METRICS, "control_guides": target.guides}
    measures["control_judges"] = target.judges
    name, judge = f"{sampler.home}/{target.name}", scale.control_ppl
    return Setting(name, source, file, *counts, options, measures, judge, has_reference=False)


def page(experiment: Experiment, results: Results) -> Page:
    """Return the page: for each length the paper's rows, then ours; pairs; and the pictures."""
    scale = experiment.scale
    by_part = [f"control_external:{part}" for part in (*parts_of(scale), *scale.labels)]
    shown = columns([*CLASSIFIERS, *TEXT_METRICS, "ppl_ratio", *by_part], digits=1)
    every = [*scale.control_judges, *scale.second_judges]
    judges = ", ".join(f"{name} ({accuracy_of(name)})" for name in every) or "none"
    what = (
        f"the paper's prompts x {scale.control_samples} samples x {len(scale.labels)} labels, "
        f"figures are means over the labels; guide {scale.guide}, outside judge {judges}"
    )
    how = "PPL's macro average, and its ratio to lambda = 0 of the same setting"
    parts = [results.introduction(experiment, what, how, scale.control_ppl)]
    values, plots = {}, {}
    for length in scale.control_lengths:
        rows = rows_of(experiment, results, samplers(experiment, length), targets)
        values[str(length)] = [row.json() for row in rows]
        printed = published.rows(published.CONTROLLED, length)
        parts += [f"## Length {length}", table([*shown, COSTS[-1]], rows, printed)]
        if rows:
            plots[f"lambda-{length}"] = plot_of(rows)
    if both := rows_of(experiment, results, pair_samplers(experiment), pairs):
        values["pairs"] = [row.json() for row in both]
        parts += ["## Two controls at once", table(columns(PAIR_METRICS, digits=1), both)]
    notes = results.notes(experiment, COMPARED)
    if not scale.control_judges:
        notes.append("no outside judge was given; name one with --set control_judges=FOLDER")
    notes.append("neutral is left out of the classifiers' choice, as the authors do")
    return Page("Controlled generation", parts, {"tables": values}, notes, plots)


def parts_of(scale: Scale) -> dict[str, str]:
    """Return the outside judges by what columns call them, where there are several."""
    named = {Path(split_labels(name)[0]).name: name for name in scale.control_judges}
    return named if len(named) > 1 else {}


def accuracy_of(judge: str) -> str:
    """Return a judge's own accuracy on held-out texts, from its folder."""
    known = read_if_there(Path(split_labels(judge)[0]) / "config.json").get("guide_accuracy", {})
    shares = ", ".join(f"{100 * share:.1f} % of {name}" for name, share in known.items())
    return f"itself right on {shares}" if shares else "its own accuracy is not known here"


def rows_of(
    experiment: Experiment, results: Results, samplers: Iterable[Sampler], targets: Targets
) -> list[Row]:
    """Return a row for each sampler and lambda of which every target was measured."""
    rows = []
    for sampler, lam in [(one, lam) for one in samplers for lam in one.lams]:
        names = [f"{sampler.home}/{target.name}" for target in targets(experiment, lam)]
        some = [results[name] for name in names if results[name].report is not None]
        if some and len(some) == len(names):
            base = results.value(f"{sampler.home}/lam0", "ppl_macro")
            rows.append(row_over_targets(experiment.scale, sampler, lam, some, base))
    return rows


def row_over_targets(
    scale: Scale, sampler: Sampler, lam: float, some: Sequence[Result], base: float | None
) -> Row:
    """Return the figures of one lambda, means over its targets, and each label's accuracy."""
    name = f"{DIFFUSION[sampler.role]}, {sampler.name.replace('-', ' ')}"
    facts = {"lam": lam, "setting": name, "curve": sampler.legend}
    row = row_of(f"{name}, lambda {lam:g}", some, TEXT_METRICS, **facts)
    values, intervals = dict(row.values), dict(row.intervals)
    ppl = values["ppl_macro"]
    values["ppl_ratio"] = ppl / base if ppl and base else None
    values["control_second_verbs"] = share_by_verbs(some)
    seconds = tuple(f"{one.partition('=')[0]}=" for one in scale.second)
    outside, second_outside = (
        tuple(f"{name}=" for name in names) for names in (scale.control_judges, scale.second_judges)
    )
    accuracies = {
        "control_external": answers(some, "control_external", begins=outside),
        "control_second_external": answers(some, "control_external", begins=second_outside),
        "control_internal": answers(some, "control_internal", begins=(f"{scale.guide}=",)),
        "control_second": answers(some, "control_internal", begins=seconds),
    }
    for one in scale.labels:
        found = answers(some, "control_external", begins=outside, ends=f"={one}")
        accuracies[f"control_external:{one}"] = found
    for part, name in parts_of(scale).items():
        found = answers(some, "control_external", begins=(f"{name}=",))
        accuracies[f"control_external:{part}"] = found
    for metric, found in accuracies.items():
        values[metric] = average(result.value(known) for result, known in found)
        if interval := average_interval([result.interval(known) for result, known in found]):
            intervals[metric] = interval
    return replace(row, values=values, spread={}, intervals=intervals)


def answers(
    some: Sequence[Result], metric: str, *, begins: tuple[str, ...] = ("",), ends: str = ""
) -> list[tuple[Result, str]]:
    """Return results, and under which names they have accuracies of some CLASSIFIER=LABEL."""
    found = []
    for result in some:
        asked = result.setting.measures[CLASSIFIERS[metric]]
        for target in asked:
            if target.startswith(begins) and target.endswith(ends):
                # `evaluate` names a classifier only where there are several.
                found.append((result, metric if len(asked) == 1 else f"{metric}:{target}"))
    return found


def share_by_verbs(some: Sequence[Result]) -> float | None:
    """Return the share of texts with more verbs of the tense asked for, of those with any."""
    right: list[float] = []
    for result in some:
        tense = result.setting.measures["control_guides"][-1].rpartition("=")[2]
        if tense not in VERBS:
            continue
        for line in result.texts():
            count = count_verbs(line["text"])
            others = sum(count.values()) - count[tense]
            if count[tense] != others:
                right.append(float(count[tense] > others))
    return average(right)


def plot_of(rows: Sequence[Row]) -> Plot:
    """Return accuracies and perplexity over lambda, a curve for each sampler."""
    scale = LINEAR if max(row.facts["lam"] for row in rows) <= EVEN else FROM_ZERO
    return Plot("lambda", curves(rows, (*CLASSIFIERS, "ppl_macro"), "lam", "curve"), scale)


DEFINITION = Definition(settings, page, COMPARED)

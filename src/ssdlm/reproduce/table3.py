"""Table 3 and its appendix: continuations steered by a classifier, over lambda and top-p.

For each length and sampler a text is written for every label, and read by the guide itself
(internal) and by a classifier that had no part in it (external); without control both labels are
asked of the same texts. Ours also has particles, beside the gradient and, at the largest length,
alone. Then two controls at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ssdlm.guidance.grammar import split_labels
from ssdlm.guidance.judges import VERBS, count_verbs
from ssdlm.needs import OF_CONTROL
from ssdlm.reproduce import published
from ssdlm.reproduce.control_grid import (
    ControlTarget,
    Sampler,
    Targets,
    pair_samplers,
    pairs,
    samplers,
    targets,
)
from ssdlm.reproduce.experiment import Definition, Experiment, Result, Results
from ssdlm.reproduce.page import Page
from ssdlm.reproduce.plot import EVEN, FROM_ZERO, LINEAR, Plot, curves
from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Diffusion, Options, Setting, read_if_there
from ssdlm.reproduce.table import COSTS, Row, average, average_interval, columns, row_of, table
from ssdlm.reproduce.table1 import COMPARED, DIFFUSION

PROMPTS = "pplm"
METRICS = ("ppl", "dist")
TEXT_METRICS = ("ppl_macro", "dist-1", "dist-2", "dist-3")
CLASSIFIERS = {"control_external": "control_judges", "control_internal": "control_guides"}
"""Accuracies, and the option of `evaluate` that names their classifiers."""
PAIR_METRICS = (
    *CLASSIFIERS, "control_second_external", "control_second", "control_second_verbs",
    "ppl_macro", "ppl_ratio", "dist-2",
)  # fmt: skip


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
        for target in targets_at(experiment, sampler, lam)
    ]


def setting_of(
    experiment: Experiment, file: str, sampler: Sampler, target: ControlTarget
) -> Setting:
    """Return a setting of this table."""
    scale, source = experiment.scale, Diffusion(experiment.models[sampler.role])
    counts = (scale.num_prompts, scale.control_samples)
    options = sampler.options | {"control": list(target.control)}
    if sampler.num_particles > 1:
        options["particle_weight"] = list(scale.particle_weights[: len(target.control)])
    if not target.control:
        options = {n: v for n, v in options.items() if n not in ("control", *OF_CONTROL)}
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
        if over := [row for row in rows if "lam" in row.facts]:
            plots[f"lambda-{length}"] = plot_of(over)
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
        names = [f"{sampler.home}/{target.name}" for target in targets(experiment, sampler, lam)]
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
    number, key = ("weight", "weight") if sampler.is_scored else ("lambda", "lam")
    facts = {key: lam, "setting": name, "curve": sampler.legend}
    row = row_of(f"{name}, {number} {lam:g}", some, TEXT_METRICS, **facts)
    values, intervals = dict(row.values), dict(row.intervals)
    ppl = values["ppl_macro"]
    values["ppl_ratio"] = ppl / base if ppl and base else None
    values["control_second_verbs"] = share_by_verbs(some)
    beside = (*scale.second, *scale.particle_second)
    seconds = tuple(dict.fromkeys(f"{one.partition('=')[0]}=" for one in beside))
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

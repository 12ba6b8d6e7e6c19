"""Table 1 and its appendix: continuations without control, over projections, top-p and T.

For each length: human text, autoregressive models over seeds, the paper's recipe, and ours,
measured against the same gold; then the prompts that have no gold, apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from ssdlm.reproduce import published
from ssdlm.reproduce.experiment import Definition, Experiment, Results
from ssdlm.reproduce.page import Page
from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Autoregressive, Diffusion, Gold, Options, Setting, TextSource
from ssdlm.reproduce.table import COSTS, Row, columns, rows_of, table

METRICS = ("mauve", "ppl", "dist", "zipf", "rep")
SHOWN = ("mauve", "ppl_micro", "delta_log_ppl", "dist-1", "dist-2", "dist-3", "zipf", "rep")
DIFFUSION = {"paper": "the paper's recipe", "ours": "ours", "builtin": "the built-in model"}
"""Roles of models of this library; every other role is an autoregressive model."""
COMPARED = ("paper", "ours")
"""Those that the paper's sampler is tried on; the built-in model, trained for longer, is extra."""
OWN = ("ours", "builtin")
"""Those that have settings of their own."""
PAPER_SAMPLER = {
    "grid": "uniform", "nucleus": "logits", "temperature": 1.0, "rule": "renoise", "rho": 0.0,
    "returns": "logits", "early_exit": False, "never_end": False,
}  # fmt: skip
"""What the authors' decoder does, whatever a model's own settings are."""
FULL_LENGTH: Options = {"never_end": True}
"""Table 1's own rule, which the authors have for their autoregressive models alone."""
RULE = "no text may end before its length (`never_end`); the authors' decoder may write the end"
OPEN_TOP_P = 0.9
"""Without gold, the nuclei from here on are tried, at the first T."""
BEST = 3
"""Settings of each diffusion model that stand beside the paper's; the paper shows as many."""


def settings(experiment: Experiment) -> list[Setting]:
    """Return all settings at all lengths for which there are prompts."""
    found: list[Setting] = []
    for length in experiment.scale.lengths:
        if file := experiment.prompt_file(str(length)):
            found += settings_after(experiment, file, str(length), length)
        if file := experiment.prompts.get(f"owt-{length}"):
            found += settings_after(experiment, file, f"owt-{length}", length, has_gold=False)
    if not found:
        raise ValueError("there are no prompts; give --prompts 50=FILE, made by `ssdlm prompts`")
    return found


def settings_after(
    experiment: Experiment, file: str, home: str, length: int, *, has_gold: bool = True
) -> Iterator[Setting]:
    """Yield the settings after one file of prompts; without gold they are fewer."""
    scale, models = experiment.scale, experiment.models
    if has_gold:
        yield replace(setting_of(scale, f"{home}/gold", Gold(), file, {}), num_samples=1)
    sources: list[tuple[str, TextSource, Options]] = []
    for role in (role for role in models if role not in DIFFUSION):
        seeds = scale.seeds if has_gold else scale.seeds[:1]
        for sampler, seed in product(scale.samplers, seeds):
            key, _, value = sampler.partition("=")
            name = f"{role}/{key}-{value}/seed-{seed}"
            options = {"length": length, "seed": seed, key: float(value)}
            sources.append((name, Autoregressive(models[role]), options))
    for role in (role for role in COMPARED if role in models):
        for name, options in grid(scale, length, is_small=not has_gold):
            sources.append((f"{role}/{name}", Diffusion(models[role]), options))
    for role in (role for role in OWN if role in models):
        own: Options = {"length": length, "seed": scale.seed} | FULL_LENGTH
        sources.append((f"{role}/own", Diffusion(models[role]), own))
        for top_p in scale.free_top_p:
            name = f"{role}/own-p{top_p:g}"
            sources.append((name, Diffusion(models[role]), own | {"top_p": top_p}))
    for name, source, options in sources:
        yield setting_of(scale, f"{home}/{name}", source, file, options, has_gold=has_gold)


def grid(scale: Scale, length: int, *, is_small: bool = False) -> Iterator[tuple[str, Options]]:
    """Yield the paper's sampler over projections, nuclei and T; greedy is one point of both."""
    fixed = {"length": length, "B": scale.B, "seed": scale.seed} | PAPER_SAMPLER | FULL_LENGTH
    steps = scale.T[:1] if is_small else scale.T
    for T, projection, top_p in product(steps, ("greedy", *scale.projections), scale.top_p):
        if (projection == "greedy") == (top_p == 0) and not (is_small and top_p < OPEN_TOP_P):
            name = f"{projection}-p{top_p:g}-T{T}"
            options = fixed | {"projection": projection, "top_p": top_p, "T": T}
            if projection == "greedy":  # the likeliest token, whatever would be cut
                del options["returns"], options["nucleus"]
            yield name, options


def setting_of(
    scale: Scale, name: str, source: TextSource, file: str, options: Options, has_gold: bool = True
) -> Setting:
    """Return a setting of this table: as much as the scale says, and the paper's metrics."""
    counts = (scale.num_prompts, scale.num_samples)
    if not has_gold or isinstance(source, Gold):
        measures: Options = {"metrics": METRICS[1:]}
        return Setting(name, source, file, *counts, options, measures, has_reference=False)
    measures = {"metrics": METRICS, "features": scale.features}
    return Setting(name, source, file, *counts, options, measures)


def page(experiment: Experiment, results: Results) -> Page:
    """Return the page: for each length the paper's rows, then ours; then every setting."""
    scale, shown = experiment.scale, [*columns(SHOWN), *COSTS]
    what, how = "prompts as long as their continuations", "MAUVE's features from "
    parts, values = [results.introduction(experiment, what, how + scale.features[0])], {}
    for home in dict.fromkeys(name.partition("/")[0] for name in results):
        names = DIFFUSION | {"gold": "Gold continuation"}
        rows = list(rows_of(results, home, names, SHOWN).values())
        values[home] = [row.json() for row in rows]
        length = int(home.removeprefix("owt-"))
        is_open = home.startswith("owt-")
        heading = f"## Length {length}{', OpenWebText prompts, no gold' if is_open else ''}"
        printed = [] if is_open else published.rows(published.UNCONSTRAINED, length)
        best = shortlist(rows)
        parts += [heading, counts(results, home), table(shown, best, printed)]
        if len(best) < len(rows):
            parts += [f"Every setting at length {length}:", table(shown, rows)]
    lacking = [length for length in scale.lengths if experiment.prompt_file(str(length)) is None]
    notes = [f"no prompts were given for length {length}" for length in lacking]
    notes += results.notes(experiment, ("autoregressive", *COMPARED))
    notes.append(RULE)
    notes.append("+- is the standard deviation over seeds; Dist of gold pools one text per prompt")
    return Page("Unconstrained generation", parts, {"tables": values}, notes)


def counts(results: Results, home: str) -> str:
    """Return how many texts a figure is made of."""
    reports = [one.report for name, one in results.items() if name.startswith(f"{home}/")]
    sizes = [report["counts"] for report in reports if report is not None]
    seen = {f"{size['samples']} texts after {size['prompts']} prompts" for size in sizes}
    return f"Measured on {', or '.join(sorted(seen))}." if seen else "Nothing is measured yet."


def shortlist(rows: Sequence[Row]) -> list[Row]:
    """Return gold, every autoregressive sampler, own settings, and each model's best by MAUVE."""

    def is_short(row: Row) -> bool:
        role = row.facts["role"]
        rivals = [other for other in rows if other.facts["role"] == role]
        rivals.sort(key=lambda other: -(other.values["mauve"] or 0.0))
        return role not in DIFFUSION or ", own" in row.label or row in rivals[:BEST]

    return [row for row in rows if is_short(row)]


DEFINITION = Definition(settings, page)

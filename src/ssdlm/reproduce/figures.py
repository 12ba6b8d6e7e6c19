"""The paper's figures and examples: projection and top-p, calls and block length, lambda, texts.

Projection and top-p are read from table 1's settings, lambda from table 3's. The states of a block
on its way from noise to text, the paper's table of trajectories, are in OUT/trajectory.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev

from ssdlm.diffusion.sampler import Step
from ssdlm.diffusion.simplex import to_ids
from ssdlm.engine.prompt_files import read_prompts
from ssdlm.reproduce import table1, table3
from ssdlm.reproduce.experiment import Definition, Experiment, Result, Results, read_results
from ssdlm.reproduce.generation import fingerprint
from ssdlm.reproduce.page import Page
from ssdlm.reproduce.plot import LOG, Plot, Point, curves
from ssdlm.reproduce.setting import Diffusion, Options, Setting, read_if_there
from ssdlm.reproduce.table import Column, Row, code, columns, markdown, row_of, table
from ssdlm.storage.files import write_json

ROLES = (*table1.COMPARED, "builtin", "autoregressive")
"""The last two are table 1's, and of no use here."""
FEW = 2
"""Prompts and samples in the table of examples."""
GRID_METRICS = ("mauve", "ppl_micro", "rep")
COST_METRICS = ("mauve", "ppl_micro", "dist-1")
COST_COLUMNS = (
    Column("T", "T", 0),
    Column("calls", "calls per block", 0),
    Column("calls_per_token", "calls per token"),
    *columns(COST_METRICS),
    Column("seconds", "writing s", 0),
)
PROJECTIONS = {"sampling": "sampling projection", "multi_hot": "multi-hot projection"}
NOTES = (
    f"over projections and top-p, as in table 1, {table1.RULE}",
    "bars over top-p are standard deviations over lengths and T, as in the paper",
    "bars over calls and lambda are intervals over prompts, means over the labels",
    "greedy projection is top-p 0; Dist falls with the number of samples per prompt",
)
TRAJECTORIES = "trajectory.json"
LEVELS = (1.0, 0.6, 0.52, 0.44, 0.36, 0.32, 0.28, 0.24, 0.2, 0.0)
"""The levels t/T at which the paper shows a trajectory, from noise to the last step."""
STATES = ("t", "argmax of the logits at t", "argmax of the state at t - 1")


def settings(experiment: Experiment) -> list[Setting]:
    """Return the grid of table 1, and our model over calls and block lengths."""
    grid = [one for one in table1.settings(experiment) if isinstance(one.source, Diffusion)]
    return [*(one for one in grid if one.has_reference), *cost_settings(experiment)]


def cost_settings(experiment: Experiment) -> Iterator[Setting]:
    """Yield our model's own settings with other numbers of calls and other block lengths."""
    scale, model, length = experiment.scale, experiment.models.get("ours"), main_length(experiment)
    file = experiment.prompt_file(str(length))
    if model is None or length is None or file is None:
        return
    for B, T in product(scale.blocks, scale.calls):
        name = f"{length}/ours-calls/B{B}-T{T}"
        options = {"length": length, "seed": scale.seed, "B": B, "T": T}
        setting = table1.setting_of(scale, name, Diffusion(model), file, options)
        yield replace(setting, num_samples=scale.figure_samples)


def main_length(experiment: Experiment) -> int | None:
    """Return the length that is shown in detail: 50, or the longest with prompts."""
    lengths = [n for n in experiment.scale.lengths if experiment.prompt_file(str(n)) is not None]
    return 50 if 50 in lengths else max(lengths, default=None)


def record(experiment: Experiment) -> None:
    """Write trajectories of one block, unless they are there: the paper's sampler, and our own."""
    scale, length = experiment.scale, main_length(experiment)
    file = experiment.prompt_file(str(length))
    if length is None or file is None:
        return
    own = {"length": length, "seed": scale.seed}
    paper = own | table1.PAPER_SAMPLER | {"B": scale.B, "T": scale.T[-1]}
    paper |= {"projection": "sampling", "top_p": max(scale.top_p)}
    roles = [role for role in table1.COMPARED if role in experiment.models]
    samplers: dict[str, Options] = {f"{role}, the paper's sampler": paper for role in roles}
    if "ours" in roles:
        samplers["ours, own settings"] = own
    known = read_if_there(experiment.out / TRAJECTORIES)
    prompt = read_prompts(Path(file))[0]["prompt"]
    for name, options in samplers.items():
        model = experiment.models[name.partition(",")[0]]
        asked = {"model": fingerprint(model), "prompt": prompt, "options": options}
        if known.get(name, {}).get("asked") != asked:
            known[name] = {"asked": asked, "rows": states(experiment, model, prompt, options)}
    experiment.out.mkdir(parents=True, exist_ok=True)
    write_json(experiment.out / TRAJECTORIES, known)


def states(experiment: Experiment, model: str, prompt: str, options: Options) -> list[Options]:
    """Return what the network says, and the state after it, at each shown step of a block."""
    from ssdlm.api import SSDLM

    writer = SSDLM.from_pretrained(model, device=experiment.device, dtype=experiment.dtype)
    T = writer.options.change(**options).T
    shown = {max(1, round(level * T)) for level in LEVELS}
    rows: list[Options] = []
    for draft in writer.stream(prompt, states=True, **options):
        step = draft.step
        if step.t + 1 in shown:
            guess = step.tokens[0].clone()
            guess[step.window] = to_ids(step.logits)[0]
            texts = {"logits": writer.text(guess.tolist()), "w": writer.text(state_ids(step))}
            rows.append({"t": step.t + 1, **texts})
        if step.is_last:
            break
    return rows


def state_ids(step: Step) -> list[int]:
    """Return the tokens that a block's state is nearest to.

    A sliding window has a state only where a position stays open, after a block's last step in the
    next block; what is decided reads as it is.
    """
    tokens, noisy = step.tokens[0].tolist(), to_ids(step.w_t)[0].tolist()
    if len(noisy) == len(tokens):
        return noisy
    return tokens if step.is_last else tokens[: len(tokens) - len(noisy)] + noisy


def page(experiment: Experiment, results: Results) -> Page:
    """Return the figures, the tables behind them, trajectories and examples."""
    parts: list[str] = []
    values: Options = {}
    plots: dict[str, Plot] = {}
    for role in table1.COMPARED:
        if points := grid_points(results, role):
            values[f"projection-{role}"] = points
            plots[f"projection-{role}"] = grid_plot(points)
    if costs := cost_rows(results):
        values["calls"] = [{**row.facts, **row.values} for row in costs]
        parts += ["## Calls and block length", table(COST_COLUMNS, costs, corner="B")]
        panels = curves(costs, COST_METRICS, "calls", "curve")
        plots["calls"] = Plot("calls per block", panels, LOG)
    controlled = controlled_results(experiment)
    for length in experiment.scale.control_lengths if controlled else ():
        samplers = table3.samplers(experiment, length)
        if rows := table3.rows_of(experiment, controlled, samplers, table3.targets):
            values[f"lambda-{length}"] = [row.json() for row in rows]
            plots[f"lambda-{length}"] = table3.plot_of(rows)
    for name, known in read_if_there(experiment.out / TRAJECTORIES).items():
        prompt, options = code(known["asked"]["prompt"]), json.dumps(known["asked"]["options"])
        parts.append(f"### Trajectory of {name}\n\nAfter {prompt}, with {code(options)}:")
        rows = [[str(row["t"]), code(row["logits"]), code(row["w"])] for row in known["rows"]]
        parts.append(markdown(STATES, rows, words=3))
    texts = [*best_settings(experiment, results), *steered_settings(experiment, controlled)]
    if shown := examples(texts):
        parts += ["## Examples", shown]
    notes = [*results.notes(experiment, table1.COMPARED), *NOTES]
    return Page("Figures and examples", parts, values, notes, plots)


def grid_points(results: Results, role: str) -> list[Options]:
    """Return the figures of a model's grid, a point for each projection, top-p, T and length."""
    points = []
    for name, result in results.items():
        options = result.setting.options
        home, _, rest = name.partition("/")
        figures = {metric: result.value(metric) for metric in GRID_METRICS}
        is_shown = "projection" in options and None not in figures.values()
        if is_shown and home.isdecimal() and rest.startswith(f"{role}/"):
            kept = ("projection", "top_p", "T", "length")
            points.append({key: options[key] for key in kept} | figures)
    return points


def grid_plot(points: Sequence[Options]) -> Plot:
    """Return each metric over top-p, a curve for each projection, bars over lengths and T."""
    panels: dict[str, dict[str, list[Point]]] = {metric: {} for metric in GRID_METRICS}
    for metric, (projection, label) in product(panels, PROJECTIONS.items()):
        # Greedy is where both projections end as top-p falls to 0.
        kept = [point for point in points if point["projection"] in (projection, "greedy")]
        panels[metric][label] = over(kept, "top_p", metric)
    return Plot("top-p", panels)


def over(points: Iterable[Options], option: str, metric: str) -> list[Point]:
    """Return the mean of a metric for each value of an option, its standard deviation around."""
    groups: dict[float, list[float]] = {}
    for point in points:
        groups.setdefault(point[option], []).append(point[metric])
    found = [(value, fmean(some), pstdev(some)) for value, some in sorted(groups.items())]
    return [Point(x, middle, (middle - spread, middle + spread)) for x, middle, spread in found]


def cost_rows(results: Results) -> list[Row]:
    """Return the figures over calls and block lengths, with what the writing took."""
    rows = []
    for name, result in results.items():
        if "/ours-calls/" in name and result.report is not None:
            B, calls = result.setting.options["B"], result.made["calls"]
            facts = {"B": B, "T": result.setting.options["T"], "calls": calls}
            facts |= {"calls_per_token": calls / B, "seconds": result.made["seconds"]}
            facts["curve"] = f"blocks of {B} tokens"
            rows.append(replace(row_of(str(B), [result], COST_METRICS), facts=facts))
    return rows


def controlled_results(experiment: Experiment) -> Results:
    """Return what table 3 has measured in this OUT; nothing where its prompts are not given."""
    has_prompts = table3.PROMPTS in experiment.prompts
    return read_results(experiment, table3.settings(experiment) if has_prompts else ())


def examples(chosen: Iterable[tuple[str, Result]]) -> str:
    """Return a few texts of each chosen setting as a table; nothing before any."""
    rows = []
    for name, result in chosen:
        for line in result.texts()[: FEW * result.setting.num_samples]:
            if line.get("sample", 0) < FEW:
                rows.append([name, code(line["prompt"]), code(line["text"])])
    return markdown(["model", "prompt", "continuation"], rows, words=3) if rows else ""


def best_settings(experiment: Experiment, results: Results) -> Iterator[tuple[str, Result]]:
    """Yield the setting of the highest MAUVE at the main length, for each diffusion model."""
    for role in table1.COMPARED:
        home = f"{main_length(experiment)}/{role}/"
        rivals = [result for name, result in results.items() if name.startswith(home)]
        if rivals:
            best = max(rivals, key=lambda result: result.value("mauve") or 0.0)
            yield best.setting.name.partition("/")[2], best


def steered_settings(experiment: Experiment, controlled: Results) -> Iterator[tuple[str, Result]]:
    """Yield each model's last sampler with a gradient, without control and at most lambda."""
    lengths = experiment.scale.control_lengths
    length = lengths[len(lengths) // 2]
    tried = table3.samplers(experiment, length) if controlled else ()
    last = {one.role: one for one in tried if not one.is_scored}
    for sampler in last.values():
        for lam in dict.fromkeys((min(sampler.lams), max(sampler.lams))):
            for target in table3.targets(experiment, sampler, lam):
                name = f"{sampler.home}/{target.name}"
                yield name, controlled[name]


DEFINITION = Definition(settings, page, ROLES, record=record)

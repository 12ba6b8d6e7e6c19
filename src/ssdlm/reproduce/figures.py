"""The paper's figures and examples: projection and top-p, calls and block length, lambda, texts.

Influence of projection and top-p is read from table 1's cells, that of lambda from table 3's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ssdlm.reproduce import table1, table3, trajectory
from ssdlm.reproduce.experiment import Finding, Findings, Order, find
from ssdlm.reproduce.page import Page, code, number, percent, table
from ssdlm.reproduce.setting import Cell, Diffusion

ROLES = (*table1.COMPARED, "builtin", "twin")
"""The last two are table 1's, and of no use here."""
FEW = 2
"""Prompts and samples in the table of examples."""
PANELS = {"mauve": "MAUVE, %", "ppl_micro": "PPL", "rep": "repetition, %"}
COST_PANELS = {"mauve": "MAUVE, %", "ppl_micro": "PPL", "dist-1": "Dist-1, %"}


def cells(order: Order) -> list[Cell]:
    """Return the grid of table 1, and our model over calls and block lengths."""
    diffusion = (cell for cell in table1.cells(order) if isinstance(cell.author, Diffusion))
    return [*(cell for cell in diffusion if cell.has_reference), *cost_cells(order)]


def cost_cells(order: Order) -> Iterator[Cell]:
    """Yield our model's own settings with other numbers of calls and other block lengths."""
    scale, model = order.scale, order.model("ours")
    length = main_length(order)
    if model is None or length is None:
        return
    file = order.prompt_file(str(length))
    assert file is not None
    for B in scale.blocks:
        for T in scale.calls:
            options = {"length": length, "seed": scale.seed, "B": B, "T": T}
            yield table1.cell(
                order,
                f"{length}/ours-calls/B{B}-T{T}",
                Diffusion(model),
                file,
                options,
                num_samples=scale.figure_samples,
            )


def main_length(order: Order) -> int | None:
    """Return the length that is shown in detail: 50, or the longest with prompts."""
    lengths = [n for n in order.scale.lengths if order.prompt_file(str(n)) is not None]
    return 50 if 50 in lengths else max(lengths, default=None)


def record(order: Order) -> None:
    """Write the trajectories of one block: the paper's sampler, and our own settings."""
    length = main_length(order)
    if length is None:
        return
    scale = order.scale
    paper = table1.PAPER_SAMPLER | {"length": length, "B": scale.B, "seed": scale.seed}
    paper |= {"T": scale.T[-1], "projection": "sampling", "top_p": max(scale.top_p)}
    settings: dict[str, dict[str, Any]] = {
        f"{role}, the paper's sampler": paper for role in table1.COMPARED if order.model(role)
    }
    if order.model("ours"):
        settings["ours, own settings"] = {"length": length, "seed": scale.seed}
    file = order.prompt_file(str(length))
    assert file is not None
    trajectory.record(order, file, settings)


def page(order: Order, found: Findings) -> Page:
    """Return the figures, the tables behind them, trajectories and examples."""
    parts, values, plots = [], {}, {}
    for role in table1.COMPARED:
        points = grid_points(found, role)
        if points:
            name = f"projection-{role}"
            values[name] = points
            plots[name] = lambda figure, points=points: draw_grid(figure, points)
    costs = cost_points(found)
    if costs:
        values["calls"] = costs
        parts += ["## Calls and block length", cost_table(costs)]
        plots["calls"] = lambda figure: draw_costs(figure, costs)
    controlled = controlled_findings(order)
    for length in order.scale.control_lengths:
        if lines := table3.lines(order, controlled, length) if controlled else []:
            values[f"lambda-{length}"] = [vars(line) for line in lines]
            plots[f"lambda-{length}"] = lambda figure, lines=lines: table3.draw(figure, lines)
    if trajectories := trajectory.parts(order):
        parts += ["## Trajectories", *trajectories]
    if texts := examples([*shown(order, found), *steered(order, controlled)]):
        parts += ["## Examples", texts]
    return Page("Figures and examples", parts, values, notes(order, found), plots)


def grid_points(found: Findings, role: str) -> list[dict[str, Any]]:
    """Return the figures of a model's grid, a point for each projection, top-p, T and length."""
    points = []
    for name, finding in found.items():
        options = finding.cell.options
        home, _, rest = name.partition("/")
        if home.isdecimal() and rest.startswith(f"{role}/") and "projection" in options:
            figures = {metric: finding.value(metric) for metric in PANELS}
            if None not in figures.values():
                setting = {key: options[key] for key in ("projection", "top_p", "T", "length")}
                points.append(setting | figures)
    return points


def draw_grid(figure: Any, points: Sequence[dict[str, Any]]) -> None:
    """Draw each metric over top-p, a line for each projection, bars over lengths and T."""
    for axes, (metric, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        unit = 1 if metric == "ppl_micro" else 100
        for projection in ("sampling", "multi_hot"):
            # Greedy is where both projections end as top-p falls to 0.
            kept = [p for p in points if p["projection"] in (projection, "greedy")]
            means, spreads = over(kept, "top_p", metric, unit)
            axes.errorbar(list(means), means.values(), spreads.values(), label=projection, fmt="o-")
        axes.set(xlabel="top-p", title=title)
        axes.legend()


def over(
    points: Sequence[dict[str, Any]], key: str, metric: str, unit: int
) -> tuple[dict[float, float], dict[float, float]]:
    """Return mean and standard deviation of a metric for each value of a setting."""
    import numpy as np

    groups: dict[float, list[float]] = {}
    for point in points:
        groups.setdefault(point[key], []).append(unit * point[metric])
    ordered = {value: np.array(groups[value]) for value in sorted(groups)}
    means = {value: float(figures.mean()) for value, figures in ordered.items()}
    return means, {value: float(figures.std()) for value, figures in ordered.items()}


def cost_points(found: Findings) -> list[dict[str, Any]]:
    """Return the figures over calls and block lengths, with what the writing took."""
    points = []
    for finding in found.values():
        if "/ours-calls/" in finding.cell.name and finding.report is not None:
            options = finding.cell.options
            setting = {"B": options["B"], "T": options["T"]}
            setting |= {key: finding.made[key] for key in ("calls", "seconds")}
            points.append(setting | {metric: finding.value(metric) for metric in COST_PANELS})
    return points


def cost_table(points: Sequence[dict[str, Any]]) -> str:
    """Return the figures over calls and block lengths as a table."""
    rows = [
        [
            str(point["B"]),
            str(point["T"]),
            str(point["calls"]),
            number(point["calls"] / point["B"]),
            percent(point["mauve"]),
            number(point["ppl_micro"]),
            percent(point["dist-1"]),
            number(point["seconds"], 0),
        ]
        for point in points
    ]
    heading = ["B", "T", "calls a block", "calls a token", "MAUVE", "PPL", "Dist-1", "writing s"]
    return table(heading, rows)


def draw_costs(figure: Any, points: Sequence[dict[str, Any]]) -> None:
    """Draw each metric over the calls a block, a line for each block length."""
    panels = zip(figure.subplots(1, len(COST_PANELS)), COST_PANELS.items(), strict=True)
    for axes, (metric, title) in panels:
        unit = 1 if metric == "ppl_micro" else 100
        for B in sorted({point["B"] for point in points}):
            kept = [p for p in points if p["B"] == B and p[metric] is not None]
            calls = [point["calls"] for point in kept]
            axes.plot(calls, [unit * point[metric] for point in kept], "o-", label=f"B = {B}")
        scale = "log" if metric == "ppl_micro" else "linear"
        axes.set(xlabel="calls a block", title=title, xscale="log", yscale=scale)
        axes.legend()


def controlled_findings(order: Order) -> Findings:
    """Return what table 3 has measured in this OUT; nothing where its prompts are not given."""
    if table3.PROMPTS not in order.prompts:
        return Findings()
    return find(order, table3.cells(order))


def examples(chosen: Sequence[tuple[str, Finding]]) -> str:
    """Return a few texts of each chosen setting as a table; nothing before any."""
    rows = []
    for name, finding in chosen:
        for line in finding.lines()[: FEW * finding.cell.num_samples]:
            if line.get("sample", 0) < FEW:
                rows.append([name, code(line["prompt"]), code(line["text"])])
    return table(["model", "prompt", "continuation"], rows, words=3) if rows else ""


def steered(order: Order, controlled: Findings) -> Iterator[tuple[str, Finding]]:
    """Yield each model's last setting of table 3, without control and at the largest lambda."""
    lengths = order.scale.control_lengths
    length = lengths[len(lengths) // 2]
    settings = table3.settings(order, length) if controlled else ()
    last = {role: (setting, lams) for role, setting, _, lams in settings}
    for role, (setting, lams) in last.items():
        for lam in dict.fromkeys((min(lams), max(lams))):
            for wish in table3.wishes(order, lam):
                name = f"control/{length}/{role}/{setting}/{wish.name}"
                yield name, controlled[name]


def shown(order: Order, found: Findings) -> Iterator[tuple[str, Finding]]:
    """Yield the setting of the highest MAUVE at the main length, for each diffusion model."""
    for role in table1.COMPARED:
        home = f"{main_length(order)}/{role}/"
        rivals = [finding for name, finding in found.items() if name.startswith(home)]
        ranked = sorted(rivals, key=lambda finding: -(finding.value("mauve") or 0.0))
        for finding in ranked[:1]:
            yield finding.cell.name.partition("/")[2], finding


def notes(order: Order, found: Findings) -> list[str]:
    """Return what is missing, and how the figures are to be read."""
    said = [
        f"no model was given as `{role}`" for role in table1.COMPARED if role not in order.models
    ]
    if missing := found.missing():
        said.append(f"{len(missing)} cells are not measured yet: {', '.join(missing[:8])}")
    said.append("bars over top-p are standard deviations over lengths and T, as in the paper")
    said.append("greedy projection is top-p 0; Dist falls with the number of samples a prompt")
    return said

"""Table 1 and its appendix: continuations without control, over projections, top-p and T.

For each length: people, autoregressive models over seeds, the paper's recipe, and ours, measured
against the same gold; then the prompts that have no gold, apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from ssdlm.reproduce import published
from ssdlm.reproduce.experiment import Findings, Order
from ssdlm.reproduce.page import Page, number, percent, table
from ssdlm.reproduce.setting import Author, Autoregressive, Cell, Diffusion, Gold

METRICS = ("mauve", "ppl", "dist", "zipf", "rep")
COLUMNS = {
    "mauve": "MAUVE",
    "ppl_micro": "PPL",
    "delta_log_ppl": "abs. delta log PPL",
    "dist-1": "Dist-1",
    "dist-2": "Dist-2",
    "dist-3": "Dist-3",
    "zipf": "Zipf",
    "rep": "Rep",
}
DIFFUSION = {"paper": "the paper's recipe", "ours": "ours", "builtin": "the built-in model"}
"""Roles of models of this library; every other role is an autoregressive model."""
COMPARED = ("paper", "ours")
"""Those that the paper's sampler is tried on; the built-in model, trained for longer, is extra."""
OWN = ("ours", "builtin")
"""Those that have settings of their own."""
PAPER_SAMPLER = {
    "grid": "uniform",
    "nucleus": "logits",
    "temperature": 1.0,
    "rule": "renoise",
    "rho": 0.0,
    "returns": "logits",
    "early_exit": False,
}
"""What the authors' decoder does, whatever a model's own settings are."""
OPEN_TOP_P = 0.9
"""Without gold, the nuclei from here on are tried, at the first T."""
BEST = 3
"""Settings of each diffusion model that stand beside the paper's; the paper shows as many."""


def cells(order: Order) -> list[Cell]:
    """Return all settings at all lengths for which there are prompts."""
    found: list[Cell] = []
    for length in order.scale.lengths:
        if file := order.prompt_file(str(length)):
            found += closed_cells(order, length, file)
        if file := order.prompts.get(f"owt-{length}"):
            found += open_cells(order, length, file)
    if not found:
        raise ValueError("there are no prompts; give --prompts 50=FILE, made by `ssdlm prompts`")
    return found


def closed_cells(order: Order, length: int, file: str) -> Iterator[Cell]:
    """Yield the settings at one length, with gold."""
    yield cell(order, f"{length}/gold", Gold(), file, {}, num_samples=1)
    for role in autoregressive(order):
        for sampler in order.scale.samplers:
            yield from drawn(order, f"{length}/{role}", role, file, length, sampler)
    for role in COMPARED:
        if model := order.model(role):
            for name, options in grid(order, length):
                yield cell(order, f"{length}/{role}/{name}", Diffusion(model), file, options)
    yield from own_settings(order, f"{length}", file, length)


def open_cells(order: Order, length: int, file: str) -> Iterator[Cell]:
    """Yield some settings at one length, without gold: one seed, one T, the wider nuclei."""
    home = f"owt-{length}"
    for role in autoregressive(order):
        for sampler in order.scale.samplers:
            yield next(drawn(order, f"{home}/{role}", role, file, length, sampler, has_gold=False))
    for role in COMPARED:
        if model := order.model(role):
            for name, options in grid(order, length, is_small=True):
                where = f"{home}/{role}/{name}"
                yield cell(order, where, Diffusion(model), file, options, has_gold=False)
    yield from own_settings(order, home, file, length, has_gold=False)


def autoregressive(order: Order) -> list[str]:
    """Return the roles of autoregressive models that were given."""
    return [role for role in order.models if role not in DIFFUSION]


def drawn(
    order: Order, home: str, role: str, file: str, length: int, sampler: str, **rest: Any
) -> Iterator[Cell]:
    """Yield one sampler of an autoregressive model, a cell for each seed."""
    name, _, value = sampler.partition("=")
    for seed in order.scale.seeds:
        options = {"length": length, "seed": seed, name: float(value)}
        where = f"{home}/{name}-{value}/seed-{seed}"
        yield cell(order, where, Autoregressive(order.models[role]), file, options, **rest)


def grid(
    order: Order, length: int, *, is_small: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paper's sampler over projections, nuclei and T; greedy is one point of both."""
    scale = order.scale
    fixed = {"length": length, "B": scale.B, "seed": scale.seed} | PAPER_SAMPLER
    for T in scale.T[:1] if is_small else scale.T:
        for projection in ("greedy", *scale.projections):
            for top_p in scale.top_p:
                if (projection == "greedy") != (top_p == 0) or (is_small and top_p < OPEN_TOP_P):
                    continue
                name = f"{projection}-p{top_p:g}-T{T}"
                yield name, fixed | {"projection": projection, "top_p": top_p, "T": T}


def own_settings(order: Order, home: str, file: str, length: int, **rest: Any) -> Iterator[Cell]:
    """Yield our models with the settings that their folders recommend, and with other nuclei."""
    options = {"length": length, "seed": order.scale.seed}
    for role in (role for role in OWN if order.model(role)):
        author = Diffusion(order.models[role])
        yield cell(order, f"{home}/{role}/own", author, file, options, **rest)
        for top_p in order.scale.free_top_p:
            other = options | {"top_p": top_p}
            yield cell(order, f"{home}/{role}/own-p{top_p:g}", author, file, other, **rest)


def cell(
    order: Order,
    name: str,
    author: Author,
    file: str,
    options: dict[str, Any],
    *,
    num_samples: int = 0,
    has_gold: bool = True,
) -> Cell:
    """Return a cell of this table: how much the scale says, and the paper's metrics."""
    has_reference = has_gold and not isinstance(author, Gold)
    metrics = METRICS if has_reference else METRICS[1:]
    return Cell(
        name=name,
        author=author,
        prompts=file,
        num_prompts=order.scale.num_prompts,
        num_samples=num_samples or order.scale.num_samples,
        options=options,
        measures={"metrics": metrics} | ({"features": features(order)} if has_reference else {}),
        has_reference=has_reference,
    )


def features(order: Order) -> tuple[str, ...]:
    return order.scale.features


@dataclass(frozen=True)
class Line:
    """A row of a table: some figures, and their spread over seeds where there is one."""

    label: str
    values: Mapping[str, float | None]
    spread: dict[str, float]
    cost: tuple[str, str, str] = ("", "", "")
    """Tokens seen in training, its seconds, seconds of writing."""

    def shown(self) -> list[str]:
        """Return the cells of the row."""
        return [self.label, *(self.figure(name) for name in COLUMNS), *self.cost]

    def figure(self, name: str) -> str:
        """Return a figure as the paper prints it."""
        form = percent if name in published.PERCENT else number
        plus = f" +- {form(self.spread[name])}" if name in self.spread else ""
        return form(self.values.get(name)) + plus


def page(order: Order, found: Findings) -> Page:
    """Return the page: for each length the paper's rows, then ours; then every setting."""
    parts, values = [introduction(order, found)], {}
    for home in homes(found):
        ours = lines(order, found, home)
        values[home] = [vars(line) for line in ours]
        length = int(home.removeprefix("owt-"))
        has_gold = home == str(length)
        printed = published_lines(length) if has_gold else []
        heading = f"## Length {length}" + ("" if has_gold else ", OpenWebText prompts, no gold")
        best = shortlist(ours)
        parts += [heading, counts(found, home), rows_of([*printed, *best])]
        if len(best) < len(ours):
            parts += [f"Every setting at length {length}:", rows_of(ours)]
    return Page("Unconstrained generation", parts, {"tables": values}, notes(order, found))


def introduction(order: Order, found: Findings) -> str:
    """Return what the figures are."""
    scale, judge = order.scale, " and ".join(found.judges()) or order.scale.judge
    return (
        f"Scale `{scale.name}`. Prompts are as long as their continuations. Judge {judge}, "
        f"MAUVE's features from {scale.features[0]}. MAUVE, Dist and Rep in percent. Rows marked "
        "[paper] are printed in the paper, measured there on other text by other judges: compare "
        "shapes, not digits."
    )


def counts(found: Findings, home: str) -> str:
    """Return how many texts a figure is made of."""
    reports = [one.report for name, one in found.items() if name.startswith(f"{home}/")]
    sizes = [report["counts"] for report in reports if report is not None]
    told = {f"{size['samples']} texts after {size['prompts']} prompts" for size in sizes}
    return f"Measured on {', or '.join(sorted(told))}." if told else "Nothing is measured yet."


def homes(found: Findings) -> list[str]:
    """Return the parts of the table, in the order of its cells."""
    return list(dict.fromkeys(name.partition("/")[0] for name in found))


def lines(order: Order, found: Findings, home: str) -> list[Line]:
    """Return a line for each setting of ours that was measured; seeds of a sampler are one."""
    groups: dict[str, list[str]] = {}
    for name in found:
        if name.startswith(f"{home}/"):
            setting = name.removeprefix(f"{home}/").partition("/seed-")[0]
            groups.setdefault(setting, []).append(name)
    rows = []
    for setting, names in groups.items():
        there = [name for name in names if found[name].report is not None]
        if there:
            row = line(found, setting, there)
            share = f" ({len(there)} of {len(names)} seeds)" if len(there) < len(names) else ""
            rows.append(replace(row, label=row.label + share))
    return rows


def line(found: Findings, setting: str, names: Sequence[str]) -> Line:
    """Return the mean over the cells of a setting, and their standard deviation."""
    values: dict[str, float | None] = {}
    spread: dict[str, float] = {}
    for metric in COLUMNS:
        figures = [found.value(name, metric) for name in names]
        known = [figure for figure in figures if figure is not None]
        values[metric] = mean(known) if known else None
        if len(known) > 1:
            spread[metric] = stdev(known)
    if setting == "gold":
        values |= {"mauve": 1.0, "delta_log_ppl": 0.0}
    return Line(label(setting), values, spread, cost(found, names))


def label(setting: str) -> str:
    """Return a setting in words: `ours/sampling-p0.95-T200` -> `ours, sampling p0.95 T200`."""
    if setting == "gold":
        return "Gold continuation"
    role, _, rest = setting.partition("/")
    return f"{DIFFUSION.get(role, role)}, {rest.replace('-', ' ')}"


def cost(found: Findings, names: Sequence[str]) -> tuple[str, str, str]:
    """Return tokens seen and seconds of training, and seconds of writing; blank if unknown."""
    made = [found[name].made for name in names]
    trained = made[0].get("training") or {}
    seconds = [one["seconds"] for one in made if one.get("seconds") is not None]
    return (
        f"{trained['tokens'] / 1e6:.0f}M" if trained else "",
        f"{trained['seconds']:.0f}" if trained else "",
        f"{mean(seconds):.0f}" if seconds else "",
    )


def shortlist(ours: Sequence[Line]) -> list[Line]:
    """Return gold, every autoregressive sampler, and each diffusion model's best by MAUVE."""
    kept = []
    for line in ours:
        rivals = [other for other in ours if is_diffusion(other) and kind(other) == kind(line)]
        rivals.sort(key=lambda other: -(other.values["mauve"] or 0.0))
        if not is_diffusion(line) or ", own" in line.label or line in rivals[:BEST]:
            kept.append(line)
    return kept


def is_diffusion(line: Line) -> bool:
    """Tell whether a line is of a model of this library."""
    return kind(line) in DIFFUSION.values()


def kind(line: Line) -> str:
    """Return the model that a line is of."""
    return line.label.partition(",")[0]


def published_lines(length: int) -> list[Line]:
    """Return the paper's rows at a length."""
    return [
        Line(f"[paper] {', '.join(filter(None, (row.model, row.setting)))}", row.values, row.spread)
        for row in published.rows(published.UNCONSTRAINED, length)
    ]


def rows_of(lines: Sequence[Line]) -> str:
    """Return lines as a Markdown table."""
    heading = ["", *COLUMNS.values(), "tokens seen", "training s", "writing s"]
    return table(heading, [line.shown() for line in lines])


def notes(order: Order, found: Findings) -> list[str]:
    """Return what is missing, and how the figures are to be read."""
    lacking = [role for role in ("twin", *COMPARED) if role not in order.models]
    said = [f"no model was given as `{role}`; its rows are missing" for role in lacking]
    for length in order.scale.lengths:
        if order.prompt_file(str(length)) is None:
            said.append(f"no prompts were given for length {length}")
    if len(of_models(found, "settings", "model", "tokenizer.json")) > 1:
        said.append("the models have different tokenizers: a length is in each one's own tokens")
    if len(of_models(found, "training", "data")) > 1:
        said.append("the models were not all trained on the same data")
    if missing := found.missing():
        said.append(f"{len(missing)} cells are not measured yet: {', '.join(missing[:8])}")
    said.append("+- is the standard deviation over seeds; Dist of gold pools one text a prompt")
    return said


def of_models(found: Findings, *path: str) -> set[str]:
    """Return the different values of a fact about the models that wrote, where it is known."""
    known = set()
    for finding in found.values():
        fact: Any = finding.made
        for key in path:
            fact = fact.get(key) if isinstance(fact, dict) else None
        if fact:
            known.add(str(fact))
    return known

"""Table 3 and its appendix: continuations steered by a classifier, over lambda and top-p.

For each length and setting a text is written for every label, and read by the guide itself
(internal) and by a classifier that had no part in it (external); without control both labels are
asked of the same texts. Then two controls at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from ssdlm.reproduce import published
from ssdlm.reproduce.experiment import Finding, Findings, Order
from ssdlm.reproduce.page import Page, number, percent, table
from ssdlm.reproduce.setting import Cell, Diffusion
from ssdlm.reproduce.table1 import COMPARED, DIFFUSION, PAPER_SAMPLER

PROMPTS = "pplm"
ROLES = COMPARED
METRICS = ("ppl", "dist")
COLUMNS = {
    "control_external": "C-Ext.",
    "control_internal": "(Int.)",
    "ppl_macro": "PPL",
    "dist-1": "Dist-1",
    "dist-2": "Dist-2",
    "dist-3": "Dist-3",
}
EVEN_LAM = 10.0
"""Beyond this a plot's lambdas are spaced by their logarithm."""
PANELS = {
    "control_external": "external accuracy, %",
    "control_internal": "internal accuracy, %",
    "ppl_macro": "PPL",
}


def cells(order: Order) -> list[Cell]:
    """Return all settings at all lengths: the paper's sampler, ours, and two controls at once."""
    file = order.prompt_file(PROMPTS)
    if file is None:
        raise ValueError(f"there are no prompts; give --prompts {PROMPTS}=FILE, the paper's 15")
    found: list[Cell] = []
    for length in order.scale.control_lengths:
        for role, setting, options, lams in settings(order, length):
            for lam in lams:
                found += [
                    cell(order, file, role, setting, options, wish) for wish in wishes(order, lam)
                ]
    length = max(order.scale.control_lengths)
    for role, setting, options, lams in settings(order, length):
        if role == "ours" and any(lams):
            for pair in pairs(order, lams):
                found.append(cell(order, file, role, setting, options, pair))
    return found


@dataclass(frozen=True)
class Wished:
    """What a cell's texts are steered to, and the labels that they are asked about."""

    name: str
    control: tuple[str, ...]
    guides: tuple[str, ...]
    judges: tuple[str, ...]
    """CLASSIFIER=LABEL; the guides' are internal, the judges' external."""


def settings(
    order: Order, length: int
) -> Iterator[tuple[str, str, dict[str, Any], tuple[float, ...]]]:
    """Yield role, name, options and lambdas: the paper's grid, and our model's own settings."""
    scale = order.scale
    fixed = {"length": length, "seed": scale.seed}
    if order.model("paper"):
        paper = fixed | PAPER_SAMPLER | {"B": min(length, scale.B), "gradient": "logits"}
        for projection, top_p, T in product(
            scale.projections, scale.control_top_p, scale.control_T
        ):
            how = {"projection": projection, "top_p": top_p, "T": T}
            yield "paper", f"{projection}-p{top_p:g}-T{T}", paper | how, scale.lams
    if order.model("ours"):
        for top_p in scale.own_top_p:
            own = fixed | {"top_p": top_p, "gradient": "words"}
            yield "ours", f"own-p{top_p:g}", own, scale.own_lams


def wishes(order: Order, lam: float) -> Iterator[Wished]:
    """Yield what to steer to: each label, or nothing, and then both are asked about."""
    scale = order.scale
    asked = {
        label: tuple(f"{name}={label}" for name in (scale.guide, *scale.control_judges))
        for label in scale.labels
    }
    if lam == 0:
        guides = tuple(asked[label][0] for label in scale.labels)
        judges = tuple(wish for label in scale.labels for wish in asked[label][1:])
        yield Wished("lam0", (), guides, judges)
        return
    for label in scale.labels:
        guide, *judges = asked[label]
        yield Wished(f"lam{lam:g}/{label}", (f"{guide}:{lam:g}",), (guide,), tuple(judges))


def pairs(order: Order, lams: Sequence[float]) -> Iterator[Wished]:
    """Yield two controls at once: each label with each of the second guide's, at every lambda."""
    for lam in lams:
        for wish, second in product(wishes(order, lam) if lam else (), order.scale.second):
            plain = second.partition(":")[0]
            label = plain.partition("=")[2]
            yield Wished(
                f"{wish.name}+{label}",
                (*wish.control, second),
                (*wish.guides, plain),
                wish.judges,
            )


def cell(
    order: Order, file: str, role: str, setting: str, options: dict[str, Any], wish: Wished
) -> Cell:
    """Return a cell of this table."""
    control = {"control": list(wish.control)} if wish.control else {}
    return Cell(
        name=f"control/{options['length']}/{role}/{setting}/{wish.name}",
        author=Diffusion(order.models[role]),
        prompts=file,
        num_prompts=order.scale.num_prompts,
        num_samples=order.scale.control_samples,
        options=options | control,
        measures={
            "metrics": METRICS,
            "control_guides": wish.guides,
            "control_judges": wish.judges,
        },
        judge=order.scale.control_ppl,
        has_reference=False,
    )


@dataclass(frozen=True)
class Line:
    """A row: figures over all labels, and the external accuracy of each label."""

    label: str
    values: dict[str, float | None]
    by_label: dict[str, float | None]
    lam: float = 0.0
    setting: str = ""
    seconds: float | None = None

    def shown(self, labels: Sequence[str]) -> list[str]:
        """Return the cells of the row."""
        figures = [show(name, self.values.get(name)) for name in COLUMNS]
        ratio = number(self.values.get("ppl_ratio"))
        each = [percent(self.by_label.get(label), 1) for label in labels]
        seconds = "" if self.seconds is None else f"{self.seconds:.0f}"
        return [self.label, *figures, ratio, *each, seconds]


def show(metric: str, value: float | None) -> str:
    """Return a figure as the paper prints it."""
    return number(value, 1) if metric == "ppl_macro" else percent(value, 1)


def page(order: Order, found: Findings) -> Page:
    """Return the page: for each length the paper's rows, then ours; pairs; and the plot."""
    parts, values, plots = [introduction(order, found)], {}, {}
    for length in order.scale.control_lengths:
        ours = lines(order, found, length)
        values[str(length)] = [vars(line) for line in ours]
        parts += [f"## Length {length}", rows_of(order, [*published_lines(length), *ours])]
        if drawn := [line for line in ours if line.values.get("ppl_macro") is not None]:
            plots[f"lambda-{length}"] = lambda figure, drawn=drawn: draw(figure, drawn)
    if both := pair_rows(order, found):
        values["pairs"] = both
        parts += ["## Two controls at once", pair_table(both)]
    return Page("Controlled generation", parts, {"tables": values}, notes(order, found), plots)


def introduction(order: Order, found: Findings) -> str:
    """Return what the figures are, and how far the judge can be trusted."""
    scale = order.scale
    reader = " and ".join(found.judges()) or scale.control_ppl or scale.judge
    judges = ", ".join(f"{name} ({accuracy_of(name)})" for name in scale.control_judges) or "none"
    return (
        f"Scale `{scale.name}`: the paper's prompts x {scale.control_samples} samples x "
        f"{len(scale.labels)} labels. Guide {scale.guide}; outside judge {judges}. PPL by "
        f"{reader}, macro average, and its ratio to lambda = 0 of the "
        "same setting. Accuracies and Dist in percent, means over the labels. Rows marked [paper] "
        "are printed in the paper, measured there by other judges: compare shapes, not digits."
    )


def accuracy_of(judge: str) -> str:
    """Return a judge's own accuracy on texts held out, from its folder."""
    path = Path(judge) / "config.json"
    if not path.exists():
        return "its own accuracy is on its model card"
    known = json.loads(path.read_text(encoding="utf-8")).get("guide_accuracy")
    if not known:
        return "its own accuracy is not told"
    return "itself right on " + ", ".join(f"{percent(v, 1)} % of {k}" for k, v in known.items())


def lines(order: Order, found: Findings, length: int) -> list[Line]:
    """Return a line for each setting and lambda of which every label was measured."""
    rows = []
    for role, setting, _, lams in settings(order, length):
        home, plain = f"control/{length}/{role}/{setting}", None
        for lam in lams:
            some = [found[f"{home}/{wish.name}"] for wish in wishes(order, lam)]
            if any(finding.report is None for finding in some):
                continue
            line = line_of(order, some, lam, f"{DIFFUSION[role]}, {setting.replace('-', ' ')}")
            plain = line if lam == 0 else plain
            base = plain.values["ppl_macro"] if plain else None
            ppl = line.values["ppl_macro"]
            line.values["ppl_ratio"] = ppl / base if base and ppl else None
            rows.append(line)
    return rows


def line_of(order: Order, some: Sequence[Finding], lam: float, setting: str) -> Line:
    """Return the figures of one lambda, over its labels."""
    external = {label: accuracy(some, label, "external") for label in order.scale.labels}
    internal = {label: accuracy(some, label, "internal") for label in order.scale.labels}
    values = {
        "control_external": average(external.values()),
        "control_internal": average(internal.values()),
        **{name: average(one.value(name) for one in some) for name in list(COLUMNS)[2:]},
    }
    seconds = average(one.made.get("seconds") for one in some)
    return Line(f"{setting}, lambda {lam:g}", values, external, lam, setting, seconds)


def accuracy(some: Sequence[Finding], label: str, side: str) -> float | None:
    """Return how often the label was found, by the mean over several judges."""
    known = []
    for finding in some:
        asked = finding.cell.measures["control_guides" if side == "internal" else "control_judges"]
        for wish in asked:
            if wish.rpartition("=")[2] == label:
                name = f"control_{side}" + ("" if len(asked) == 1 else f":{wish}")
                known.append(finding.value(name))
    return average(known)


def average(values: Any) -> float | None:
    """Return the mean of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def published_lines(length: int) -> list[Line]:
    """Return the paper's rows at a length."""
    return [
        Line(f"[paper] {row.model}, {row.setting}", dict(row.values), {})
        for row in published.rows(published.CONTROLLED, length)
    ]


def rows_of(order: Order, lines: Sequence[Line]) -> str:
    """Return lines as a Markdown table."""
    labels = order.scale.labels
    each = [f"C-Ext. {label}" for label in labels]
    heading = ["", *COLUMNS.values(), "PPL / lambda 0", *each, "writing s"]
    return table(heading, [line.shown(labels) for line in lines])


def pair_rows(order: Order, found: Findings) -> list[dict[str, Any]]:
    """Return for each setting and lambda how often both controls held, over all pairs."""
    rows = []
    length = max(order.scale.control_lengths)
    for role, setting, _, lams in settings(order, length):
        if role != "ours":
            continue
        home = f"control/{length}/{role}/{setting}"
        base = found.value(f"{home}/lam0", "ppl_macro")
        for lam in lams:
            some = [found[f"{home}/{wish.name}"] for wish in pairs(order, [lam])]
            if some and all(finding.report is not None for finding in some):
                rows.append({"setting": setting, "lam": lam} | pair_figures(order, some, base))
    return rows


def pair_figures(order: Order, some: Sequence[Finding], base: float | None) -> dict[str, Any]:
    """Return the figures of all pairs of labels together."""
    first, second = order.scale.guide, order.scale.second[0].partition("=")[0]

    def internal(name: str) -> float | None:
        wishes = [(one, wish) for one in some for wish in one.cell.measures["control_guides"]]
        kept = [(one, wish) for one, wish in wishes if wish.startswith(f"{name}=")]
        return average(one.value(f"control_internal:{wish}") for one, wish in kept)

    external = [accuracy([one], label, "external") for one in some for label in order.scale.labels]
    ppl = average(one.value("ppl_macro") for one in some)
    return {
        "external": average(external),
        "internal": internal(first),
        "second": internal(second),
        "second_counted": counted(some),
        "ppl_macro": ppl,
        "ppl_ratio": ppl / base if ppl and base else None,
        "dist-2": average(one.value("dist-2") for one in some),
    }


FORMS = {
    "past": {"was", "were", "had", "did", "wasn't", "weren't", "hadn't", "didn't"},
    "present": {"is", "are", "am", "has", "does", "isn't", "aren't", "hasn't", "doesn't", "i'm"},
}
"""The auxiliary verbs of a tense: what tells it without any classifier."""


def counted(some: Sequence[Finding]) -> float | None:
    """Return the share of texts with more verbs of the tense asked for, of those with any."""
    right: list[float] = []
    for finding in some:
        tense = finding.cell.measures["control_guides"][-1].rpartition("=")[2]
        if tense not in FORMS:
            continue
        for line in finding.lines():
            words = [word.strip('.,;:!?"()').lower() for word in line["text"].split()]
            wanted = sum(word in FORMS[tense] for word in words)
            others = sum(
                word in forms for name, forms in FORMS.items() if name != tense for word in words
            )
            if wanted != others:
                right.append(float(wanted > others))
    return average(right)


def pair_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return two controls at once as a Markdown table."""
    heading = [
        "",
        "C-Ext.",
        "(Int.)",
        "second (Int.)",
        "second, by its verbs",
        "PPL",
        "PPL / lambda 0",
        "Dist-2",
    ]
    return table(
        heading,
        [
            [
                f"{row['setting'].replace('-', ' ')}, lambda {row['lam']:g}",
                *(percent(row[k], 1) for k in ("external", "internal", "second", "second_counted")),
                number(row["ppl_macro"], 1),
                number(row["ppl_ratio"]),
                percent(row["dist-2"], 1),
            ]
            for row in rows
        ],
    )


def draw(figure: Any, lines: Sequence[Line]) -> None:
    """Draw accuracies and perplexity over lambda, a line for each setting."""
    for axes, (metric, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        unit = 1 if metric == "ppl_macro" else 100
        for setting in dict.fromkeys(line.setting for line in lines):
            kept = [line for line in lines if line.setting == setting]
            known = [(line.lam, line.values[metric]) for line in kept]
            points = [(lam, unit * value) for lam, value in known if value is not None]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", label=setting)
        axes.set(xlabel="lambda", title=title)
        if max(line.lam for line in lines) > EVEN_LAM:
            axes.set_xscale("symlog", linthresh=EVEN_LAM)
        axes.legend(fontsize="small")


def notes(order: Order, found: Findings) -> list[str]:
    """Return what is missing, and how the figures are to be read."""
    said = [f"no model was given as `{role}`; its rows are missing" for role in COMPARED
            if role not in order.models]  # fmt: skip
    if not order.scale.control_judges:
        said.append("no outside judge was given; name one with --set control_judges=FOLDER")
    if missing := found.missing():
        said.append(f"{len(missing)} cells are not measured yet: {', '.join(missing[:8])}")
    said.append("neutral is left out of the classifiers' choice, as the authors do")
    return said

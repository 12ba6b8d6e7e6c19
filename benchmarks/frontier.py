"""Texts of control.py, read by judges and put into a table and a picture.

    control.py write -> [read: what judges say of each text, on a GPU or here] -> [report]

Accuracy is a judge's, which had no part in steering; perplexity a language model's, macro average,
relative to texts without control. Tense is told by judges that know `past` and `present`, and by
counting auxiliary verbs (`--judge verbs=verbs`). Intervals are over prompts, by bootstrap.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ssdlm.evaluate.bootstrap import Bootstrap
from ssdlm.evaluate.diversity import PromptMean, distinct
from ssdlm.evaluate.figures import Figure, measure
from ssdlm.evaluate.judge import load_encoder, load_judge
from ssdlm.evaluate.mauve import features, without_native_lines
from ssdlm.evaluate.perplexity import Surprise, surprise
from ssdlm.evaluate.samples import Pool, Sample
from ssdlm.evaluate.self_bleu import self_bleu
from ssdlm.guidance import load_text_classifier
from ssdlm.guidance.judges import NEITHER
from ssdlm.storage.files import read_json, write_file, write_json
from ssdlm.storage.jsonl import parse_jsonl

WAYS = {
    "plain": ("#777777", "no control"),
    "gradient": ("#1f77b4", "gradient"),
    "both": ("#d62728", "gradient, and particles by the guide"),
    "mixed": ("#8c564b", "gradient, and particles by n-grams"),
    "all": ("#ff7f0e", "gradient, and particles by both"),
    "words": ("#9467bd", "particles by n-grams"),
    "guide": ("#2ca02c", "particles by the guide"),
    "folder": ("#000000", "particles by a classifier"),
    "best-words": ("#bcbd22", "best of n by n-grams"),
    "best": ("#e377c2", "best of n by the guide"),
    "fudge": ("#17becf", "the likeliest tokens, weighed (FUDGE)"),
}
"""What a picture has for each way to steer: a colour, and words."""


@dataclass(frozen=True)
class Texts:
    """The texts of one arm, and what judges said of them."""

    path: Path

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of its file, those of a prompt together."""
        lines = parse_jsonl(self.path.read_bytes().splitlines(), source=self.path.name)
        rows = [row for _, row in lines]
        prompts = list(dict.fromkeys(row["prompt"] for row in rows))
        return sorted(rows, key=lambda row: prompts.index(row["prompt"]))

    @cached_property
    def pools(self) -> list[Pool]:
        """Its texts by prompt."""
        found: dict[str, list[Sample]] = {}
        for row in self.rows:
            sample = Sample(row["text"], tuple(row["tokens"]))
            found.setdefault(row["prompt"], []).append(sample)
        return [Pool(prompt, tuple(samples)) for prompt, samples in found.items()]

    @property
    def readings(self) -> Path:
        """Where it is kept what judges said."""
        return self.path.with_suffix(".npz")

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """What judges said, by what it is."""
        return dict(np.load(self.readings)) if self.readings.exists() else {}

    @property
    def surprise(self) -> Surprise:
        sizes = [len(pool.samples) for pool in self.pools]
        index = np.repeat(np.arange(len(sizes)), sizes)
        return Surprise(self.arrays["nll"], self.arrays["tokens"], index)

    def mean(self, values: Sequence[float | None]) -> PromptMean:
        """Return the mean over texts of those values that are numbers."""
        totals, counts = np.zeros(len(self.pools)), np.zeros(len(self.pools))
        number = {pool.prompt: index for index, pool in enumerate(self.pools)}
        for row, value in zip(self.rows, values, strict=True):
            if value is not None:
                totals[number[row["prompt"]]] += value
                counts[number[row["prompt"]]] += 1
        return PromptMean(totals, counts)


def arms_in(folder: Path) -> list[Texts]:
    """Return the arms that were written, those without control first."""
    paths = sorted(folder.glob("*.jsonl"), key=lambda path: (path.stem != "plain", path.stem))
    if not paths:
        raise SystemExit(f"{folder} has no texts; run control.py write")
    return [Texts(path) for path in paths]


def add_read(commands: Any) -> None:
    command = commands.add_parser("read", help="let judges read the texts of all arms")
    command.set_defaults(run=run_read)
    command.add_argument("folder", type=Path)
    command.add_argument("--judge", action="append", default=[], metavar="NAME=FOLDER")
    command.add_argument(
        "--ppl", metavar="FOLDER", help="a causal language model, or the context stream of ours"
    )
    command.add_argument("--device", default="auto")


def run_read(arguments: argparse.Namespace) -> None:
    """Keep what judges say beside the texts; what is there already is not asked again."""
    arms, began = arms_in(arguments.folder), time.perf_counter()
    device = load_judge_device(arguments.device)
    for name, _, folder in (one.partition("=") for one in arguments.judge):
        classifier = load_text_classifier(folder, device)
        for arm in arms:
            if f"{name}:labels" not in arm.arrays:
                texts = [row["prompt"] + row["text"] for row in arm.rows]
                arm.arrays[f"{name}:log_probs"] = classifier.log_probs(texts).numpy()
                arm.arrays[f"{name}:labels"] = np.array(classifier.labels)
                np.savez_compressed(arm.readings, **arm.arrays)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    if arguments.ppl:
        judge = load_judge(arguments.ppl, device)
        for arm in arms:
            if "nll" not in arm.arrays:
                found = surprise(arm.pools, judge)
                arm.arrays.update(nll=found.nll, tokens=found.tokens)
                np.savez_compressed(arm.readings, **arm.arrays)
        print(f"perplexity: {time.perf_counter() - began:.0f} s", flush=True)


def load_judge_device(name: str) -> str:
    """Return the device that `auto` means."""
    import torch

    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def accuracies(arm: Texts) -> Iterator[tuple[str, PromptMean]]:
    """Yield what each judge says of the labels that texts were steered to; of none, of both."""
    for key in [key for key in arm.arrays if key.endswith(":labels")]:
        name, labels = key.partition(":")[0], list(arm.arrays[key])
        said = arm.arrays[f"{name}:log_probs"].argmax(1)
        is_tense = "past" in labels
        asked = [row["tense" if is_tense else "label"] for row in arm.rows]
        if is_tense and not any(asked):
            continue
        found = [labels[int(number)] for number in said]
        yield name, arm.mean([right(*pair) for pair in zip(found, asked, strict=True)])


def right(found: str, asked: str) -> float | None:
    """Return whether a judge found what was asked for; half where nothing was, None for neither."""
    if found == NEITHER:
        return None
    return float(found == asked) if asked else 0.5


def mauve_against(plain: Texts, arms: Sequence[Texts], encoder: str) -> dict[str, float]:
    """Return MAUVE of arms against texts without control."""
    from mauve import compute_mauve

    model, found = load_encoder(encoder, "cpu"), {}
    rows = {}
    for arm in (plain, *arms):
        texts = [row["prompt"] + row["text"] for row in arm.rows]
        rows[arm.path.stem] = features(texts, model)[0]
    for arm in arms:
        with without_native_lines():
            made = compute_mauve(
                p_features=rows[plain.path.stem], q_features=rows[arm.path.stem], seed=25,
                verbose=False,
            )  # fmt: skip
        found[arm.path.stem] = float(made.mauve)
    return found


def figures_of(arm: Texts, plain: Texts, bootstrap: Bootstrap) -> dict[str, Figure]:
    """Return an arm's figures, by name."""

    def ratio(weights: np.ndarray) -> float:
        return arm.surprise.macro(weights) / plain.surprise.macro(weights)

    found = {name: measure(name, mean, bootstrap, high=1.0) for name, mean in accuracies(arm)}
    if "nll" in arm.arrays:
        found["ppl"] = measure("ppl", arm.surprise.macro, bootstrap)
        found["ratio"] = measure("ratio", ratio, bootstrap)
        found["micro"] = measure("micro", micro_ratio(arm, plain), bootstrap)
    for n in (1, 2, 3):
        found[f"dist-{n}"] = measure(f"dist-{n}", distinct(arm.pools, n), bootstrap, high=1.0)
    found["self_bleu"] = measure("self_bleu", self_bleu(arm.pools)[4], bootstrap, high=1.0)
    return found


def micro_ratio(arm: Texts, plain: Texts) -> Callable[[np.ndarray], float]:
    """Return the ratio of perplexities of all tokens together, as a statistic."""
    return lambda weights: arm.surprise.micro(weights) / plain.surprise.micro(weights)


def add_report(commands: Any) -> None:
    command = commands.add_parser("report", help="a table and a picture of all arms")
    command.set_defaults(run=run_report)
    command.add_argument("folder", type=Path)
    command.add_argument("--mauve", nargs="*", default=[], metavar="ARM", help="arms to compare")
    command.add_argument("--encoder", default="minilm", help="whose features MAUVE is of")
    command.add_argument("--draw", metavar="JUDGE", default="", help="the judge of the picture")


def run_report(arguments: argparse.Namespace) -> None:
    """Write report.json, report.md and frontier.svg beside the texts."""
    arms = arms_in(arguments.folder)
    plain = arms[0]
    bootstrap = Bootstrap(len(plain.pools))
    chosen = [arm for arm in arms if arm.path.stem in arguments.mauve]
    scores = mauve_against(plain, chosen, arguments.encoder) if chosen else {}
    lines = {}
    for arm in arms:
        name = arm.path.stem
        about = read_json(arm.path.with_suffix(".json"))
        figures = figures_of(arm, plain, bootstrap)
        if name in scores:
            figures["mauve"] = Figure("mauve", scores[name], None)
        lines[name] = {"passes": about["passes"], "seconds": about["seconds"]} | {
            key: [figure.value, *(figure.interval or ())] for key, figure in figures.items()
        }
    write_json(arguments.folder / "report.json", lines)
    table = table_of(lines)
    (arguments.folder / "report.md").write_text(table, encoding="utf-8")
    print(table)
    if arguments.draw:
        draw(lines, arguments.draw, arguments.folder / "frontier.svg")
    print(json.dumps({"arms": len(lines)}))


def table_of(lines: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a table, shares in percent, with intervals where they matter most."""
    known = ["ratio", "micro", "dist-1", "dist-2", "dist-3", "self_bleu", "mauve"]
    judges = dict.fromkeys(
        key for line in lines.values() for key in line
        if key not in ("passes", "seconds", "ppl", *known)
    )  # fmt: skip
    columns = [*judges, *known]
    rows = [
        f"| arm | {' | '.join(columns)} | passes per token |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for name, line in lines.items():
        cells = [shown(key, line.get(key)) for key in columns]
        rows.append(f"| {name} | {' | '.join(cells)} | {line['passes']:.1f} |")
    return "\n".join(rows) + "\n"


def shown(key: str, values: list[float] | None) -> str:
    """Return a figure with its interval as a cell has it."""
    if values is None or values[0] is None:
        return ""
    is_share = key not in ("ratio", "micro")
    one, *ends = [f"{100 * value:.1f}" if is_share else f"{value:.2f}" for value in values]
    has_interval = ends and not key.startswith(("dist", "self", "micro"))
    return f"{one} [{ends[0]}, {ends[1]}]" if has_interval else one


def draw(lines: dict[str, dict[str, Any]], judge: str, path: Path) -> None:
    """Draw accuracy over relative perplexity and over self-BLEU; a point's size tells its passes.

    Arms of two controls are left out.
    """
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(10, 6.2), layout="constrained")
    left, right = picture.subplots(1, 2, sharey=True)
    shown_arms = {
        name: line for name, line in lines.items()
        if judge in line and "ratio" in line and "lam2" not in name and "w2" not in name
    }  # fmt: skip
    for way, (color, words) in WAYS.items():
        some = [line for name, line in shown_arms.items() if name.partition(",")[0] == way]
        for line, (axes, key, times) in product(
            some, ((left, "ratio", 1), (right, "self_bleu", 100))
        ):
            x, *x_ends = (times * value for value in line[key])
            y, *y_ends = (100 * value for value in line[judge])
            size = 3 + 2 * line["passes"] ** 0.5
            axes.plot(x, y, "o", color=color, markersize=size, alpha=0.7, markeredgewidth=0)
            if x_ends and y_ends:
                axes.vlines(x, *y_ends, color, alpha=0.25)
                axes.hlines(y, *x_ends, color, alpha=0.25)
        if some:
            left.plot([], [], "o", color=color, alpha=0.7, markeredgewidth=0, label=words)
    left.set(
        xlabel="perplexity relative to texts without control (less is likelier)",
        ylabel=f"labels right by the {judge} judge, %",
    )
    right.set(xlabel="self-BLEU of the texts of a prompt, % (less is more diverse)")
    left.axvline(1.15, color="black", alpha=0.3, linestyle=":")
    for axes in (left, right):
        axes.axhline(97, color="black", alpha=0.3, linestyle=":")
    picture.legend(loc="outside lower center", ncols=3, frameon=False)
    picture.suptitle("The larger a point, the more passes per token; dotted: 97 %, 1.15 times")
    write_file(
        path,
        lambda temporary: picture.savefig(temporary, format="svg", metadata={"Date": None}),
    )

"""What a language model makes of gaps that were filled.

The stages `judge` and `table` of infilling.py: one reads OUT/texts.jsonl and leaves its nats in
OUT/judged.json, the other prints figures of both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from infilling_gaps import Row

from ssdlm.evaluate.bootstrap import Bootstrap, Statistic
from ssdlm.evaluate.perplexity import Surprise
from ssdlm.storage.files import read_json, write_json
from ssdlm.storage.jsonl import read_jsonl


def judge(args: argparse.Namespace) -> None:
    """Let the judge read every way to fill the gaps; its nats go to OUT/judged.json."""
    from ssdlm.evaluate.judge import load_judge
    from ssdlm.evaluate.perplexity import surprise
    from ssdlm.evaluate.samples import Pool, Sample

    rows, reader = read_jsonl(Path(args.out) / "texts.jsonl"), load_judge(args.judge, args.device)
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, texts in fillings(rows).items():
        both = list(zip(rows, texts, strict=True))
        sides = {
            "whole": [(row["prompt"], text + row["suffix"]) for row, text in both],
            "right": [(row["prompt"] + text, row["suffix"]) for row, text in both],
        }
        found[name] = {}
        for side, pairs in sides.items():
            read = surprise([Pool(left, (Sample(right, None),)) for left, right in pairs], reader)
            found[name][side] = {"nll": read.nll.tolist(), "tokens": read.tokens.tolist()}
        print(name, flush=True)
    write_json(Path(args.out) / "judged.json", {"judge": reader.fingerprint, "nats": found})


def fillings(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the texts of every way to fill the gaps: the true ones and none at all, too."""
    known = {"true sentence": [row["gold"] for row in rows], "nothing": [""] * len(rows)}
    ways = {name: [row["fills"][name]["text"] for row in rows] for name in rows[0]["fills"]}
    return known | ways


def table(args: argparse.Namespace) -> None:
    """Print perplexities with intervals over gaps, and whether chosen lengths follow the true."""
    folder = Path(args.out)
    rows, nats = read_jsonl(folder / "texts.jsonl"), read_json(folder / "judged.json")["nats"]
    figures = {}
    for source in sorted({row["source"] for row in rows}, reverse=True):
        places = [number for number, row in enumerate(rows) if row["source"] == source]
        some = [rows[place] for place in places]
        print(f"\n| {len(places)} {source} | whole | right side | against left to right | passes |")
        print("|---|---:|---:|---:|---:|")
        base = read_of(nats, "left to right", "right", places)
        for name in nats:
            whole, right = (read_of(nats, name, side, places) for side in ("whole", "right"))
            line = {
                "whole": with_interval(whole.micro, len(places)),
                "right": with_interval(right.micro, len(places)),
                "ratio": with_interval(ratio_of(right, base), len(places)),
            }
            passes = [row["fills"][name]["passes"] for row in some if name in row["fills"]]
            line["passes"] = float(np.mean(passes)) if passes else None
            figures[f"{source}, {name}"] = line
            cells = [shown(line[key], digits) for key, digits in (("whole", 1), ("right", 1))]
            cells += [shown(line["ratio"], 3), f"{line['passes']:.0f}" if passes else ""]
            print(f"| {name} | {' | '.join(cells)} |")
        figures |= lengths_of(source, some)
    print(json.dumps(figures))


def read_of(nats: Any, name: str, side: str, places: Sequence[int]) -> Surprise:
    """Return what the judge made of one way to fill some of the gaps."""
    own = {key: np.array(values)[places] for key, values in nats[name][side].items()}
    return Surprise(own["nll"], own["tokens"], np.arange(len(places)))


def ratio_of(one: Surprise, base: Surprise) -> Statistic:
    """Return the ratio of a perplexity to another over the same gaps."""
    return lambda weights: one.micro(weights) / base.micro(weights)


def with_interval(statistic: Statistic, count: int) -> list[float]:
    """Return a figure, and the ends of its interval over gaps."""
    bootstrap = Bootstrap(count)
    figure = bootstrap.estimate(statistic)
    return [figure, *(bootstrap.interval(statistic) or (figure, figure))]


def shown(line: Sequence[float], digits: int) -> str:
    """Return a figure with its interval."""
    figure, low, high = (f"{value:.{digits}f}" for value in line)
    return f"{figure} [{low}, {high}]"


def lengths_of(source: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Print how the lengths that were chosen go with the true ones; return the figures."""
    print(f"\n| {source} | mean length | correlation with the true | mean error | within 3 |")
    print("|---|---:|---:|---:|---:|")
    true = np.array([len(row["gold_tokens"]) for row in rows], dtype=float)
    print(f"| true sentence | {true.mean():.1f} | | | |")
    figures = {}
    for name in (name for name in rows[0]["fills"] if name.startswith(("gap", "own sentence"))):
        own = np.array([row["fills"][name]["length"] for row in rows], dtype=float)
        line = {
            "length": own.mean(),
            "correlation": with_interval(correlation(own, true), len(rows)),
            "error": np.abs(own - true).mean(),
            "near": (np.abs(own - true) <= 3).mean(),
        }
        figures[f"{source}, {name}, lengths"] = line
        cells = [f"{line['length']:.1f}", shown(line["correlation"], 2), f"{line['error']:.1f}"]
        print(f"| {name} | {' | '.join(cells)} | {100 * line['near']:.0f} % |")
    return figures


def correlation(one: np.ndarray, other: np.ndarray) -> Statistic:
    """Return Pearson's correlation as a function of how often each gap counts."""

    def statistic(weights: np.ndarray) -> float:
        first, second = (x - np.average(x, weights=weights) for x in (one, other))
        spread = np.sqrt((weights @ first**2) * (weights @ second**2))
        return float(weights @ (first * second) / spread) if spread else float("nan")

    return statistic

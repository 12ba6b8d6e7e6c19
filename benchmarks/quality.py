"""Quality of the text against calls, block length and sampler, under the judge.

    python benchmarks/quality.py write builtin:mini --prompts reviews=FILE --out runs/quality
    python benchmarks/quality.py judge runs/quality
    python benchmarks/quality.py draw runs/quality --picture runs/quality.svg
    python benchmarks/quality.py compare runs/quality "reviews, uniform, 64" "reviews, window 1, 64"

`write` decodes 50 tokens after each prompt (of `ssdlm prompts`, which gives their gold) with every
setting, into a file each; `judge` puts perplexity with an interval over prompts, distinct-n and
repetition of every file, and of its gold, into judged.jsonl; `draw` makes tables and a picture of
that; `compare` prints log ratios of perplexities to the first of some files that have the same
prompts, with intervals over these. What is done is not done again. The first source of prompts is
the one that sweeps use.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from ssdlm.storage.jsonl import append_jsonl, read_jsonl, write_jsonl

CALLS = (4, 8, 16, 32, 64, 200, 1000)
"""Network passes per block of 25; one of them reads the context."""
OURS = {"nucleus": "network", "top_p": 0.9, "returns": "w_0", "B": 25}
PATHS = {
    "window 1": {"grid": "staggered", "width": 1.0},
    "window 8": {"grid": "staggered", "width": 8.0},
    "warped": {"grid": "warped"},
    "uniform": {"grid": "uniform"},
}
WINDOW = OURS | PATHS["window 1"] | {"T": 63}


def settings_by_kind() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings of every text file, by what is varied."""
    calls = {
        f"{name}, {count}": OURS | path | {"T": count - 1}
        for name, path in PATHS.items()
        for count in CALLS
        if name != "window 8" or count < 1000
    }
    paper = OURS | PATHS["uniform"] | {"nucleus": "logits", "returns": "logits"}
    lengths = {f"B {B}, T {T}": WINDOW | {"B": B, "T": T} for B, T in ((5, 11), (10, 24), (25, 63))}
    lengths |= {f"B {B}, T 63": WINDOW | {"B": B} for B in (5, 10)}
    widths = {f"width {width:g}": WINDOW | {"width": width} for width in (0.5, 1.0, 2.0, 4.0, 16.0)}
    nuclei = {f"top-p {p:g}": WINDOW | {"top_p": p} for p in (0.8, 0.85, 0.9, 0.95)}
    whole = {name: value for name, value in WINDOW.items() if name != "nucleus"} | {"top_p": 1.0}
    nuclei["top-p 1"] = whole  # where there is no nucleus to choose
    nuclei["top-p 0.9 of the logits"] = WINDOW | {"nucleus": "logits"}
    heat = {
        f"temperature {tau:g}, top-p {path['top_p']:g}": path | {"temperature": tau}
        for tau, path in ((0.8, whole), (0.9, whole), (0.9, WINDOW | {"top_p": 0.95}))
    }
    rules = {
        f"{name}, {path}": OURS | PATHS[path] | {"T": 63} | rule
        for path in ("window 1", "window 8", "warped")
        for name, rule in {
            "rho 0.5": {"rho": 0.5},
            "rho 1": {"rho": 1.0},
            "adaptive": {"rule": "adaptive"},
            "adaptive mean": {"rule": "adaptive", "projection": "mean", "returns": "logits"},
        }.items()
    }
    rules["early exit, warped"] = OURS | PATHS["warped"] | {"T": 63, "early_exit": True}
    best = {f"best of {count}": WINDOW | {"best_of": count} for count in (4, 16)}
    return {
        "defaults": {"defaults": {}},
        "autoregressive": {f"autoregressive, top-p {p:g}": {"top_p": p} for p in (0.9, 0.95)},
        "nucleus": nuclei | heat,
        "width": widths,
        "B": lengths,
        "best_of": best,
        "calls": calls
        | {f"the paper's, {count}": paper | {"T": count - 1} for count in (64, 1000)},
        "rule": rules,
    }


EVERYWHERE = ("defaults", "autoregressive")
"""Kinds that are decoded for all sources of prompts, and for all of their prompts."""


def write(args: argparse.Namespace) -> None:
    """Decode the texts of every setting."""
    from ssdlm import SSDLM
    from ssdlm.evaluate.autoregressive import AutoregressiveLM

    began, out = time.perf_counter(), Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    sources = dict(text.split("=", 1) for text in args.prompts)
    ours, autoregressive = SSDLM.from_pretrained(args.model), None
    for kind, source, name, options in chosen(args, list(sources)):
        target = out / f"{source}, {name}.jsonl"
        if target.exists() or time.perf_counter() - began > args.seconds:
            continue
        writer: Any = ours
        if kind == "autoregressive":
            autoregressive = autoregressive or AutoregressiveLM.from_pretrained(args.model)
            writer = autoregressive
        rows = read_jsonl(Path(sources[source]))
        rows = rows[: args.most if args.everywhere or kind in EVERYWHERE else args.count]
        started, prompts = time.perf_counter(), [row["prompt"] for row in rows]
        texts = writer.generate(prompts, length=50, seed=0, batch_size=256, **options)
        took = time.perf_counter() - started
        labels = {"kind": kind, "source": source, "name": name, "seconds": took}
        pairs = zip(rows, texts, strict=True)
        write_jsonl(target, (asdict(text) | gold_of(row) | labels for row, text in pairs))
        print(f"{target.name} {took:.1f} s | {texts[0].text[:80]!r}", flush=True)


def chosen(
    args: argparse.Namespace, sources: list[str]
) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield what is to be written: kind, source of prompts, name and settings."""
    for kind, settings in settings_by_kind().items():
        for name, options in settings.items():
            if (args.only and kind not in args.only) or not fnmatch(name, args.names):
                continue
            everywhere = args.everywhere or kind in EVERYWHERE
            for source in sources if everywhere else sources[:1]:
                yield kind, source, name, options


def gold_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the human text after a prompt."""
    return {name: row[name] for name in ("gold", "gold_tokens")}


def judge(args: argparse.Namespace) -> None:
    """Measure every file that has not been measured."""
    from ssdlm.evaluate.judge import load_judge

    folder, judge = Path(args.out), load_judge(args.judge)
    target, began = folder / "judged.jsonl", time.perf_counter()
    done = {row["file"] for row in read_jsonl(target)} if target.exists() else set()
    order = {kind: number for number, kind in enumerate(settings_by_kind())}
    files = {path: read_jsonl(path) for path in sorted(folder.glob("*, *.jsonl"))}
    with target.open("a", encoding="utf-8") as sink:
        for path, rows in sorted(files.items(), key=lambda item: order[item[1][0]["kind"]]):
            for key, file in (("text", path.name), ("gold", f"{rows[0]['source']} {len(rows)}")):
                if file in done or time.perf_counter() - began > args.seconds:
                    continue
                done.add(file)
                first = {name: rows[0][name] for name in ("kind", "source", "name", "seconds")}
                first |= {"kind": "gold", "name": "gold"} if key == "gold" else {}
                calls = max(row["calls"] for row in rows) if key == "text" else None
                found = first | {"file": file, "texts": len(rows), "calls": calls}
                ids = "tokens" if key == "text" else "gold_tokens"
                found |= figures([(row["prompt"], row[key], row[ids]) for row in rows], judge)
                append_jsonl(sink, [found])
                sink.flush()
                print(f"{file}: {found['ppl']:.1f}", flush=True)


def figures(rows: list[tuple[str, str, list[int]]], judge: Any) -> dict[str, Any]:
    """Return the figures of texts, each with its prompt and its ids."""
    from ssdlm.evaluate import diversity, perplexity

    pools = pools_of(rows)
    one, surprise = np.ones(len(pools)), perplexity.surprise(pools, judge)
    draws = np.random.default_rng(0).multinomial(len(pools), one / len(pools), 1000)
    interval = np.quantile([surprise.micro(draw.astype(float)) for draw in draws], [0.025, 0.975])
    return {
        "ppl": surprise.micro(one),
        "interval": interval.tolist(),
        **{f"dist-{n}": diversity.distinct(pools, n)(one) for n in (1, 2, 3)},
        "rep": diversity.repetition(pools)(one),
    }


def pools_of(rows: list[tuple[str, str, list[int]]]) -> list[Any]:
    """Return texts, each with its prompt and its ids, as the library pools them."""
    from ssdlm.evaluate.samples import Pool, Sample

    return [Pool(prompt, (Sample(text, tuple(tokens)),)) for prompt, text, tokens in rows]


def compare(args: argparse.Namespace) -> None:
    """Print the log ratios of files' perplexities to the first one's, prompt by prompt."""
    from ssdlm.evaluate import perplexity
    from ssdlm.evaluate.bootstrap import Bootstrap
    from ssdlm.evaluate.judge import load_judge

    judge, first = load_judge(args.judge), None
    for name in args.names:
        rows = read_jsonl(Path(args.out) / f"{name}.jsonl")
        pools = pools_of([(row["prompt"], row["text"], row["tokens"]) for row in rows])
        found = perplexity.surprise(pools, judge)
        first = first or (found, [pool.prompt for pool in pools])
        if [pool.prompt for pool in pools] != first[1]:
            raise SystemExit(f"error: {name!r} has other prompts than {args.names[0]!r}")

        def ratio(weights: np.ndarray, found: Any = found, base: Any = first[0]) -> float:
            return float(np.log(found.micro(weights) / base.micro(weights)))

        bootstrap = Bootstrap(len(pools))
        low, high = bootstrap.interval(ratio) or (0.0, 0.0)
        print(f"{name}: {bootstrap.estimate(ratio):.2f} [{low:.2f}, {high:.2f}]", flush=True)


def draw(args: argparse.Namespace) -> None:
    """Print the tables, and draw perplexity against calls."""
    rows = read_jsonl(Path(args.out) / "judged.jsonl")
    for kind in ("gold", *settings_by_kind()):
        print(f"\n## {kind}\n\n| prompts | text | calls | perplexity | dist-1 / 2 / 3 | rep |")
        print("|---|---|---|---|---|---|")
        for row in (row for row in rows if row["kind"] == kind):
            low, high = row["interval"]
            dist = " / ".join(f"{row[f'dist-{n}']:.3f}" for n in (1, 2, 3))
            labels = f"{row['texts']} {row['source']} | {row['name']} | {row['calls'] or ''}"
            ppl = f"{row['ppl']:.1f} [{low:.0f}, {high:.0f}]"
            print(f"| {labels} | {ppl} | {dist} | {row['rep']:.3f} |")
    if args.picture:
        draw_calls(rows, Path(args.picture))


def draw_calls(rows: list[dict[str, Any]], target: Path) -> None:
    """Draw perplexity against calls, one line per path, with gold and the autoregressive stream."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.2))
    for name in PATHS:
        line = [row for row in rows if row["kind"] == "calls" and row["name"].startswith(name)]
        line = sorted((row["calls"], row["ppl"], *row["interval"]) for row in line)
        calls, ppl, low, high = zip(*line, strict=True)
        (drawn,) = axes.plot(calls, ppl, marker="o", label=name)
        axes.fill_between(calls, low, high, alpha=0.15, color=drawn.get_color(), linewidth=0)
    source = next(row["source"] for row in rows if row["kind"] == "calls")
    for kind, name, style in (
        ("autoregressive", "autoregressive, top-p 0.9", "--"),
        ("gold", "gold", ":"),
    ):
        key = kind, name, source
        row = next(r for r in rows if (r["kind"], r["name"], r["source"]) == key)
        axes.axhline(row["ppl"], linestyle=style, color="black", linewidth=1, label=name)
    axes.set(xscale="log", yscale="log", xlabel="network passes per block of 25 tokens")
    axes.set_ylabel(f"judge perplexity, {source}")
    axes.set_xticks(CALLS, [str(count) for count in CALLS])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stages = parser.add_subparsers(required=True, metavar="STAGE")
    stage = stages.add_parser("write", help="decode the texts")
    stage.set_defaults(run=write)
    stage.add_argument("model", help="folder, or builtin:mini")
    stage.add_argument("--prompts", nargs="+", required=True, metavar="NAME=FILE")
    stage.add_argument("--only", nargs="*", default=[], help=f"of {', '.join(settings_by_kind())}")
    stage.add_argument("--names", default="*", help="pattern of names, such as 'uniform*'")
    stage.add_argument("--everywhere", action="store_true", help="sweep over all prompts too")
    stage.add_argument("--count", type=int, default=100, help="prompts for sweeps (default 100)")
    stage.add_argument("--most", type=int, default=200, help="prompts otherwise (default 200)")
    stage.add_argument("--out", required=True, help="folder of the texts")
    stage.add_argument("--seconds", type=float, default=1e9, help="begin nothing after these")
    stage = stages.add_parser("judge", help="measure them")
    stage.set_defaults(run=judge)
    stage.add_argument("out", help="folder of the texts")
    stage.add_argument("--judge", default="smollm2", help="folder or Hub id (default smollm2)")
    stage.add_argument("--seconds", type=float, default=1e9, help="begin nothing after these")
    stage = stages.add_parser("draw", help="print tables, draw a picture")
    stage.set_defaults(run=draw)
    stage.add_argument("out", help="folder of the texts")
    stage.add_argument("--picture", help="where to draw perplexity against calls")
    stage = stages.add_parser("compare", help="print ratios of perplexities over the same prompts")
    stage.set_defaults(run=compare)
    stage.add_argument("out", help="folder of the texts")
    stage.add_argument("names", nargs="+", metavar="NAME", help="files without .jsonl")
    stage.add_argument("--judge", default="smollm2", help="folder or Hub id (default smollm2)")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()

"""The tables of docs/speed.md on one GPU: `ssdlm bench decode` for each row, one after another.

    python benchmarks/speed.py --out speed.jsonl [--seconds 500] [--only encoder] [--device cuda]
    python benchmarks/speed.py --only sliding --device cpu --repeats 1 --seconds 60

A row's JSON is written as soon as it is measured, so that a run can be stopped; one that was
measured before (same `--out`) is not measured again. Rows begin only before `--seconds` are over.
Two more rows, which `bench decode` does not have: grammars, and whatever else acts between logits
and draw or looks at each pass (`--only between`).
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from ssdlm import SSDLM
from ssdlm.bench.decode import DecodeBench, bench_decode

LARGE = {"size": "roberta-large"}
GUIDES = ("sentiment=positive", "tense=past")
ROWS: dict[str, dict[str, Any]] = {
    "sliding, 1": {"twin": True, "original": True},
    "sliding, 512": {"batch": 512, "twin": True},
    "encoder, 1": LARGE | {"original": True},
    "encoder, 16": LARGE | {"batch": 16},
    "block, 1": LARGE | {"denoiser": "block"},
    "block, 16": LARGE | {"denoiser": "block", "batch": 16},
    "sliding, 32": {"batch": 32},
    "sliding, 64": {"batch": 64},
    "deterministic, 1": {"deterministic": True},
    "deterministic, 32": {"deterministic": True, "batch": 32},
    "autoregressive, 1": {"mode": "autoregressive"},
    "autoregressive, 512": {"mode": "autoregressive", "batch": 512},
    **{
        f"staggered, {batch}": {"grid": "staggered", "steps": 63, "batch": batch}
        for batch in (1, 32, 512)
    },
    "all at once, 1": {"grid": "warped", "steps": 64},
    **{
        f"guided by {count}, {batch}": {"control": GUIDES[:count], "batch": batch}
        for batch in (1, 32, 512)
        for count in (1, 2)
    },
}
STAGGERED = {"grid": "staggered", "T": 63, "width": 8.0}
GRAMMAR = r"(( [a-z]+){3,9}[,.]){9,}"
"""Sentences without names or figures, longer than a text of 50 tokens may be."""


def grammars(device: str, repeats: int) -> dict[str, Any]:
    """Return tokens per second with a grammar and without, for some numbers of texts."""
    model, found = SSDLM.from_pretrained("builtin:mini", device=device), {}
    for count in (1, 32):
        for name, options in (("plain", {}), ("grammar", {"regex": GRAMMAR})):
            speeds = []
            for seed in range(repeats + 1):  # the first gets everything ready
                began = time.perf_counter()
                asked = {"num_samples": count, "length": 50, "seed": seed, "batch_size": count}
                texts = model.generate(["The report says that"], **asked, **options)
                num_tokens = sum(len(text.tokens) for text in texts)
                speeds.append(num_tokens / (time.perf_counter() - began))
            found[f"{name}, {count}"] = median(speeds[1:])
    return {"tokens_per_s": found}


def letters(context: Any, logits: Any) -> Any:
    """Return how likely one token is: a function of a user."""
    return logits.log_softmax(-1)[..., 262].sum(-1) + 0 * context.sum()


BETWEEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "stream": {"is_stream": True},
    "forbidden words": {"must_not": ["the"]},
    "required words": {"must": ["water"]},
    "pin": {"pin": {3: " water"}},
    "suffix": {"suffix": " was gone."},
    "function": {"control": [letters], "lam": 1.0},
    "staggered": STAGGERED,
    "staggered, stream": STAGGERED | {"is_stream": True},
    "staggered, guide": STAGGERED | {"control": "sentiment=positive"},
}


def between(device: str, repeats: int) -> dict[str, Any]:
    """Return tokens per second of one text, for what acts between logits and draw."""
    model, found = SSDLM.from_pretrained("builtin:mini", device=device), {}
    for name, options in BETWEEN.items():
        own, speeds = dict(options), []
        is_stream = own.pop("is_stream", False)
        for seed in range(repeats + 2):  # the first two get everything ready
            began = time.perf_counter()
            asked = {"length": 50, "seed": seed, **own}
            if is_stream:
                *_, draft = model.stream("The river had", **asked)
                num_tokens = draft.start + len(draft.tokens)
            else:
                num_tokens = len(model.generate("The river had", **asked).tokens)
            speeds.append(num_tokens / (time.perf_counter() - began))
        found[name] = median(speeds[2:])
    return {"tokens_per_s": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON lines, one a row")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row later")
    parser.add_argument("--only", default="", help="rows whose name matches")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    began, done = time.perf_counter(), set()
    if args.out and args.out.exists():
        done = {json.loads(line)["row"] for line in args.out.read_text().splitlines()}
    others = {"grammars": grammars, "between": between}
    for name in [*ROWS, *others]:
        if name in done or not re.search(args.only, name):
            continue
        if time.perf_counter() - began > args.seconds:
            print("not measured for want of time:", name, flush=True)
            continue
        if name in others:
            found = others[name](args.device, args.repeats)
        else:
            asked = DecodeBench(device=args.device, repeats=args.repeats)
            found = bench_decode(replace(asked, **ROWS[name]), lambda _: None)
        shown = ("ms_per_step", "tokens_per_s", "passes_per_token", "floor_ms")
        said = {key: found[key] for key in shown if found.get(key) is not None}
        print(f"{name}: {said} after {time.perf_counter() - began:.0f} s", flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps({"row": name} | found) + "\n")


if __name__ == "__main__":
    main()

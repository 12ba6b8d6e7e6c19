"""What an adapter writes with several positions open, beside the language model's own text.

    python benchmarks/adapter.py --model runs/smol --texts held-*.jsonl --out rows.jsonl

Every way to write continues the same prompts from held-out texts (JSON lines with a `text`) with
the same seeds, at temperature 1 and top-p 0.9. A row has the mean -log p of its tokens by the
language model itself, distinct-2 over all texts, the share of 4-grams that occurred before in
their text, passes per token and seconds. It is printed, and added to OUT with its texts, as soon
as it is there; after `--seconds` none is begun.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch

from ssdlm import SSDLM
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.diffusion.likelihood import next_token_nll
from ssdlm.storage.jsonl import read_jsonl

PROMPT, LENGTH, B = 64, 48, 16
WIDTHS, STEPS = (1.0, 2.0, 4.0, 8.0), (64, 32, 16, 8)
SCORED = 32
"""Texts that are scored together: each has a number for every word at every token."""
Row = dict[str, Any]


def ways(grid: str) -> dict[str, Row]:
    """Return the options of every way to write, by its name."""
    found: dict[str, Row] = {"autoregressive": {"mode": "autoregressive"}}
    for width in WIDTHS:
        for T in (B, 2 * B)[: 1 if width == 1 else 2]:  # one position is exact at once
            name = f"window {width:g}, {T // B} a token"
            found[name] = {"grid": "sliding", "width": width, "T": T, "B": [B]}
    for T in STEPS:
        found[f"all {B}, {T} steps"] = {"grid": grid, "T": T, "B": [B]}
    return found


def spans(model: Any, paths: Sequence[str], count: int, size: int) -> list[list[int]]:
    """Return about so many spans of tokens, from files in turn and from all along their texts."""
    found = []
    for path in paths:
        texts = [row["text"] for row in read_jsonl(Path(path))]
        own, wanted = [], math.ceil(count / len(paths))
        rounds = math.ceil(2 * wanted / len(texts))  # short texts have none
        for turn in range(rounds):
            for text in texts:
                start = len(text) * (turn + 1) // (rounds + 2)
                part = text[start : start + 12 * size].partition(" ")[2]
                tokens = model.tokenizer.encode(part)[:size]
                own += [tokens] if len(tokens) == size else []
        found.append(own[:wanted])
    return [one for group in zip(*found, strict=False) for one in group][:count]


def nats(model: SSDLM, texts: Sequence[Sequence[int]], last: int) -> float:
    """Return the language model's mean -log p of the last tokens of texts."""
    denoiser, ids = cast(AdaptedDenoiser, model.denoiser), torch.tensor(texts, device=model.device)
    parts = [next_token_nll(denoiser, part) for part in ids.split(SCORED)]
    return torch.cat(parts)[:, -last:].double().mean().item()


def figures(model: SSDLM, prompts: Sequence[list[int]], written: Sequence[list[int]]) -> Row:
    """Return what continuations are like."""
    pairs = [pair for one in written for pair in pairwise(one)]
    whole = [[*prompt, *one] for prompt, one in zip(prompts, written, strict=True)]
    repeated = [flag for one in whole for flag in again(one)[len(one) - LENGTH :]]
    return {
        "nll": nats(model, whole, LENGTH),
        "distinct_2": len(set(pairs)) / len(pairs),
        "repetition": sum(repeated) / len(repeated),
    }


def again(tokens: list[int]) -> list[bool]:
    """Return for every token whether it ends a 4-gram that occurred before."""
    seen: set[tuple[int, ...]] = set()
    found = []
    for end in range(1, len(tokens) + 1):
        gram = tuple(tokens[max(0, end - 4) : end])
        found.append(gram in seen)
        seen.add(gram)
    return found


def rows(model: SSDLM, args: argparse.Namespace) -> Iterator[Row]:
    """Yield every row of the table as it gets done."""
    began = time.perf_counter()
    found = spans(model, args.texts, args.prompts, PROMPT + LENGTH)
    prompts, human = ([one[part] for one in found] for part in (slice(PROMPT), slice(PROMPT, None)))
    yield {"name": "human text", "prompts": len(prompts), **figures(model, prompts, human)}
    shared = {"length": LENGTH, "top_p": 0.9, "temperature": 1.0, "never_end": True}
    shared |= {"seed": args.seed, "batch_size": args.batch_size}
    diffusing = {"nucleus": "network", "projection": "sampling", "returns": "w_0", "rho": 0.0}
    diffusing |= args.set
    for name, own in ways(args.grid).items():
        if time.perf_counter() - began > args.seconds:
            return
        if args.only and not any(name.startswith(part) for part in args.only):
            continue
        options = shared | own | ({} if "mode" in own else diffusing)
        started = time.perf_counter()
        texts = model.generate(prompts, **options)
        took = time.perf_counter() - started
        passes = sum(text.passes_per_token for text in texts) / len(texts)
        told = figures(model, prompts, [text.tokens for text in texts])
        told |= {"passes_per_token": passes, "seconds": took, "options": options}
        yield {"name": name, **told, "texts": [text.text for text in texts]}


def show(row: Row) -> str:
    """Return a row as a line of the table."""
    named = ("nll", "distinct_2", "repetition", "passes_per_token", "seconds")
    told = "".join(f"  {name} {row[name]:.3f}" for name in named if name in row)
    return f"{row['name']:24}{told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="the folder of a run with recipe adapt")
    parser.add_argument("--texts", nargs="+", required=True, metavar="FILE", help="JSON lines")
    parser.add_argument("--prompts", type=int, default=96, metavar="N")
    parser.add_argument("--grid", default="warped", choices=("warped", "uniform"))
    parser.add_argument("--only", nargs="*", default=(), help="rows whose names begin so")
    parser.add_argument("--set", type=json.loads, default={}, metavar="JSON", help="other options")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=96, help="texts at a time on a GPU")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, required=True, metavar="ROWS.jsonl")
    args = parser.parse_args()
    model = SSDLM.from_pretrained(args.model, device=args.device, dtype=args.dtype)
    if not isinstance(model.denoiser, AdaptedDenoiser):
        parser.error(f"--model {args.model} has no adapter; train one with --recipe adapt")
    with args.out.open("w") as file:
        for row in rows(model, args):
            print(show(row), flush=True)
            print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()

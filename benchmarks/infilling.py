"""Gaps in the middle of a text: filled with both sides in sight, and from left to right.

    python benchmarks/infilling.py prompts --stories FILE --reviews FILE... --out gaps.jsonl
    python benchmarks/infilling.py write builtin:mini gaps.jsonl --out runs/infilling
    python benchmarks/infilling.py judge runs/infilling
    python benchmarks/infilling.py table runs/infilling

`prompts` takes a middle sentence out of stories of five sentences, and out of those reviews that
`ssdlm prepare` held out of all the files, named in the order in which they were prepared; one that
is also in training is left out. Both sides are cut to a few lengths, so that texts share passes.
`write` fills each gap: by diffusion with the right side as `suffix`, at every length (the texts
that `gap` chooses from), and by the context stream from left to right, which does not see it.
`judge` lets a language model read every way to fill the gaps; `table` prints what it made of them.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from infilling_gaps import LENGTHS, Row, prompts
from infilling_judged import judge, table

from ssdlm.storage.files import write_json
from ssdlm.storage.jsonl import read_jsonl, write_jsonl

CANDIDATES = 16
"""Texts of the context stream for each gap, and the most that are chosen from."""
FEW = 4


class Fill(NamedTuple):
    """One way to fill a gap, and the context stream's nats of the gap and of what follows it."""

    tokens: list[int]
    gap: float
    right: float
    num_right: int
    """Tokens of what follows."""
    passes: float

    @property
    def total(self) -> float:
        """The nats of both."""
        return self.gap + self.right

    @property
    def mean(self) -> float:
        """The same per token, which `gap` chooses by."""
        return self.total / (len(self.tokens) + self.num_right)


def write(args: argparse.Namespace) -> None:
    """Fill every gap in every way; texts go to OUT/texts.jsonl, what they took to OUT/made.json."""
    from ssdlm import SSDLM

    out, began = Path(args.out), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    model = SSDLM.from_pretrained(args.model, device=args.device, dtype="float32")
    rows = read_jsonl(Path(args.gaps))[:: args.every]
    seconds: dict[str, float] = {}

    def timed(name: str, make: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        made = make()
        seconds[name] = time.perf_counter() - started
        print(f"{name}: {seconds[name]:.1f} s", flush=True)
        return made

    every = timed("infill, every length", lambda: by_length(model, rows, args.batch_size))
    few = timed("infill, some more", lambda: infill(model, rows, args.batch_size))
    cut, own = timed("left to right", lambda: chain(model, rows, args.batch_size))
    lines = []
    for number, row in enumerate(rows):
        some = every[number], few[number], cut[number], own[number]
        kept = choices(len(row["gold_tokens"]), *some)
        lines.append(row | {"fills": {name: told(model, row, kept[name]) for name in kept}})
    write_jsonl(out / "texts.jsonl", lines)
    about = {"model": args.model, "device": args.device, "gaps": len(rows), "seconds": seconds}
    write_json(out / "made.json", about | {"all": time.perf_counter() - began})


def infill(model: Any, rows: Sequence[Row], batch_size: int) -> list[list[Fill]]:
    """Return a few texts of diffusion in each gap, at its true length."""
    found: list[list[Fill]] = [[] for _ in rows]
    groups = grouped(range(len(rows)), lambda number: len(rows[number]["gold_tokens"]))
    for length, group in groups.items():
        some = [rows[number] for number in group]
        fills = at_length(model, some, length, FEW, batch_size)
        for number, own in zip(group, fills, strict=True):
            found[number] = own
    return found


def by_length(model: Any, rows: Sequence[Row], batch_size: int) -> list[dict[int, Fill]]:
    """Return a text of diffusion of every length in each gap."""
    found: list[dict[int, Fill]] = [{} for _ in rows]
    for length in LENGTHS:
        for known, (fill,) in zip(
            found, at_length(model, rows, length, 1, batch_size), strict=True
        ):
            known[length] = fill
    return found


def at_length(
    model: Any, rows: Sequence[Row], length: int, count: int, batch_size: int
) -> list[list[Fill]]:
    """Return texts of diffusion with both sides in sight, `count` for each gap, rated."""
    texts = model.generate(
        [row["prompt"] for row in rows],
        suffix=[row["suffix"] for row in rows],
        length=length,
        num_samples=count,
        batch_size=batch_size,
    )
    owners = [row for row in rows for _ in range(count)]
    passes = [text.passes_per_token * len(text.tokens) for text in texts]
    fills = rated(model, owners, [text.tokens[:length] for text in texts], passes)
    return [fills[start : start + count] for start in range(0, len(fills), count)]


def chain(model: Any, rows: Sequence[Row], batch_size: int) -> list[list[list[Fill]]]:
    """Return texts of the context stream for each gap: cut to its length, and to a sentence."""
    texts = model.generate(
        [row["prompt"] for row in rows],
        mode="autoregressive",
        length=max(LENGTHS),
        num_samples=CANDIDATES,
        batch_size=batch_size,
    )
    owners = [row for row in rows for _ in range(CANDIDATES)]
    cut = [text.tokens[: len(row["gold_tokens"])] for text, row in zip(texts, owners, strict=True)]
    found = []
    for some in (cut, [sentence(text.tokens, model) for text in texts]):
        # One token a pass, and one to read the prompt.
        fills = rated(model, owners, some, [len(tokens) + 1.0 for tokens in some])
        found.append(
            [fills[start : start + CANDIDATES] for start in range(0, len(fills), CANDIDATES)]
        )
    return found


def rated(
    model: Any, rows: Sequence[Row], gaps: Sequence[list[int]], passes: Sequence[float]
) -> list[Fill]:
    """Return gaps with the context stream's nats of them and of their right sides."""
    import torch

    from ssdlm.diffusion.likelihood import next_token_nll

    whole = []
    for row, gap in zip(rows, gaps, strict=True):
        left, right = (model.tokenizer.encode(row[name]) for name in ("prompt", "suffix"))
        whole.append((left + gap + right, len(gap), len(right)))
    fills: list[Fill | None] = [None] * len(rows)
    for group in grouped(range(len(rows)), lambda number: len(whole[number][0])).values():
        for part in (group[start : start + 256] for start in range(0, len(group), 256)):
            ids = torch.tensor([whole[number][0] for number in part], device=model.device)
            nats = next_token_nll(model.denoiser, ids).double().cpu()
            for number, line in zip(part, nats, strict=True):
                _, size, right = whole[number]
                gap = line[len(line) - right - size : len(line) - right].sum().item()
                after = line[len(line) - right :].sum().item()
                fills[number] = Fill(gaps[number], gap, after, right, passes[number])
    return [fill for fill in fills if fill is not None]


def choices(
    length: int, every: dict[int, Fill], few: list[Fill], cut: list[Fill], own: list[Fill]
) -> dict[str, Fill]:
    """Return each way to fill a gap of this true length."""
    return {
        "infill": every[length],
        f"infill, best of {FEW}": best(few, lambda fill: fill.mean),
        "left to right": cut[0],
        f"left to right, likeliest of {CANDIDATES}": best(cut, lambda fill: fill.gap),
        f"left to right, best of {FEW}": best(cut[:FEW], lambda fill: fill.mean),
        f"left to right, best of {CANDIDATES}": best(cut, lambda fill: fill.mean),
        "gap": best([*every.values()], lambda fill: fill.mean),
        "gap, by the sum": best([*every.values()], lambda fill: fill.total),
        "own sentence": own[0],
        f"own sentence, best of {CANDIDATES}": best(own, lambda fill: fill.mean),
    }


def told(model: Any, row: Row, fill: Fill) -> Row:
    """Return a way to fill a gap as a file has it."""
    text = model.text(fill.tokens, model.context(row["prompt"]))
    return {"text": text, "length": len(fill.tokens), "passes": fill.passes}


def best(fills: Sequence[Fill], nats: Callable[[Fill], float]) -> Fill:
    """Return the likeliest of some ways, with the passes of all and one each to rate them."""
    chosen = min(fills, key=nats)
    return chosen._replace(passes=sum(fill.passes + 1 for fill in fills))


def sentence(tokens: list[int], model: Any) -> list[int]:
    """Return tokens up to the first one with which a sentence ends; all of them without one."""
    for number in range(LENGTHS[0], len(tokens) + 1):
        if model.tokenizer.decode(tokens[:number]).rstrip("\"')").endswith((".", "!", "?")):
            return tokens[:number]
    return tokens


def grouped(items: Iterable[int], key: Callable[[int], int]) -> dict[int, list[int]]:
    """Return items by their key."""
    groups: dict[int, list[int]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(sorted(groups.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    stages = parser.add_subparsers(required=True, metavar="STAGE")
    stage = stages.add_parser("prompts", help="take sentences out of texts")
    stage.set_defaults(run=prompts)
    stage.add_argument("--stories", nargs="+", required=True, metavar="FILE", help="JSON lines")
    stage.add_argument("--reviews", nargs="+", required=True, metavar="FILE", help="JSON lines")
    stage.add_argument("--model", default="builtin:mini", help="whose tokenizer counts")
    stage.add_argument("--count", type=int, default=500, help="gaps of each source (default 500)")
    stage.add_argument("--out", required=True, metavar="GAPS.jsonl")
    stage = stages.add_parser("write", help="fill the gaps")
    stage.set_defaults(run=write)
    stage.add_argument("model", help="folder, or builtin:mini")
    stage.add_argument("gaps", metavar="GAPS.jsonl")
    stage.add_argument("--out", required=True, help="folder of the texts")
    stage.add_argument("--device", default="auto")
    stage.add_argument("--batch-size", type=int, default=256)
    stage.add_argument("--every", type=int, default=1, help="fill one gap of so many")
    stage = stages.add_parser("judge", help="read them")
    stage.set_defaults(run=judge)
    stage.add_argument("out", help="folder of the texts")
    stage.add_argument("--judge", default="smollm2", help="folder or Hub id (default smollm2)")
    stage.add_argument("--device", default="auto")
    stage = stages.add_parser("table", help="print what the judge made of them")
    stage.set_defaults(run=table)
    stage.add_argument("out", help="folder of the texts")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()

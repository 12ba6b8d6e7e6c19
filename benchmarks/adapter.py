"""What an adapter writes with several positions open, beside the language model's own text.

    python benchmarks/adapter.py --model runs/smol --texts held-*.jsonl --out rows.jsonl
    python benchmarks/adapter.py --model runs/smol --texts held-*.jsonl --out gaps.jsonl --gaps

Every way to write continues the same prompts from held-out texts (JSON lines with a `text`) with
the same seeds, at temperature 1 and top-p 0.9. A row has the mean -log p of its tokens by the
language model itself, distinct-2 over all texts, the share of 4-grams that occurred before in
their text, passes per token and seconds. It is printed, and added to OUT with its texts, as soon
as it is there; after `--seconds` none is begun.

With `--gaps` words are taken out of the texts, and a row tells what the words after a gap cost the
language model: after the original, after what the adapter writes in view of both sides, and after
what the language model writes from the left alone. `marred` is the share of gaps with a cut or a
doubled word at an edge: one that no text of the files has, or the same word on both sides.
`--beside builtin:mini` fills the same gaps with as many of its own tokens as the original has.

benchmarks/adapter_judges.py reads OUT and tells what others make of the texts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch

from ssdlm import SSDLM
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.diffusion.likelihood import next_token_nll
from ssdlm.engine.choosing import WORD, doubles_word
from ssdlm.storage.jsonl import read_jsonl

PROMPT, LENGTH, B = 64, 48, 16
WIDTHS, STEPS = (1.0, 2.0, 4.0, 8.0), (64, 32, 16, 8)
GAPS, SEEN, AFTER = (5, 10, 15), 16, 32
"""Tokens of a gap, of its right side that is shown, and of what is scored."""
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


def spans(
    model: Any,
    paths: Sequence[str],
    count: int,
    size: int,
    is_fit: Callable[[list[int]], bool] = bool,
    tries: int = 2,
) -> list[list[int]]:
    """Return about so many spans of tokens, from files in turn and from all along their texts."""
    found = []
    for path in paths:
        texts = [row["text"] for row in read_jsonl(Path(path))]
        own, wanted = [], math.ceil(count / len(paths))
        rounds = math.ceil(tries * wanted / len(texts))  # short texts have none
        for turn in range(rounds):
            for text in texts:
                start = len(text) * (turn + 1) // (rounds + 2)
                part = text[start : start + 12 * size].partition(" ")[2]
                tokens = model.tokenizer.encode(part)[:size]
                own += [tokens] if len(tokens) == size and is_fit(tokens) else []
        found.append(own[:wanted])
    return [one for group in zip(*found, strict=False) for one in group][:count]


def nats(model: SSDLM, texts: Sequence[Sequence[int]], last: int) -> torch.Tensor:
    """Return the language model's mean -log p of the last tokens of each text."""
    denoiser, found = cast(AdaptedDenoiser, model.denoiser), torch.zeros(len(texts)).double()
    for length in {len(text) for text in texts}:
        own = torch.tensor([place for place, text in enumerate(texts) if len(text) == length])
        for part in own.split(SCORED):
            ids = torch.tensor([texts[place] for place in part.tolist()], device=model.device)
            found[part] = next_token_nll(denoiser, ids)[:, -last:].double().mean(1).cpu()
    return found


def figures(
    model: SSDLM, prompts: Sequence[list[int]], written: Sequence[list[int]], num_files: int
) -> Row:
    """Return what continuations of prompts of files in turn are like."""
    pairs = [pair for one in written for pair in pairwise(one)]
    whole = [[*prompt, *one] for prompt, one in zip(prompts, written, strict=True)]
    repeated = [flag for one in whole for flag in again(one)[len(one) - LENGTH :]]
    nll = nats(model, whole, LENGTH)
    return {
        "nll": nll.mean().item(),
        "error": nll.std().item() / math.sqrt(len(nll)),
        "by_file": [nll[at::num_files].mean().item() for at in range(num_files)],
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


def rows(model: Any, args: argparse.Namespace, late: Callable[[], bool]) -> Iterator[Row]:
    """Yield every row of the table as it gets done."""
    found = spans(model, args.texts, args.prompts, PROMPT + LENGTH)
    prompts, human = ([one[part] for one in found] for part in (slice(PROMPT), slice(PROMPT, None)))
    decode, num_files = model.tokenizer.decode, len(args.texts)
    told = {"prompts": [decode(one) for one in prompts], "texts": [decode(one) for one in human]}
    yield {"name": "human text", **figures(model, prompts, human, num_files), **told}
    for name, own in ways(args.grid).items():
        if late():
            return
        if args.only and not any(name.startswith(part) for part in args.only):
            continue
        written, told = write(model, prompts, own | {"length": LENGTH}, args)
        yield {"name": name, **figures(model, prompts, written, num_files), **told}


def write(
    model: Any, prompts: Sequence[list[int]], own: Row, args: argparse.Namespace
) -> tuple[list[list[int]], Row]:
    """Return tokens after prompts, those of a suffix left out, and what it took."""
    options = {"top_p": 0.9, "temperature": 1.0, "never_end": True, "stop_at_end": False}
    options |= {"seed": args.seed, "batch_size": args.batch_size}
    if "mode" not in own:
        options |= {"nucleus": "network", "projection": "sampling", "returns": "w_0", "rho": 0.0}
        options |= args.set
    began, length = time.perf_counter(), own["length"]
    texts = model.generate(prompts, **options | own)
    took = time.perf_counter() - began
    passes = sum(text.passes_per_token * len(text.tokens) for text in texts) / len(texts) / length
    written = [text.tokens[:length] for text in texts]
    told = {"passes_per_token": passes, "seconds": took, "options": options | own}
    told["options"].pop("suffix", None)
    return written, told | {"texts": [model.tokenizer.decode(tokens) for tokens in written]}


def gaps(model: Any, args: argparse.Namespace, late: Callable[[], bool]) -> Iterator[Row]:
    """Yield a row for every size of gaps and way to fill them."""
    decode, words = model.tokenizer.decode, words_of(args.texts)
    other = args.beside and SSDLM.from_pretrained(args.beside, device=args.device)
    for size in GAPS:
        end = PROMPT + size

        def is_fit(tokens: list[int], end: int = end) -> bool:
            """Tell whether words begin at both edges, and the right side is read as it stands."""
            shown = tokens[end : end + SEEN]
            starts = (decode([tokens[place]])[0] for place in (PROMPT, end))
            return all(map(str.isspace, starts)) and model.tokenizer.encode(decode(shown)) == shown

        found = spans(model, args.texts, args.prompts, end + AFTER, is_fit, tries=4)
        lefts, rights = [one[:PROMPT] for one in found], [one[end:] for one in found]

        three = list(zip(lefts, [one[PROMPT:end] for one in found], rights, strict=True))
        original = filled(model, three, words, len(args.texts))
        sides = [[decode(part) for part in one] for one in three]
        yield {"name": f"gap {size}, original", "gaps": sides, **original}
        if other:
            texts, told = write_beside(other, sides, args)
            three = list(zip(lefts, map(model.tokenizer.encode, texts), rights, strict=True))
            told = filled(model, three, words, len(args.texts)) | told
            yield {"name": f"gap {size}, {args.beside}", **told}
        suffix = {"suffix": [decode(right[:SEEN]) for right in rights]}
        for name, own in {
            "from the left": {"mode": "autoregressive"},
            "window 4": {"grid": "sliding", "width": 4.0, "T": 2 * B, "B": [B], **suffix},
            f"all, {2 * B} steps": {"grid": args.grid, "T": 2 * B, **suffix},
            "best of 4": {"grid": args.grid, "T": 2 * B, "best_of": 4, **suffix},
        }.items():
            if late():
                return
            if args.only and not any(name.startswith(part) for part in args.only):
                continue
            fills, told = write(model, lefts, own | {"length": size}, args)
            three = list(zip(lefts, fills, rights, strict=True))
            told = filled(model, three, words, len(args.texts)) | told
            yield {"name": f"gap {size}, {name}", **told}


def words_of(paths: Sequence[str]) -> set[str]:
    """Return all words of the texts of files."""
    texts = (row["text"] for path in paths for row in read_jsonl(Path(path)))
    return {word.lower() for text in texts for word in WORD.findall(text)}


def write_beside(
    other: Any, sides: Sequence[Sequence[str]], args: argparse.Namespace
) -> tuple[list[str], Row]:
    """Return what a model with other tokens writes in gaps, in as many as the original has."""
    fills, began = [""] * len(sides), time.perf_counter()
    lengths = [len(other.tokenizer.encode(middle)) for _, middle, _ in sides]
    shown = [right[: len(right) * SEEN // AFTER].rpartition(" ")[0] for _, _, right in sides]
    for length in set(lengths):  # what is written together has one length
        own = [at for at, count in enumerate(lengths) if count == length]
        asked = {"suffix": [shown[at] for at in own], "length": length, "seed": args.seed}
        asked |= {"top_p": 0.9, "temperature": 1.0, "batch_size": args.batch_size}
        texts = other.generate([sides[at][0] for at in own], **asked)
        for at, text in zip(own, texts, strict=True):
            fills[at] = other.tokenizer.decode(text.tokens[:length])
    return fills, {"seconds": time.perf_counter() - began, "texts": fills}


def filled(
    model: Any, three: Sequence[tuple[list[int], ...]], words: set[str], num_files: int
) -> Row:
    """Return what gaps are like that are filled, of files in turn: left, gap and right of each."""
    nll = nats(model, [[*left, *gap, *right] for left, gap, right in three], AFTER)
    texts = [[model.tokenizer.decode(part) for part in one] for one in three]
    marred = [is_marred(left, gap, right, words) for left, gap, right in texts]
    by_file = [nll[at::num_files].mean().item() for at in range(num_files)]
    return {"nll": nll.mean().item(), "marred": sum(marred) / len(marred), "by_file": by_file}


def is_marred(left: str, fill: str, right: str, words: set[str]) -> bool:
    """Tell whether an edge of a gap cuts or doubles a word."""
    whole = left + fill + right
    found = [(match.start(), match.end(), match[0].lower()) for match in WORD.finditer(whole)]
    for edge in (len(left), len(left) + len(fill)):
        touching = [word for start, end, word in found if start <= edge <= end]
        if doubles_word(whole, edge) or not words.issuperset(touching):
            return True
    return False


def show(row: Row) -> str:
    """Return a row as a line of the table."""
    named = ("nll", "distinct_2", "repetition", "marred", "passes_per_token", "seconds")
    told = "".join(f"  {name} {row[name]:.3f}" for name in named if name in row)
    return f"{row['name']:24}{told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="the folder of a run with recipe adapt")
    parser.add_argument("--texts", nargs="+", required=True, metavar="FILE", help="JSON lines")
    parser.add_argument("--prompts", type=int, default=96, metavar="N")
    parser.add_argument("--gaps", action="store_true", help="fill gaps, instead of going on")
    parser.add_argument("--beside", metavar="MODEL", help="another model that fills the gaps")
    parser.add_argument("--grid", default="warped", choices=("warped", "uniform", "tilted"))
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
    began = time.perf_counter()

    def late() -> bool:
        return time.perf_counter() - began > args.seconds

    with args.out.open("w") as file:
        for row in (gaps if args.gaps else rows)(model, args, late):
            print(show(row), flush=True)
            print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()

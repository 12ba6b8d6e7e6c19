"""What others make of an adapter's texts: a model that is not the writer, MAUVE, and a dictionary.

    python benchmarks/adapter_judges.py rows.jsonl --files 3
    python benchmarks/adapter_judges.py gaps.jsonl --words held-*.jsonl more-texts*.jsonl

ROWS is what benchmarks/adapter.py wrote. Of continuations a row has -log p per token by
builtin:mini's context stream, given the prompt, over all texts and for those of each file (prompts
are of the files in turn), and MAUVE to the human ones by MiniLM's features, without the prompts,
which are longer than the texts and the same on both sides. Of gaps it has the share that is marred
at an edge, where words are those of all files given: a name that they have is no cut word.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from adapter import is_marred, words_of

from ssdlm import SSDLM
from ssdlm.evaluate.judge import load_encoder
from ssdlm.evaluate.mauve import mauve
from ssdlm.evaluate.samples import Pool, Sample
from ssdlm.storage.jsonl import read_jsonl

Row = dict[str, Any]


def pools(texts: Sequence[str]) -> list[Pool]:
    """Return every text as all that there is of its prompt, which is left out."""
    return [Pool("", (Sample(text, None),)) for text in texts]


def of_texts(rows: Sequence[Row], num_files: int, device: str) -> Iterator[Row]:
    """Yield what the judges make of continuations; the first row has prompts and human texts."""
    scorer, features = SSDLM.from_pretrained("builtin:mini", device=device), load_encoder()
    prompts, human = rows[0]["prompts"], rows[0]["texts"]
    parts = [slice(None), *(slice(at, None, num_files) for at in range(num_files))]
    for row in rows:
        scores = [
            scorer.score(text, prompt=prompt)
            for prompt, text in zip(prompts, row["texts"], strict=True)
        ]
        known = [[value for one in scores[part] for value in one.known] for part in parts]
        nats = [-sum(values) / len(values) for values in known]
        close = mauve(pools(row["texts"]), pools(human), features).score
        yield {"name": row["name"], "mini_nll": nats, "mauve": close}


def of_gaps(rows: Sequence[Row], words: set[str]) -> Iterator[Row]:
    """Yield the share of marred gaps; the first row of each size has the sides of the gaps."""
    sides: Sequence[Sequence[str]] = ()
    for row in rows:
        sides = row.get("gaps", sides)
        fills = row.get("texts", [middle for _, middle, _ in sides])
        pairs = zip(sides, fills, strict=True)
        marred = [is_marred(left, fill, right, words) for (left, _, right), fill in pairs]
        yield {"name": row["name"], "marred": sum(marred) / len(marred)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, metavar="ROWS.jsonl")
    parser.add_argument("--files", type=int, default=3, help="files that the prompts are of")
    parser.add_argument("--words", nargs="*", default=(), metavar="FILE", help="JSON lines")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(argv)
    rows = list(read_jsonl(given.rows))
    if "gaps" in rows[0]:
        told = of_gaps(rows, words_of(given.words))
    else:
        told = of_texts(rows, given.files, given.device)
    for row in told:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

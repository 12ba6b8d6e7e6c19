"""Gaps that have a true content: a sentence out of the middle of a text, and both of its sides.

The stage `prompts` of infilling.py, which says where the texts are from.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ssdlm.storage.jsonl import parse_jsonl, write_jsonl

LENGTHS = range(5, 25)
"""Tokens of the gaps, true and tried."""
LEFT = (32, 28, 24, 20, 16)
"""Tokens of the left side: the most that there are, its last ones."""
RIGHT = (24, 16)
"""Tokens of the right side, its first ones."""
HOLDOUT = 0.01
SENTENCE = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(A-Z])")

Row = dict[str, Any]


def prompts(args: argparse.Namespace) -> None:
    """Write the gaps of stories and reviews, each with its sides and its true content."""
    from ssdlm.storage.checkpoint import find
    from ssdlm.tokenizer import load_tokenizer

    tokenizer, rows = load_tokenizer(find(args.model)), []
    for source, documents in (("stories", stories(args)), ("reviews", reviews(args))):
        found: list[Row] = []
        for document in documents:
            gap = next(gaps(document, tokenizer), None)
            if gap is not None and len(found) < args.count:
                found.append({"source": source, **gap})
        print(f"{source}: {len(found)} gaps", flush=True)
        rows += found
    write_jsonl(Path(args.out), rows)


def stories(args: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the sentences of stories that have five."""
    for path in args.stories:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            value = json.loads(line)
            text = value["text"] if isinstance(value, dict) else value[0]
            sentences = SENTENCE.split(text.strip())
            if len(sentences) == 5:
                yield sentences


def reviews(args: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the sentences of reviews that were held out, and have no copy in training."""
    from ssdlm.data.writer import is_held_out

    held, trained, number = [], set(), 0
    for path in args.reviews:
        with lzma.open(path, "rb") if path.endswith(".xz") else open(path, "rb") as lines:
            for line in parse_jsonl(lines, source=path):
                text = re.sub(r"(<br />|\s)+", " ", line.value["text"]).strip()
                if is_held_out(number, HOLDOUT):
                    held.append(text)
                else:
                    trained.add(hash(text))
                number += 1
    yield from (SENTENCE.split(text) for text in held if hash(text) not in trained)


def gaps(sentences: Sequence[str], tokenizer: Any) -> Iterator[Row]:
    """Yield the gaps of a text, the most central one first, whose sides are long enough."""
    middle = (len(sentences) - 1) / 2
    for place in sorted(range(1, len(sentences) - 1), key=lambda place: abs(place - middle)):
        left = tokenizer.encode(" ".join(sentences[:place]))
        gold, right = (
            tokenizer.encode(" " + " ".join(some))
            for some in (sentences[place : place + 1], sentences[place + 1 :])
        )
        left = left[-longest(len(left), LEFT) :]
        right = right[: longest(len(right), RIGHT)]
        if len(left) not in LEFT or len(right) not in RIGHT or len(gold) not in LENGTHS:
            continue
        texts = [tokenizer.decode_after([0], some) for some in (left, gold, right)]
        alone = [tokenizer.encode(text) for text in texts]
        if alone == [left, gold, right] and not any("\ufffd" in text for text in texts):
            prompt, text, suffix = texts
            yield {"prompt": prompt, "gold": text, "gold_tokens": gold, "suffix": suffix}


def longest(count: int, sizes: Sequence[int]) -> int:
    """Return the longest of some sizes that there is room for; 0 without any."""
    return next((size for size in sizes if size <= count), 0)

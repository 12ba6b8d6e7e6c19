"""A scorer of another kind: words and pairs of words, weighed by logistic regression.

    python benchmarks/ngrams.py imdb-labelled-train.jsonl.xz --out words.npz

It has no tokenizer in common with any model, no embeddings and no gradient. It learns from windows
of 8 to 60 words of labelled texts ({"text", "label"} on each line, negative and positive), which
is how much of a text there is when particles are weighed. A tenth of the texts is held out.
"""

from __future__ import annotations

import argparse
import lzma
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import torch

from ssdlm.storage.jsonl import parse_jsonl

WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[!?]")
LABELS = ("negative", "positive")
NAMES = ("neg", "pos", *LABELS, "0", "1")
"""What files call them."""
SHORTEST, LONGEST = 8, 60
"""Words of a window."""


def features(text: str, size: int) -> list[int]:
    """Return the numbers of a text's words and of its pairs of words."""
    words = WORD.findall(text.lower())
    pairs = [f"{one} {other}" for one, other in pairwise(words)]
    return [zlib.crc32(gram.encode()) % size for gram in (*words, *pairs)]


@dataclass(frozen=True)
class Ngrams:
    """The log-odds that texts are positive, or negative: a function from texts to scores."""

    weights: np.ndarray
    bias: float
    label: str = "positive"

    @classmethod
    def load(cls, path: Path, label: str) -> Ngrams:
        """Return what was stored, for one of its labels."""
        stored = np.load(path)
        return cls(stored["weights"].astype(np.float32), float(stored["bias"]), label)

    def __call__(self, texts: Sequence[str]) -> list[float]:
        sign = 1 if self.label == LABELS[1] else -1
        size = len(self.weights)
        sums = [self.weights[features(text, size)].sum() + self.bias for text in texts]
        return (sign * np.array(sums)).tolist()


def windows(path: Path, each: int, draw: random.Random) -> list[list[tuple[str, int]]]:
    """Return some windows of every text, each with its label as 0 or 1."""
    found = []
    with lzma.open(path, "rb") as file:
        for _, line in parse_jsonl(file.read().splitlines(), source=str(path)):
            words = line["text"].split()
            label = NAMES.index(str(line["label"])) % 2
            found.append([])
            for _ in range(each):
                count = draw.randint(SHORTEST, LONGEST)
                start = draw.randrange(max(1, len(words) - count))
                found[-1].append((" ".join(words[start : start + count]), label))
    return found


def train(
    rows: Sequence[tuple[str, int]], *, size: int, epochs: int, lr: float, seed: int
) -> Ngrams:
    """Return weights that were fitted to labelled windows."""
    torch.manual_seed(seed)
    bag = torch.nn.EmbeddingBag(size, 1, mode="sum", sparse=True)
    torch.nn.init.zeros_(bag.weight)
    bias = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SparseAdam(list(bag.parameters()), lr=lr)
    encoded, draw = [features(text, size) for text, _ in rows], random.Random(seed)
    for _ in range(epochs):
        order = list(range(len(rows)))
        draw.shuffle(order)
        for start in range(0, len(order), 256):
            some = [index for index in order[start : start + 256] if encoded[index]]
            flat = torch.tensor([number for index in some for number in encoded[index]])
            lengths = torch.tensor([0, *(len(encoded[index]) for index in some[:-1])])
            targets = torch.tensor([float(rows[index][1]) for index in some])
            logits = bag(flat, lengths.cumsum(0)).squeeze(1) + bias
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
            optimizer.zero_grad()
            bias.grad = None
            loss.backward()
            optimizer.step()
            assert bias.grad is not None
            bias.data -= 0.05 * bias.grad
    return Ngrams(bag.weight.detach().squeeze(1).numpy(), bias.item())


def accuracy(scorer: Ngrams, rows: Sequence[tuple[str, int]]) -> float:
    """Return the share of labelled windows to which a scorer gives their label."""
    scores = scorer([text for text, _ in rows])
    labels = np.array([label for _, label in rows])
    return float(((np.array(scores) > np.log(0.5)) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=1 << 20, help="weights; grams share them")
    parser.add_argument("--each", type=int, default=8, help="windows of each text")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    texts = windows(arguments.data, arguments.each, draw)
    held = len(texts) // 10
    rows, others = (list(chain(*some)) for some in (texts[held:], texts[:held]))
    settings = {name: getattr(arguments, name) for name in ("size", "epochs", "lr", "seed")}
    scorer = train(rows, **settings)
    np.savez_compressed(
        arguments.out, weights=scorer.weights.astype(np.float16), bias=np.array(scorer.bias)
    )
    print(
        f"wrote {arguments.out}: right on {accuracy(scorer, rows):.3f} of {len(rows)} windows, and "
        f"on {accuracy(scorer, others):.3f} of {len(others)} of texts held out"
    )


if __name__ == "__main__":
    main()

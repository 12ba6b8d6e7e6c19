"""A linear judge: words and pairs of words by TF-IDF, weighed by logistic regression.

folder -> [linear] -> judges.load_text_judge -> evaluate

It knows no order beyond pairs and has no layers: another kind than the network over words. Its
weights also say which words tell a label most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import embedding_bag

from ssdlm.guidance.grammar import LINEAR_TYPE, WORD
from ssdlm.shapes import Tensor
from ssdlm.storage.checkpoint import WEIGHTS
from ssdlm.storage.files import read_json, write_json, write_text
from ssdlm.storage.tensors import as_os_errors

GRAMS = "grams.txt"
RARE = 0.002
"""The share of texts that a word is in, below which it tells nothing."""


@dataclass(frozen=True)
class LinearJudge:
    """Words and pairs of words, each with a weight for every label."""

    labels: list[str]
    rows: dict[str, int]
    """The row of each word or pair."""
    idf: Tensor
    weights: Tensor
    """(rows, labels)"""
    bias: Tensor
    without: tuple[str, ...] = ()
    """Words that it does not see."""

    def encode(self, text: str) -> tuple[list[int], list[float]]:
        """Return the rows of a text's words and pairs, and how much of each it has: TF-IDF."""
        counts = Counter(g for g in grams(text, self.without) if g in self.rows)
        rows = [self.rows[gram] for gram in counts]
        values = torch.tensor([*counts.values()]) * self.idf[rows]
        return rows, (values / values.norm().clamp(min=1e-9)).tolist()

    def logits(self, texts: Sequence[tuple[list[int], list[float]]]) -> Tensor:
        """Return logits (texts, labels) of encoded texts."""
        flat = torch.tensor([row for rows, _ in texts for row in rows], dtype=torch.long)
        values = torch.tensor([value for _, some in texts for value in some], dtype=torch.float32)
        starts = torch.tensor([0, *(len(rows) for rows, _ in texts[:-1])]).cumsum(0)
        found = embedding_bag(flat, self.weights, starts, mode="sum", per_sample_weights=values)
        return found + self.bias

    @torch.no_grad()
    def log_probs(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the log-probability of every label for every text (texts, labels)."""
        encoded = [self.encode(text) for text in texts]
        parts = [encoded[n : n + batch_size] for n in range(0, len(encoded), batch_size)]
        return torch.cat([self.logits(part) for part in parts]).log_softmax(-1)

    def telling(self, label: str, count: int) -> list[str]:
        """Return the words that tell a label most: by their weight above the mean of the others'.

        Rare words are left out: names of a few texts, whose weights are chance.
        """
        column = self.labels.index(label)
        others = (self.weights.sum(1) - self.weights[:, column]) / (len(self.labels) - 1)
        margin = (self.weights[:, column] - others) * self.idf  # what one more of it adds
        is_known = self.idf <= 1 - math.log(RARE)  # it is 1 + log(texts / texts with the word)
        words = [one for one, row in self.rows.items() if one.isalpha() and bool(is_known[row])]
        return sorted(words, key=lambda word: -float(margin[self.rows[word]]))[:count]


def grams(text: str, without: Sequence[str] = ()) -> list[str]:
    """Return a text's words and its pairs of words."""
    words = [word for word in WORD.findall(text.lower()) if word not in without]
    return [*words, *(f"{one} {other}" for one, other in pairwise(words))]


def load_linear(folder: Path) -> LinearJudge:
    """Return the linear judge of a folder."""
    config = read_json(folder / "config.json")
    names, tensors = config["id2label"], load_file(folder / WEIGHTS)
    known = (folder / GRAMS).read_text(encoding="utf-8").splitlines()
    if len(known) != len(tensors["weights"]):
        raise ValueError(f"{GRAMS} and {WEIGHTS} do not fit")
    return LinearJudge(
        [names[str(number)] for number in range(len(names))],
        {gram: row for row, gram in enumerate(known)},
        *(tensors[name].float() for name in ("idf", "weights", "bias")),
        without=tuple(config["without"]),
    )


def save_linear(judge: LinearJudge, folder: Path, **more: Any) -> None:
    """Write a judge as tensors, its words and pairs, and a config.json, which has `more` too."""
    with as_os_errors(folder / WEIGHTS):
        save_file({name: getattr(judge, name) for name in ("idf", "weights", "bias")},
                  folder / WEIGHTS)  # fmt: skip
    (folder / WEIGHTS).chmod(0o644)
    write_text(folder / GRAMS, "".join(f"{gram}\n" for gram in judge.rows))
    names = {str(number): label for number, label in enumerate(judge.labels)}
    own = {"model_type": LINEAR_TYPE, "id2label": names, "without": list(judge.without)}
    write_json(folder / "config.json", own | more)

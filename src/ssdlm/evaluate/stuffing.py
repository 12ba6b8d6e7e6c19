"""Stuffing: how much of a text is the words that tell its label most.  linear -> [stuffing] -> run

People write a label with few of them. A text that repeats them convinces a classifier, not a
reader: its share stands beside that of human texts of the label.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from ssdlm.evaluate.diversity import PromptMean
from ssdlm.evaluate.samples import Pool
from ssdlm.guidance.grammar import WORD

TELLING = 200
"""Words of each label that count."""


def word_counts(text: str, telling: Set[str]) -> tuple[int, int]:
    """Return how many words of a text are telling ones, and how many it has.

    >>> word_counts("A great, great day; it's 5 o'clock!", {"great"})
    (2, 6)
    """
    words = [word for word in WORD.findall(text.lower()) if word[0].isalpha()]
    return sum(word in telling for word in words), len(words)


def stuffing(pools: Sequence[Pool], telling: Set[str]) -> PromptMean:
    """Return the share of telling words among the words of all samples."""
    counts = [
        np.sum([word_counts(sample.text, telling) for sample in pool.samples], axis=0)
        for pool in pools
    ]
    found = np.array(counts, dtype=float)
    return PromptMean(found[:, 0], found[:, 1])

"""Where sentences end, token by token.  token spellings -> [sentences] -> automaton"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SENTENCE_END = re.compile(r"[.!?]['\")\]\u2019\u201d]*(\s*)\Z")
CLOSERS = re.compile(r"['\")\]\u2019\u201d]*")
NO_END, PENDING_END, SEEN_END = 0, 1, 2
"""Whether a sentence has ended: a full stop ends one if a space or the end of the text follows."""


@dataclass(frozen=True)
class Sentences:
    """What each token does to the sentence it is in; all are (V,)."""

    ending: np.ndarray
    """NO_END, PENDING_END if a space has yet to follow, SEEN_END if the token contains it."""
    begins_with_space: np.ndarray
    only_closes: np.ndarray
    """It contains nothing but closing quotes and brackets."""

    def transitions(self) -> np.ndarray:
        """Return (3, V): NO_END, PENDING_END or SEEN_END after a token, given which it was."""
        kept = [np.where(self.only_closes, before, NO_END) for before in (NO_END, PENDING_END)]
        from_none, from_pending = (np.where(self.ending > 0, self.ending, old) for old in kept)
        from_pending = np.where(self.begins_with_space, SEEN_END, from_pending)
        return np.stack([from_none, from_pending, np.full_like(from_none, SEEN_END)])

    def cut(self, tokens: Sequence[int]) -> int:
        """Return how many tokens there are up to the last end of a sentence, 0 without one."""
        end = pending = 0
        for count, token in enumerate(tokens, start=1):
            if pending and self.begins_with_space[token]:
                end, pending = pending, 0
            if self.ending[token] == SEEN_END:
                end = count
            is_pending = self.ending[token] > 0 or (pending and self.only_closes[token])
            pending = count if is_pending else 0
        return pending or end


def sentences_of(spellings: Sequence[bytes]) -> Sentences:
    """Return what each token does to a sentence, from its spelling."""
    texts = [spelling.decode(errors="replace") for spelling in spellings]
    found = [SENTENCE_END.search(text) for text in texts]
    ending = [NO_END if match is None else SEEN_END if match[1] else PENDING_END for match in found]
    begins_with_space = [text[:1].isspace() for text in texts]
    only_closes = [CLOSERS.fullmatch(text) is not None for text in texts]
    return Sentences(
        np.array(ending, dtype=np.int32), np.array(begins_with_space), np.array(only_closes)
    )

"""Pieces of text become tokens, several at a time and in order.  sources -> [encoding] -> parts"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ssdlm.data.formats import Piece
from ssdlm.data.shards import token_dtype
from ssdlm.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 19
"""Text that a worker takes at a time: enough to be worth a switch, little enough for memory."""


@dataclass(frozen=True)
class Encoded:
    """A piece of a document as tokens."""

    source: int
    """Number of the source that the piece comes from."""
    ids: np.ndarray
    num_bytes: int
    ends_document: bool


def batches(pieces: Iterable[tuple[int, Piece]]) -> Iterator[list[tuple[int, Piece]]]:
    """Yield pieces in lists of about `BATCH_CHARACTERS`."""
    batch: list[tuple[int, Piece]] = []
    size = 0
    for item in pieces:
        batch.append(item)
        size += len(item[1].text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encode(
    batches: Iterable[list[tuple[int, Piece]]], tokenizer: Tokenizer, workers: int
) -> Iterator[Encoded]:
    """Yield tokenised pieces in their order; threads work in parallel, as the library lets them."""
    own = threading.local()
    state = pickle.dumps(tokenizer)
    dtype = token_dtype(tokenizer.V)

    def start() -> None:
        own.tokenizer = pickle.loads(state)  # one each: they would wait for a shared cache

    def encode_batch(batch: list[tuple[int, Piece]]) -> list[Encoded]:
        ids = own.tokenizer.encode_plain([piece.text for _, piece in batch])
        return [
            Encoded(
                number,
                np.array(of_piece, dtype=dtype),
                len(piece.text.encode("utf-8")),
                piece.ends_document,
            )
            for of_piece, (number, piece) in zip(ids, batch, strict=True)
        ]

    waiting: deque[Future[list[Encoded]]] = deque()
    with ThreadPoolExecutor(workers, initializer=start) as pool:
        for batch in batches:
            waiting.append(pool.submit(encode_batch, batch))
            if len(waiting) > 2 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep the tokenizers library from starting threads of its own: `workers` counts ours."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

"""Windows of text: which tokens an example reads, by the seed and its number alone.

shards -> [windows] -> train

    example -> (stream, the stream's n-th example) -> (epoch, window) -> max_len tokens

Every arrow is a keyed permutation that is computed where it is asked, so a run may be continued,
split over processes or accumulated in any way and still reads the same examples; and nothing as
long as the data is ever in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from ssdlm.shapes import Seeds, Tokens

PERIOD = 4096
"""Examples over which a mixture keeps its shares exactly."""


@runtime_checkable
class Stream(Protocol):
    """Token ids of many documents, one after the other."""

    def __len__(self) -> int: ...

    def read(self, start: int, length: int) -> np.ndarray: ...

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Windows:
    """The endless, shuffled sequence of training examples of some streams."""

    streams: Sequence[Stream]
    max_len: int
    """Tokens in an example."""
    seed: int = 0
    weights: tuple[float, ...] = ()
    """Share of each stream; empty: in proportion to their sizes."""
    shift: bool = True
    """Cut a stream at another offset in every epoch."""

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != len(self.streams):
            raise ValueError(
                f"data.weights={self.weights} has {len(self.weights)} numbers for "
                f"{len(self.streams)} data folders; give one each"
            )
        for stream in self.streams:
            if len(stream) < self.max_len:
                raise ValueError(
                    f"the data has {len(stream)} training tokens, less than one sequence of "
                    f"data.max_len={self.max_len}; prepare more text or lower data.max_len"
                )

    def batch(self, examples: np.ndarray) -> Tokens:
        """Return the tokens of the examples with these numbers, one row each."""
        which, order = self.route(examples)
        rows = np.empty((len(examples), self.max_len), dtype=np.int64)
        for s, stream in enumerate(self.streams):
            mine = np.flatnonzero(which == s)
            rows[mine] = stream.rows(self.starts(s, order[mine]), self.max_len)
        return torch.from_numpy(rows)

    def route(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each example's stream, and which of that stream's examples it is."""
        if len(self.streams) == 1:
            return np.zeros_like(examples), examples
        which, order = np.empty_like(examples), np.empty_like(examples)
        for period in np.unique(examples // PERIOD):
            mine = examples // PERIOD == period
            which[mine], order[mine] = (a[examples[mine] % PERIOD] for a in self.deal(int(period)))
        return which, order

    def deal(self, period: int) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each example of a period, its stream and its number in that stream.

        Each stream has its share of the period's slots, and a permutation deals them out.
        """
        return dealt(self.seed, tuple(self.shares().tolist()), period)

    def shares(self) -> np.ndarray:
        """Return how many examples of a period each stream gives, at least one."""
        weights = np.array(self.weights or [self.num_windows(s) for s in range(len(self.streams))])
        exact = weights / weights.sum() * PERIOD
        shares = np.maximum(np.floor(exact).astype(np.int64), 1)
        while shares.sum() != PERIOD:
            step = 1 if shares.sum() < PERIOD else -1
            shares[np.argmax(step * (exact - shares))] += step
        return shares

    def num_windows(self, s: int) -> int:
        """Return the number of windows in an epoch of stream s."""
        return max(1, (len(self.streams[s]) - self.slack(s)) // self.max_len)

    def slack(self, s: int) -> int:
        """Return the largest offset an epoch of stream s may begin at."""
        return min(self.max_len - 1, len(self.streams[s]) - self.max_len) if self.shift else 0

    def starts(self, s: int, order: np.ndarray) -> np.ndarray:
        """Return where the windows of stream s's examples with these numbers begin."""
        epoch, window = np.divmod(order, self.num_windows(s))
        window = permute(window, self.num_windows(s), keys(self.seed, 1 + 2 * s, epoch))
        offset = keys(self.seed, 2 + 2 * s, epoch) % np.uint64(self.slack(s) + 1)
        return window * self.max_len + offset.astype(np.int64)


@functools.lru_cache(maxsize=8)
def dealt(seed: int, shares: tuple[int, ...], period: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `Windows.deal` of some shares; batches of one period ask for the same."""
    slots = permute(np.arange(PERIOD), PERIOD, keys(seed, 0, np.full(PERIOD, period)))
    which = np.repeat(np.arange(len(shares)), shares)[slots]
    order = np.empty_like(which)
    for s, share in enumerate(shares):
        order[which == s] = period * share + np.arange(share)
    return which, order


def held_out(streams: Sequence[Stream], max_len: int, count: int) -> Tokens:
    """Return up to `count` rows spread evenly over the streams' windows, always the same."""
    places = [(s, w) for s, x in enumerate(streams) for w in range(len(x) // max_len)]
    chosen = np.linspace(0, len(places) - 1, min(count, len(places))).round().astype(int)
    rows = np.empty((len(chosen), max_len), dtype=np.int64)
    for row, (s, w) in enumerate(places[i] for i in chosen):
        rows[row] = streams[s].read(w * max_len, max_len)
    return torch.from_numpy(rows)


def permute(index: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Return where a keyed permutation of 0..n-1 sends each index; each has its own key.

    A Feistel network permutes the next power of four; what falls outside is sent on until it
    falls inside.
    """
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    out = feistel(index.astype(np.uint64), half, key)
    while (outside := out >= n).any():
        out[outside] = feistel(out[outside], half, key[outside])
    return out.astype(np.int64)


def feistel(index: np.ndarray, half: int, key: np.ndarray) -> np.ndarray:
    """Return a keyed permutation of the numbers of 2 * half bits."""
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = index >> shift, index & mask
    for round_number in range(6):
        left, right = (
            right,
            left ^ (scramble(right ^ scramble(key + np.uint64(round_number))) & mask),
        )
    return (left << shift) | right


def keys(seed: int, purpose: int, number: np.ndarray) -> np.ndarray:
    """Return a 64-bit key for each number (an epoch, a period), for one use of a seed."""
    start = scramble(np.array([seed], dtype=np.uint64)) + np.uint64(purpose)
    return scramble(scramble(start) + number.astype(np.uint64))


def example_seeds(seed: int, purpose: int, number: np.ndarray) -> Seeds:
    """Return a seed for each number (an example's, a row's), for one use of a run's seed."""
    return torch.from_numpy((keys(seed, purpose, number) >> np.uint64(1)).astype(np.int64))


def scramble(x: np.ndarray) -> np.ndarray:
    """Return 64-bit words whose every bit depends on every bit of x (splitmix64's finaliser)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

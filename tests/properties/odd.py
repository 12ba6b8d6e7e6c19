"""Inputs that nobody meant, for hypothesis to choose from, and what every answer to them is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([-(10**20), 10**20, 10**400, 2**63, -1, 0]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([np.int64(3), np.float32(0.5), np.bool_(True), np.array([1, 2])]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", " ", "\ud800", "\x00", "x" * 3000, "../..", "é", "\r\n", "0.9", "false"]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(TEXTS, inner, max_size=3),
    ),
    max_leaves=5,
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=12),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(max_size=6), JSON, max_size=5)


def answer(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the ValueError or OSError with which it refuses in a line."""
    try:
        return call()
    except (ValueError, OSError) as error:
        assert type(error).__name__ != "TypeCheckError"
        message = str(error)
        assert message and "\n" not in message.strip() and len(message) < 3000, message
        return error


def damaged(content: bytes, changes: list[tuple[float, int]], end: float) -> bytes:
    """Return bytes of which some, at shares of the length, are changed, and the rest cut off."""
    broken = bytearray(content)
    for share, value in changes:
        if broken:
            broken[int(share * (len(broken) - 1))] = value
    return bytes(broken[: round(end * len(broken))])


CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4)
ENDS = st.one_of(st.just(1.0), st.just(1.0), st.floats(0, 1))

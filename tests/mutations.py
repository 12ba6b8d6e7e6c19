"""Files of ours with one thing wrong: what a reader must survive.

Every field of a valid JSON value is left out, given another type, made huge, negative or nested.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**20,
    10**400,
    1.5,
    -1e308,
    float("nan"),
    "",
    "../../x",
    "\ud800",
    "x" * 3_000,
    [],
    [[]],
    {},
    {"a": {"b": 1}},
    [1, "a", None],
)
DEEP = "[" * 5_000 + "]" * 5_000


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside a JSON value; of a long list, to its first two."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 2))
    for key in keys:
        yield (*before, key)
        if isinstance(value[key], dict | list):
            yield from places(value[key], (*before, key))


def mutations(value: Any) -> Iterator[tuple[str, bytes]]:
    """Yield damaged copies of a JSON value as bytes, each with a name that says what was done."""
    for number, place in enumerate(places(value)):
        *way, last = place
        for odd in (..., *ODD[number % 3 :: 3]):  # a third of them each, all of them in turn
            changed = copy.deepcopy(value)
            home = changed
            for key in way:
                home = home[key]
            if odd is ...:
                del home[last]
            else:
                home[last] = odd
            yield f"{place} <- {str(odd)[:20]!r}", json.dumps(changed).encode()
    whole = json.dumps(value)
    yield "deep", f'{{"a": {DEEP}, {whole[1:]}'.encode()
    yield "cut", whole[: len(whole) // 2].encode()
    for other in (b"", b"[]", b"7", b"null", b"\xff", DEEP.encode()):
        yield repr(other[:10]), other


def check_reader(path: Path, read: Callable[[], object]) -> int:
    """Assert that every damage to a file is refused in one line, or read; return how many were."""
    content = path.read_bytes()
    read()
    refused = 0
    for name, damaged in mutations(json.loads(content)):
        path.write_bytes(damaged)
        try:
            read()
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error), (name, error)
            assert 0 < len(str(error)) < 1500, (name, str(error)[:200])
        except Exception as error:
            pytest.fail(f"{path.name} {name}: {error!r}"[:500])
    path.write_bytes(content)
    read()
    return refused

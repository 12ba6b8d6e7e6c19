"""How far a long reading has come, on standard error.  prepare -> [progress]"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Report = Callable[[int, int, int], None]
"""Takes bytes of input read, documents and tokens written so far."""


def ignore(num_bytes: int, documents: int, tokens: int) -> None:
    """Report nothing."""


@contextlib.contextmanager
def shown(total_bytes: int, *, is_shown: bool) -> Iterator[Report]:
    """A bar of `rich`, plain lines where it is not installed, nothing where nobody looks."""
    if not is_shown:
        yield ignore
        return
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        yield plain(total_bytes)
    else:
        with _bar(total_bytes) as report:
            yield report


def plain(total_bytes: int, every_s: float = 10.0) -> Report:
    """A line now and then."""
    last = time.monotonic()

    def report(num_bytes: int, documents: int, tokens: int) -> None:
        nonlocal last
        if time.monotonic() - last < every_s:
            return
        last = time.monotonic()
        share = f"{num_bytes / total_bytes:4.0%}, " if total_bytes else ""
        print(f"{share}{documents:,} documents, {tokens:,} tokens", file=sys.stderr, flush=True)

    return report


@contextlib.contextmanager
def _bar(total_bytes: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("prepare"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TextColumn("{task.fields[documents]:,} documents, {task.fields[tokens]:,} tokens"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total_bytes or None, documents=0, tokens=0)

        def report(num_bytes: int, documents: int, tokens: int) -> None:
            progress.update(task, completed=num_bytes, documents=documents, tokens=tokens)

        yield report

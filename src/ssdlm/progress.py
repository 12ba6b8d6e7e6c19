"""How far long work has come, on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

Show = Callable[..., None]
"""Takes how much is done, a few words to stand beside it, and the end where it has moved."""

SECONDS_BETWEEN_LINES = 10.0


def ignore(done: int, said: str = "", end: int = 0) -> None:
    """Show nothing."""


@contextmanager
def bar(what: str, total: int, *, done: int = 0, is_shown: bool = True) -> Iterator[Show]:
    """Give a function that shows progress towards `total`; 0 stands for an unknown end."""
    if not is_shown:
        yield ignore
    elif sys.stderr.isatty() and find_spec("rich") is not None:
        with rich_bar(what, total, done) as show:
            yield show
    else:
        yield plain_lines(what, total, done)


def plain_lines(what: str, total: int, begun: int) -> Show:
    """Return a function that prints a line when some seconds have passed, and one at the end."""
    start = spoke = time.monotonic()

    def show(done: int, said: str = "", end: int = 0) -> None:
        nonlocal spoke, total
        total = end or total
        now = time.monotonic()
        if now - spoke < SECONDS_BETWEEN_LINES and done != total:
            return
        spoke = now
        line = f"{what} {done:,}" + (f"/{total:,}" if total else "") + f"  {said}"
        if total and done > begun:
            line += f"  {(now - start) / (done - begun) * (total - done):.0f} s left"
        print(line, file=sys.stderr, flush=True)

    return show


@contextmanager
def rich_bar(what: str, total: int, begun: int) -> Iterator[Show]:
    """Give a function that moves a bar of `rich`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}"),
        TimeLeft(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total or None, completed=begun, said="")
        yield lambda done, said="", end=0: progress.update(
            task, completed=done, said=said, total=end or None
        )

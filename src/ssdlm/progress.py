"""How far long work has come, on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

Show = Callable[..., None]
"""Takes how much is done, a few words of detail, and the new total where it has changed."""

SECONDS_BETWEEN_LINES = 10.0


def ignore(done: int, detail: str = "", total: int = 0) -> None:
    """Show nothing."""


@contextmanager
def bar(what: str, total: int, *, done: int = 0, is_shown: bool = True) -> Iterator[Show]:
    """Give a function that shows progress towards `total`, 0 where the end is unknown."""
    if not is_shown:
        yield ignore
    elif sys.stderr.isatty() and find_spec("rich") is not None:
        with rich_bar(what, total, done) as show:
            yield show
    else:
        yield plain_lines(what, total, done)


def plain_lines(what: str, total: int, first: int) -> Show:
    """Return a function that prints a line when some seconds have passed, and one at the end."""
    start = last_line = time.monotonic()
    end = total

    def show(done: int, detail: str = "", total: int = 0) -> None:
        nonlocal last_line, end
        end = total or end
        now = time.monotonic()
        if now - last_line < SECONDS_BETWEEN_LINES and done != end:
            return
        last_line = now
        line = f"{what} {done:,}" + (f"/{end:,}" if end else "") + f"  {detail}"
        if end and done > first:
            line += f"  {(now - start) / (done - first) * (end - done):.0f} s left"
        print(line, file=sys.stderr, flush=True)

    return show


@contextmanager
def rich_bar(what: str, total: int, first: int) -> Iterator[Show]:
    """Give a function that moves a bar of `rich`."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total or None, completed=first, detail="")
        yield lambda done, detail="", total=0: progress.update(
            task, completed=done, detail=detail, total=total or None
        )


@contextmanager
def without_native_lines() -> Iterator[None]:
    """Drop what libraries that are not Python write to standard error for a while."""
    if sys.stderr:
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is no standard error to keep clean
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers' own progress bars and load reports from the terminal."""
    if "transformers" not in sys.modules:  # which takes seconds to import, and is not in use
        yield
        return
    from transformers.utils import logging

    had_bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bar:
            logging.enable_progress_bar()

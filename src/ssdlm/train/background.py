"""Work beside a run, one piece at a time: the writing of a checkpoint.  -> run, checkpoints"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path


class Background:
    """A thread that writes one checkpoint at a time while the run goes on."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.pending: Future[Path | None] | None = None

    def begin(self, work: Callable[[], Path | None], *, is_waited_for: bool) -> None:
        """Start a piece of work; the one before must have been taken by `end`."""
        assert self.pending is None
        self.pending = self.pool.submit(work)
        if is_waited_for:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written; what came of it is for `end` to say."""
        if self.pending is not None:
            self.pending.exception()  # waits; it returns the error, which `end` raises

    def end(self) -> Path | None:
        """Wait for the work under way; return its result, raise its error, None without work."""
        pending, self.pending = self.pending, None
        return None if pending is None else pending.result()

    def close(self) -> None:
        """Wait, and let the thread go."""
        self.wait()
        self.pool.shutdown(wait=False)

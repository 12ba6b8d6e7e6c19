"""Constraints are compiled in a process of their own, within their time.  worker -> [compiling]

It may take seconds and is plain Python: in the engine's thread all streams would pause, in another
one they would be slowed down, and neither can be stopped. A process can. It starts with the first
constraint, and anew after one that took too long; it has no torch in it. What goes through the pipe
is pickled: at both ends is this file, and nobody else has the socket.
"""

from __future__ import annotations

import json
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from ssdlm.constraints.placement import Placement
from ssdlm.constraints.words import ConstraintCompiler, Wanted
from ssdlm.storage.arrays import user_cache
from ssdlm.tokenizer import Tokenizer

PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ssdlm.serve.compiling import work
work(int(sys.argv[2]))
"""
"""What the process runs. Multiprocessing's own would run the user's script once more."""
START_SECONDS = 60.0
"""For the process to start."""
WAIT_FACTOR = 6.0
"""So many times its processor time a request may wait, where other programs are at work, too."""
LOOK_SECONDS = 0.05
"""Between two looks whether anybody still waits."""
MOST_KEPT = 8
"""Automata that are kept for the next who asks for the same."""
MOST_BYTES = 32 << 20
"""Of the automata of one request: all that wait have theirs in memory."""


class NotCompiled(Exception):
    """A request has to wait for its constraints."""

    def __init__(self, wanted: list[Wanted]) -> None:
        super().__init__("constraints have to be compiled")
        self.wanted = wanted


class GivenUp(Exception):
    """Nobody waits for what was being compiled."""


class CompilerProcess:
    """Compiles constraints one after another, each request's within `seconds` of a processor."""

    def __init__(
        self, tokenizer: Tokenizer | None, *, V: int, max_len: int | None, seconds: float
    ) -> None:
        self.facts = tokenizer, V, max_len
        self.seconds = seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe: Connection | None = None

    def compile(
        self, wanted: Sequence[Wanted], is_over: Callable[[], bool] = lambda: False
    ) -> list[Placement]:
        """Return a placement for each text, or raise a ValueError that says why there is none.

        When `is_over` says that nobody waits any more, GivenUp is raised.
        """
        try:
            pipe = self.start(is_over)
            pipe.send((self.seconds, wanted))
            if not is_ready(pipe, WAIT_FACTOR * self.seconds, is_over):
                raise ValueError(
                    f"{wanted[0]} was not compiled within {WAIT_FACTOR * self.seconds:g} s, since "
                    "this machine is busy; ask again later, or make it simpler"
                )
            found = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise ValueError(self.why_ended(wanted)) from None
        except BaseException:
            self.stop()
            raise
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def start(self, is_over: Callable[[], bool]) -> Connection:
        """Return the way to a process that is ready."""
        if self.pipe is None:
            ours, theirs = socket.socketpair()
            self.pipe, number = Connection(ours.detach()), theirs.fileno()
            command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), str(number)]
            with theirs:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[number]
                )
            self.pipe.send(self.facts)
            if not is_ready(self.pipe, START_SECONDS, is_over):
                raise RuntimeError(f"no compiler started within {START_SECONDS:g} s")
            self.pipe.recv_bytes()
        return self.pipe

    def why_ended(self, wanted: Sequence[Wanted]) -> str:
        """Return what to tell those for whom the process ended, and forget it."""
        process, ended = self.process, None
        with suppress(subprocess.TimeoutExpired):  # its end of the pipe closes first
            ended = process.wait(1) if process is not None else None
        self.stop()
        if ended == -signal.SIGPROF:
            return (
                f"{wanted[0]} took more than {self.seconds:g} s to compile, the most on this "
                "server; make it simpler, with fewer or lower repeats, or fewer words"
            )
        return f"{wanted[0]} could not be compiled; make it simpler"

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.pipe is not None:
            self.pipe.close()
        self.process = self.pipe = None


def is_ready(pipe: Connection, seconds: float, is_over: Callable[[], bool]) -> bool:
    """Tell whether something came within its time, or raise when nobody waits for it."""
    end = time.monotonic() + seconds
    while not pipe.poll(LOOK_SECONDS):
        if is_over():
            raise GivenUp
        if time.monotonic() > end:
            return False
    return True


def work(number: int) -> None:
    """Compile what comes through an open socket until nothing can come any more."""
    for one in (signal.SIGINT, signal.SIGTERM):  # these are the server's to follow
        signal.signal(one, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    pipe = Connection(number)
    try:
        tokenizer, V, max_len = pipe.recv()
        cache = user_cache("grammars")
        compiler = ConstraintCompiler(tokenizer, V=V, max_len=max_len, cache=cache)
        compiler.spellings  # noqa: B018  the first request's time is not for these
        pipe.send_bytes(b"")
        while True:
            seconds, wanted = pipe.recv()
            # Its signal ends the process; time that others take from it does not count.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            found = answer(wanted, compiler)
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.send_bytes(found)
            tidy(compiler)
    except (EOFError, ConnectionError):
        return


def answer(wanted: list[Wanted], compiler: ConstraintCompiler) -> bytes:
    """Return the placements, or why there are none, as they go through a pipe."""
    try:
        found = pickle.dumps([compiler.compile(one) for one in wanted])
    except ValueError as error:
        return pickle.dumps(str(error))
    except MemoryError:
        return pickle.dumps(f"{wanted[0]} needs more memory than there is; make it simpler")
    if len(found) > MOST_BYTES:
        return pickle.dumps(
            f"{wanted[0]} needs an automaton of {len(found) >> 20} MiB, and this server keeps "
            f"{MOST_BYTES >> 20}; make it simpler, with fewer or lower repeats, or fewer words"
        )
    return found


def tidy(compiler: ConstraintCompiler) -> None:
    """Keep automata for those who ask for the same, but few, and nothing of single texts."""
    while len(compiler.automata) > MOST_KEPT:
        del compiler.automata[next(iter(compiler.automata))]
    for automaton in compiler.automata.values():
        automaton.cache.clear()

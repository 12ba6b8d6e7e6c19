"""The thread that owns the engine: no other one touches torch.  tickets -> [worker] -> schedule

Requests wait in the order in which they came, and each in turn gets a text begun, so that one with
many texts does not keep the others waiting. Between two turns of the engine the thread looks at
what has come, who has left, and what there is to tell.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from ssdlm.constraints.words import Wanted
from ssdlm.engine.plain import Engine
from ssdlm.engine.schedule import Job
from ssdlm.serve.compiling import CompilerProcess, GivenUp, NotCompiled
from ssdlm.serve.errors import ApiError
from ssdlm.serve.guides import Guides
from ssdlm.serve.limits import Limits, texts_at_once
from ssdlm.serve.metrics import ModelMetrics
from ssdlm.serve.tickets import News, Position, Row, Ticket

LOOK_EVERY = 8
"""Tokens that a GPU writes between two looks: who comes and who leaves waits no longer."""
MOST_READ = 512
"""Tokens of prompts after which no other text is begun before the next turn; a GPU reads faster."""
TELL_EVERY = 0.5
"""Seconds between two words to those who wait."""
LAST_PASS_SECONDS = 60
"""For the turn that is on its way at the end: Python cannot end well while a thread is in torch."""
MOST_FAULTS = 3
"""Turns in a row that may fail before the server says that it is ill."""

logger = logging.getLogger("ssdlm.serve")


class Turns:
    """Lets one thread at a time go on, in the order in which they came."""

    def __init__(self) -> None:
        self.changed, self.num_come, self.num_gone = threading.Condition(), 0, 0
        self.all: list[Turn] = []

    def wait(self) -> None:
        """Return when all who came before have gone."""
        with self.changed:
            own, self.num_come = self.num_come, self.num_come + 1
            self.changed.wait_for(lambda: self.num_gone == own)

    def go(self) -> None:
        """Let the next one go on."""
        with self.changed:
            self.num_gone += 1
            self.changed.notify_all()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for whoever has the turn."""
        return self.num_come > self.num_gone + 1


class Turn:
    """One thread's turn, which it keeps for as long as another's pass takes.

    So a fast model writes at half its pace beside a slow one, and not at the pace of the slow one.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns, self.takes = turns, 0.0
        """`takes` is how many seconds the latest pass took."""
        self.since: float | None = None
        turns.all.append(self)

    def __enter__(self) -> None:
        if self.since is None:
            self.turns.wait()
            self.since = time.monotonic()
        self.began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        assert self.since is not None
        now = time.monotonic()
        self.takes = now - self.began
        longest = max((one.takes for one in self.turns.all if one is not self), default=0.0)
        if not self.turns.is_awaited or now - self.since >= longest:
            self.end()

    def end(self) -> None:
        """Let others go on, if it is this one's turn."""
        if self.since is not None:
            self.since = None
            self.turns.go()


class Worker:
    """Writes the texts of tickets, in a thread of its own."""

    def __init__(
        self,
        engine: Engine,
        guides: Guides,
        limits: Limits,
        metrics: ModelMetrics,
        turns: Turns | None = None,
    ) -> None:
        self.turn = Turn(turns or Turns())
        """Of those that a server's models take: a graph is captured by one alone."""
        self.engine, self.guides, self.limits, self.metrics = engine, guides, limits, metrics
        self.at_once = texts_at_once(engine.device.type)
        self.most_read = MOST_READ if engine.device.type == "cpu" else math.inf
        self.schedule = engine.schedule(most_jobs=self.at_once, grows=True)
        facts = {"V": engine.denoiser.V, "max_len": engine.denoiser.max_len}
        self.compiler = CompilerProcess(engine.tokenizer, seconds=limits.compile_seconds, **facts)
        self.compiling = ThreadPoolExecutor(1, "compiling")
        """The thread that waits for the compiler."""
        self.inbox: SimpleQueue[Ticket | None] = SimpleQueue()
        """What has come; None ends the thread."""
        self.waiting: deque[Ticket] = deque()
        """Tickets with texts that nobody has begun."""
        self.rows: dict[Job, tuple[Ticket, Row]] = {}
        """The texts that are being written, and whose they are."""
        self.open: set[Ticket] = set()
        """All tickets that are not answered; both threads use it, under the lock."""
        self.lock = threading.Lock()
        self.is_closing = False
        self.num_faults = 0
        self.told = 0.0
        self.pace = 0.0
        """Seconds from one finished text to the next, lately."""
        self.last_end = time.monotonic()
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    @property
    def is_well(self) -> bool:
        """Whether texts get written."""
        return self.thread.is_alive() and self.num_faults < MOST_FAULTS

    # What the event loop calls.

    def submit(self, ticket: Ticket) -> None:
        """Take a ticket on, or raise an ApiError where too many wait."""
        with self.lock:
            if self.is_closing:
                raise ApiError(503, "the server is shutting down; ask another one")
            num_open = sum(other.num_left for other in self.open)
            if num_open + ticket.num_rows > self.limits.max_queue + self.at_once:
                seconds = min(60, max(1, math.ceil(self.pace * num_open)))
                raise ApiError(
                    429,
                    f"{num_open} texts are waiting or being written; try again in {seconds} s",
                    code="queue_full",
                    headers={"retry-after": str(seconds)},
                )
            self.open.add(ticket)
        ticket.mailbox.loop = asyncio.get_running_loop()
        self.inbox.put(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Free what a ticket has, whether it is answered or given up."""
        ticket.cancel()
        with self.lock:
            self.open.discard(ticket)
        self.metrics.waiting(self.num_waiting)

    @property
    def num_waiting(self) -> int:
        """How many texts are not begun."""
        with self.lock:
            return sum(len(ticket.todo) for ticket in self.open)

    def close(self) -> None:
        """Take on nothing more; a signal's handler may call it, so there is no lock."""
        self.is_closing = True

    def abort(self) -> None:
        """Give up everything that is open, with a word to each client."""
        with self.lock:
            tickets = list(self.open)
        for ticket in tickets:
            ticket.fail(ApiError(503, "the server is shutting down; ask another one"))

    def end(self) -> None:
        """End the threads, when nothing is open any more."""
        self.inbox.put(None)
        self.thread.join(LAST_PASS_SECONDS)
        self.compiling.shutdown()
        self.compiler.stop()

    # What the thread does.

    def run(self) -> None:
        """Write texts until the end."""
        try:
            while self.go_on():
                self.forget()
                self.tell_positions()
        finally:
            self.turn.end()

    def go_on(self) -> bool:
        """Do some passes for all texts, or wait for some; return False at the end."""
        is_idle = not (self.rows or self.waiting or self.schedule.workers)
        try:
            if not self.take_in(is_idle):
                return False
            with self.turn:
                self.begin()
                for job in self.schedule.turn():
                    self.look(job)
            self.num_faults = 0
        except Exception:
            logger.exception("a turn of the engine failed")
            self.recover()
        return True

    def take_in(self, is_idle: bool) -> bool:
        """Look at what has come, and wait for it if there is nothing else to do.

        Return whether to go on.
        """
        if is_idle and self.inbox.empty():
            with self.turn:
                self.engine.controls.warn_of_idle()
            while self.inbox.empty() and self.load_guide():
                pass
        while True:
            if is_idle:
                self.turn.end()
            try:
                ticket = self.inbox.get(block=is_idle)
            except Empty:
                return True
            if ticket is None:
                return False
            is_idle = False
            with self.turn:
                self.accept(ticket)

    def load_guide(self) -> bool:
        """Load a guide that nobody has asked for yet; return whether there was one."""
        with self.turn:
            return self.guides.load_next()

    def accept(self, ticket: Ticket) -> None:
        """Let the engine check a ticket, and let it wait."""
        if ticket.is_over:
            return
        try:
            ticket.open(self.engine, self.guides, self.limits, self.at_once)
        except NotCompiled as error:
            self.compiling.submit(self.compile, ticket, error.wanted)
        except ValueError as error:
            ticket.fail(ApiError(400, error))
        except Exception:
            logger.exception("a request could not be prepared")
            ticket.fail(ApiError(500, "the request could not be prepared; see the server's log"))
        else:
            if ticket.todo:
                self.waiting.append(ticket)
            else:
                ticket.hand_out(self.engine)

    def compile(self, ticket: Ticket, wanted: list[Wanted]) -> None:
        """Have a ticket's constraints compiled, in the thread that waits for that."""
        if ticket.is_over:
            return
        try:
            ticket.placements = self.compiler.compile(wanted, lambda: ticket.is_over)
        except GivenUp:
            pass
        except ValueError as error:
            ticket.fail(ApiError(400, error))
        except Exception:
            logger.exception("constraints could not be compiled")
            ticket.fail(ApiError(500, "the request could not be prepared; see the server's log"))
        else:
            self.inbox.put(ticket)

    def begin(self) -> None:
        """Begin texts while there is room, one of each ticket in turn.

        The last place is for one of which no text was begun: others may take long to free theirs.
        Where prompts are long, a few are read between two passes for texts that are on their way.
        """
        num_passed_over = num_read = 0
        while len(self.waiting) > num_passed_over and len(self.rows) < self.at_once:
            if num_read >= self.most_read:
                break
            ticket = self.waiting.popleft()
            if ticket.is_over or not ticket.todo:
                continue
            if ticket.jobs and self.rows and len(self.rows) == self.at_once - 1:
                self.waiting.append(ticket)
                num_passed_over += 1
                continue
            row = ticket.todo.popleft()
            num_read += len(row.request.context)
            job = self.schedule.submit(row.request, look_every=LOOK_EVERY)
            self.rows[job] = ticket, row
            ticket.jobs.append(job)
            if ticket.is_over:  # it was given up while this was done
                job.cancel()
            if ticket.todo:
                self.waiting.append(ticket)
            elif ticket.wants_position:
                ticket.mailbox.put(Position(0))

    def look(self, job: Job) -> None:
        """Tell what is new about a text, and hand it out when it is whole."""
        if job not in self.rows or job.is_over:
            return
        ticket, row = self.rows[job]
        if ticket.began is None:
            ticket.began = time.monotonic()
            self.metrics.first_draft(ticket.began - ticket.came)
        if job.failure is not None:
            ticket.fail(ApiError(400, job.failure))
            return
        for item in row.look(job) if row.look else ():
            ticket.mailbox.put(News(row.index, item))
        box, limits = ticket.mailbox, self.limits
        if len(box.letters) > limits.max_unread or box.num_unread > limits.max_unread_bytes:
            ticket.fail(ApiError(408, "the client does not read what it asked for"))
            return
        text = self.engine.finish(job)
        if text is None:
            return
        ticket.hand_in(self.engine, row, text)
        self.metrics.tokens(len(text.tokens))
        now = time.monotonic()
        # Time without any work is nobody's.
        self.pace = 0.9 * self.pace + 0.1 * (now - max(self.last_end, ticket.began))
        self.last_end = now
        if ticket.is_whole() and ticket.goes_on(self.engine):
            self.accept(ticket)
        elif ticket.is_whole():
            ticket.hand_out(self.engine)
            self.metrics.last_token(now - ticket.came)

    def forget(self) -> None:
        """Drop the texts that are whole or given up."""
        for job in [job for job in self.rows if job.is_over]:
            del self.rows[job]
            job.step = None  # which has tensors
            self.metrics.passes(sum(job.passes))
        self.metrics.running(len(self.rows), self.at_once)

    def recover(self) -> None:
        """Give up what was being written when something broke, and begin anew with the rest."""
        self.num_faults += 1
        error = ApiError(500, "the text could not be written; see the server's log")
        for ticket in {ticket for ticket, _ in self.rows.values()}:
            ticket.fail(error)
        self.rows = {}
        self.schedule = self.engine.schedule(most_jobs=self.at_once, grows=True)

    def tell_positions(self) -> None:
        """Tell those who wait how many are before them, now and then."""
        now = time.monotonic()
        if now - self.told < TELL_EVERY:
            return
        self.told = now
        self.waiting = deque(ticket for ticket in self.waiting if not ticket.is_over)
        for ahead, ticket in enumerate(self.waiting, start=1):
            if ticket.wants_position and not ticket.jobs:
                ticket.mailbox.put(Position(ahead))
        self.metrics.waiting(self.num_waiting)

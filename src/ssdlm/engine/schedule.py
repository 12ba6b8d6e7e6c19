"""Whose turn it is: requests wait in order, join a worker, and leave when their text is written.

    plain.Engine -> [schedule] -> lanes, or the plain loop

One kind of worker is a lane, which texts join and leave between passes. The other is the plain loop
over a batch that goes together. Each gets its turn, a few passes long, and nobody waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ssdlm.diffusion.sampler import Step
from ssdlm.engine.lanes import Lane, Row
from ssdlm.engine.requests import Request

GRAMMAR_LOOK = 8
"""Tokens that a text with a grammar gets before it is seen whether it has ended."""


@dataclass(eq=False)
class Job:
    """A request on its way to a text."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    """What is decided of its text, block by block or, in a lane, token by token."""
    passes: list[int] = field(default_factory=list)
    """Passes of the network, block by block."""
    step: Step | None = None
    """The latest step of the plain loop, if it goes through that."""
    row: int = 0
    """Which row of it."""
    log_weight: float = 0.0
    """The logarithm of what its tokens are worth, where that is kept."""
    look_every: int | None = None
    """How many tokens a lane may write before somebody looks; None is as many as it likes."""
    failure: ValueError | None = None
    """Why it has no text, where that shows only as it is written."""
    is_over: bool = False
    """Nothing that is written later would change its text, or nobody wants it any more."""

    def cancel(self) -> None:
        """Give up a text; its place is free at the next turn."""
        self.is_over = True

    def decided(self) -> list[int]:
        """Return all tokens that are sure to stay, those of a block on its way included."""
        if self.step is None or self.step.is_last:
            return self.tokens
        # Left of the window all is decided.
        return self.tokens + self.step.tokens[self.row, : self.step.window.start].tolist()


@runtime_checkable
class Worker(Protocol):
    """Something that writes the texts of some jobs, a few passes at a time."""

    is_shared: bool
    """Whether jobs of its kind wait for room in it, and do not get a worker of their own."""

    @property
    def num_jobs(self) -> int: ...

    @property
    def num_places(self) -> int:
        """How many jobs it has room for when it has none."""
        ...

    def room(self) -> int:
        """Return how many jobs more it takes now."""
        ...

    def join(self, jobs: Sequence[Job]) -> None:
        """Take jobs in, no more than there is room for."""
        ...

    def turn(self) -> list[Job]:
        """Let go of the jobs that are over, do some passes for the others, and return them."""
        ...


class Batch:
    """Jobs that go through the plain loop together; nobody joins them on the way."""

    is_shared = False

    def __init__(self, size: int, start: Callable[[list[Request]], Iterator[Step]]) -> None:
        self.size, self.start = size, start
        self.jobs: list[Job] = []

    @property
    def num_jobs(self) -> int:
        return sum(not job.is_over for job in self.jobs)

    @property
    def num_places(self) -> int:
        return self.size

    def room(self) -> int:
        return 0 if self.jobs else self.size

    def join(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self.steps = self.start([job.request for job in jobs])
        for row, job in enumerate(jobs):
            job.row = row

    def turn(self) -> list[Job]:
        active = [job for job in self.jobs if not job.is_over]
        if not active:
            self.jobs = []
            return []
        step = next(self.steps)
        for job in active:
            job.step = step
            job.passes += [0] * (step.block + 1 - len(job.passes))
            job.passes[-1] += step.num_passes
            if step.log_weight is not None:
                job.log_weight += float(step.log_weight[job.row])
            if step.is_last:
                job.tokens = job.tokens + step.tokens[job.row].tolist()
        return active


class Berths:
    """A lane, and whose text is in which of its slots."""

    is_shared = True

    def __init__(
        self,
        lane: Lane,
        rows_of: Callable[[Sequence[Request]], list[Row]],
        release: Callable[[], None],
        first: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        one_by_one: bool = False,
    ) -> None:
        self.lane, self.rows_of, self.release, self.one_by_one = lane, rows_of, release, one_by_one
        self.around = first
        """What is around the first contexts and passes, in which a lane gets ready."""
        self.jobs: dict[int, Job] = {}

    @property
    def num_jobs(self) -> int:
        return len(self.jobs)

    @property
    def num_places(self) -> int:
        return self.lane.num_slots

    def room(self) -> int:
        return self.num_places - len(self.jobs)

    def join(self, jobs: Sequence[Job]) -> None:
        free = [slot for slot in range(self.lane.num_slots) if slot not in self.jobs]
        slots = free[: len(jobs)]
        rows = self.rows_of([job.request for job in jobs])
        with self.around():
            if self.one_by_one:  # how a context is read must not depend on who comes along
                for row, slot in zip(rows, slots, strict=True):
                    self.lane.join([row], [slot])
            else:
                self.lane.join(rows, slots)
        self.jobs |= dict(zip(slots, jobs, strict=True))

    def turn(self) -> list[Job]:
        over = [slot for slot, job in self.jobs.items() if job.is_over]
        if over:
            self.lane.leave(over)
            for slot in over:
                del self.jobs[slot]
        if not self.jobs:
            self.release()
            return []
        to_go = min(map(tokens_to_go, self.jobs.values()))
        with self.around():
            self.lane.run(self.lane.passes_for(to_go))
            texts = self.lane.read()
        self.around = nullcontext
        for slot, job in self.jobs.items():
            job.tokens = texts[slot].tokens
            job.passes = passes_by_block(job, texts[slot].when)
            if job.passes and self.lane.reads_context and len(job.request.context) > 1:
                job.passes[0] += 1
        return list(self.jobs.values())


def tokens_to_go(job: Job) -> int:
    """Return how many tokens may be written before somebody has to look at the text."""
    end, options = 0, job.request.options
    for block in job.request.blocks():
        end += block
        # A text that may end early is looked at once a block.
        if end > len(job.tokens) and (options.stop or options.stop_at_end):
            break
    to_go = end - len(job.tokens)
    if options.has_grammar:  # most such texts are short
        to_go = min(to_go, GRAMMAR_LOOK)
    return to_go if job.look_every is None else min(to_go, job.look_every)


def passes_by_block(job: Job, when: Sequence[int]) -> list[int]:
    """Return a text's passes so far, by block; `when` has the pass that decided each token."""
    counts, start, before = [], 0, 0
    for block in job.request.blocks():
        done = when[start : start + block]
        if done:
            counts.append(done[-1] - before)
            start, before = start + block, done[-1]
    return counts


class Schedule:
    """The turns of requests.

    `kind_of` tells which requests may go together, and `employ` gives a worker for a kind. One that
    `grows` does not know how many are to come: where more wait for a lane than it has places, they
    get a larger one, and the smaller one takes no more.
    """

    def __init__(
        self,
        kind_of: Callable[[Request], Hashable],
        employ: Callable[[Sequence[Job]], Worker],
        *,
        most_jobs: int,
        grows: bool = False,
    ) -> None:
        self.kind_of, self.employ, self.most_jobs = kind_of, employ, most_jobs
        self.grows = grows
        self.queues: dict[Hashable, deque[Job]] = {}
        """Who waits, by kind; the kinds are in the order in which somebody came first."""
        self.workers: deque[tuple[Hashable, Worker]] = deque()

    @property
    def num_jobs(self) -> int:
        """How many texts are being written."""
        return sum(worker.num_jobs for _, worker in self.workers)

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.queues.values()))

    def submit(self, request: Request, *, look_every: int | None = None) -> Job:
        """Put a request at the end of the queue."""
        job = Job(request, look_every=look_every)
        self.queues.setdefault(self.kind_of(request), deque()).append(job)
        return job

    def turn(self) -> list[Job]:
        """Give the next worker its turn; return the jobs that got on."""
        self.admit()
        if not self.workers:
            return []
        kind, worker = self.workers.popleft()
        jobs = worker.turn()
        self.workers.append((kind, worker))
        return jobs

    def admit(self) -> None:
        """Let jobs in, in their order: to workers of their kind, or to new ones."""
        self.workers = deque(pair for pair in self.workers if pair[1].num_jobs)
        shared = [pair for pair in self.workers if pair[1].is_shared]
        widest = dict(sorted(shared, key=lambda pair: pair[1].num_places))
        for kind, worker in widest.items():
            self.fill(kind, worker)
        for kind in list(self.queues):
            if self.num_jobs >= self.most_jobs:
                return
            places = widest[kind].num_places if kind in widest else 0
            if places and not (self.grows and len(self.queues[kind]) > places):
                continue  # they wait for room
            worker = self.employ(self.queues[kind])
            self.fill(kind, worker)
            self.workers.append((kind, worker))

    def fill(self, kind: Hashable, worker: Worker) -> None:
        """Let in as many jobs of a kind as a worker has room for."""
        queue = self.queues.get(kind)
        if not queue:
            return
        room, jobs = worker.room(), []
        if worker.is_shared:  # else they go together or not at all
            room = min(room, self.most_jobs - self.num_jobs)
        while queue and len(jobs) < room:
            job = queue.popleft()
            if not job.is_over:
                jobs.append(job)
        if jobs:
            worker.join(jobs)
        if not queue:
            del self.queues[kind]

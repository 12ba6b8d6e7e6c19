"""Whose turn it is: requests wait in order, join a worker, and leave when their text is written.

    plain.Engine -> [schedule] -> decode batches, or the reference loops

One kind of worker has a decode batch, which texts join and leave between passes (`engine.worker`).
The other has a reference loop over texts that go together. Each gets its turn, a few passes long,
and nobody waits for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from ssdlm.diffusion.sampler import Step
from ssdlm.engine.requests import Request

GRAMMAR_LOOK = 8
"""Tokens that a text with a grammar gets before it is seen whether it has ended."""

UNWANTED: ContextVar[Callable[[], bool]] = ContextVar("UNWANTED")
"""Set in a call whose caller may go away: tells whether that has happened."""


class Unwanted(Exception):
    """Nobody waits for the texts any more."""


def refuse_unwanted() -> None:
    """Raise where nobody waits for the texts any more."""
    is_gone = UNWANTED.get(None)
    if is_gone is not None and is_gone():
        raise Unwanted


@dataclass(eq=False)
class Job:
    """A request on its way to a text."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    """What is decided of its text: block by block, or in a decode batch token by token."""
    passes: list[int] = field(default_factory=list)
    """Passes of the network, block by block."""
    step: Step | None = None
    """The latest step of the plain loop, if it goes through that."""
    row: int = 0
    """Which row of it."""
    log_weight: float = 0.0
    """The logarithm of what its tokens are worth, where that is kept."""
    num_seen: int = 0
    """How many of its tokens there were when it was last seen whether it has ended."""
    look_every: int | None = None
    """How many tokens a decode batch may write before somebody looks; None for any number."""
    parent: Job | None = None
    """A job whose text it goes on with: a decode batch that has kept that need not read it."""
    is_forked: bool = False
    """Whether its context was another's, and it has not read that itself."""
    is_kept: bool = False
    """Whether others may go on with its text when it is over."""
    failure: ValueError | None = None
    """Why it has no text, where that shows only as it is written."""
    is_over: bool = False
    """Nothing that is written later would change its text, or nobody wants it any more."""
    kind: Hashable = None
    """What it has in common with those that go through the network with it."""

    def cancel(self) -> None:
        """Give up a text; its place is free at the next turn."""
        self.is_over = True

    def take(self, step: Step) -> None:
        """Take in a step of its text."""
        self.step = step
        self.passes += [0] * (step.block + 1 - len(self.passes))
        self.passes[-1] += step.num_passes * self.request.num_copies
        if step.log_weight is not None:
            self.log_weight += float(step.log_weight[self.row])
        if step.is_last:
            self.tokens = self.tokens + step.tokens[self.row].tolist()

    def decided(self) -> list[int]:
        """Return all tokens that are sure to stay, those of a block on its way included."""
        if self.step is None or self.step.is_last:
            return self.tokens
        # Left of the window all is decided.
        return self.tokens + self.step.tokens[self.row, : self.step.window.start].tolist()


class Worker(ABC):
    """Something that writes the texts of some jobs, a few passes at a time."""

    is_shared = True
    """Whether jobs of its kind wait for room in it, and do not get a worker of their own."""
    num_places: int
    """How many jobs it has room for when it has none."""

    @abstractmethod
    def texts(self) -> Iterable[Job]:
        """Return the jobs that it has, those that are over included."""

    @property
    def num_jobs(self) -> int:
        return sum(not job.is_over for job in self.texts())

    @property
    def is_idle(self) -> bool:
        """Whether it has no job, and nothing that it keeps for one."""
        return self.num_jobs == 0

    def room(self) -> int:
        """Return how many jobs more it takes now."""
        return self.num_places - self.num_jobs

    @abstractmethod
    def join(self, jobs: Sequence[Job]) -> None:
        """Take jobs in, no more than there is room for."""

    @abstractmethod
    def turn(self) -> list[Job]:
        """Let go of the jobs that are over, do some passes for the others, and return them."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything: no job is left."""


class Batch(Worker):
    """Jobs that go through the plain loop together; nobody joins them on the way."""

    is_shared = False

    def __init__(self, size: int, steps: Callable[[list[Request]], Iterator[Step]]) -> None:
        self.num_places, self.steps = size, steps
        self.jobs: list[Job] = []

    def texts(self) -> Iterable[Job]:
        return self.jobs

    def room(self) -> int:
        return 0 if self.jobs else self.num_places

    def join(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self.begun = self.steps([job.request for job in jobs])
        for row, job in enumerate(jobs):
            job.row = row

    def close(self) -> None:
        self.jobs = []

    def turn(self) -> list[Job]:
        active = [job for job in self.jobs if not job.is_over]
        if not active:
            return []
        step = next(self.begun)
        for job in active:
            job.take(step)
        return active


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
    return [count * job.request.num_copies for count in counts]


class Schedule:
    """The turns of requests.

    `kind_of` tells which requests may go together, and `employ` gives a worker for a kind. One that
    `grows` does not know how many are to come: where more wait for a batch than it has slots, they
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

    def submit(
        self, request: Request, *, look_every: int | None = None, parent: Job | None = None
    ) -> Job:
        """Put a request at the end of the queue; a parent's text is its context."""
        job = Job(request, look_every=look_every, parent=parent, kind=self.kind_of(request))
        self.queues.setdefault(job.kind, deque()).append(job)
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
        self.dismiss()
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
            queue = self.queues[kind]
            while queue and queue[0].is_over:  # nobody waits for it any more
                queue.popleft()
            if not queue:
                del self.queues[kind]
                continue
            worker = self.employ(queue)
            self.fill(kind, worker)
            self.workers.append((kind, worker))

    def dismiss(self) -> None:
        """Let go of the workers that have no job left."""
        for _, worker in self.workers:
            if worker.is_idle:
                worker.close()
        self.workers = deque(pair for pair in self.workers if not pair[1].is_idle)

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

"""The worker of a decode batch: whose text is in which of its slots.

batch, runners -> [worker] -> schedule
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from ssdlm.diffusion.sampler import Step
from ssdlm.engine.batch import Text
from ssdlm.engine.requests import Request
from ssdlm.engine.runners import Key, Runners
from ssdlm.engine.schedule import Job, Worker, passes_by_block, tokens_to_go
from ssdlm.engine.views import View


class BatchWorker(Worker):
    """Writes the texts of jobs that join and leave a decode batch."""

    def __init__(self, runners: Runners, key: Key, request: Request, count: int) -> None:
        self.runners, self.key = runners, key
        self.batch, self.is_new = runners.open(key, request, count)
        self.num_places = self.batch.num_slots
        self.jobs: dict[int, Job] = {}
        """Those in the slots; one that is over may be kept for others to go on with."""
        self.views: dict[int, View] = {}
        """What makes steps of passes, for texts that are watched, by slot."""
        self.steps: dict[int, deque[Step]] = {}
        """Steps that are done and not told yet, of the same."""
        self.ahead = 0
        """Passes on their way that nobody has looked at."""

    def texts(self) -> Iterable[Job]:
        return self.jobs.values()

    @property
    def is_idle(self) -> bool:
        return not any(not job.is_over or job.is_kept for job in self.jobs.values())

    def join(self, jobs: Sequence[Job]) -> None:
        self.collect()  # of passes that those who come have no part in
        self.let_go()
        slots, sources = self.places(jobs)
        entries = self.runners.entries([job.request for job in jobs])
        with self.words():
            if self.runners.engine.is_deterministic:  # else reading depends on who comes along
                for entry, slot, source in zip(entries, slots, sources, strict=True):
                    self.batch.join([entry], [slot], [source])
            else:
                self.batch.join(entries, slots, sources)
        self.jobs |= dict(zip(slots, jobs, strict=True))
        for slot, entry, job in zip(slots, entries, jobs, strict=True):
            if entry.is_watched and entry.chooser is None:
                self.views[slot], self.steps[slot] = self.runners.view(job.request), deque()
        for job, source in zip(jobs, sources, strict=True):
            job.parent, job.is_forked = None, source is not None  # which has its own

    def places(self, jobs: Sequence[Job]) -> tuple[list[int], list[int | None]]:
        """Return a slot for each job, and the slot of which it is a fork.

        Of those that go on with one text the last takes its slot, when all others have forked. What
        was kept for somebody who is not here makes room if there is no other.
        """
        kept = {id(job): slot for slot, job in self.jobs.items() if job.is_over}
        sources = [kept.get(id(job.parent)) for job in jobs]
        free = [slot for slot in range(self.batch.num_slots) if slot not in self.jobs]
        free += [slot for slot in kept.values() if slot not in sources]
        slots: list[int] = []
        for number, source in enumerate(sources):
            is_last = source not in sources[number + 1 :]
            slots.append(free.pop(0) if source is None or not is_last else source)
        return slots, sources

    def words(self) -> AbstractContextManager[object]:
        """Say what takes so long in the first contexts and passes of a batch on a GPU."""
        if not (self.is_new and self.batch.is_captured):
            return nullcontext()
        count = self.batch.num_slots
        return self.runners.tell(f"getting the GPU ready for {count} texts at a time ...")

    def turn(self) -> list[Job]:
        self.let_go()
        active = {slot: job for slot, job in self.jobs.items() if not job.is_over}
        if not active:
            return []
        if not all(self.steps.get(slot) for slot in active):
            with self.words():
                self.get_on(active)
            self.is_new = False
        told = {slot: job for slot, job in active.items() if self.steps.get(slot, True)}
        for slot, job in told.items():
            chooser = self.batch.entries[slot].chooser
            if chooser is not None:
                assert chooser.latest is not None
                job.take(chooser.latest)
            elif slot in self.views:
                job.take(self.steps[slot].popleft())
        return list(told.values())

    def get_on(self, active: dict[int, Job]) -> None:
        """Do some passes, and take in what they drew; a GPU goes on while that is told."""
        if not self.ahead:
            self.run(active)
        self.collect()
        if self.batch.is_captured and self.views:
            self.run(active)

    def run(self, active: dict[int, Job]) -> None:
        """Begin passes, as many as may go by before somebody looks."""
        self.ahead = self.num_passes(active)
        for view in self.views.values():
            view.num_left -= self.ahead
        self.batch.run(self.ahead)

    def collect(self) -> None:
        """Take in what passes drew."""
        if self.ahead == 0:
            return
        frames = self.batch.frames(self.ahead) if self.views else {}
        for slot, own in frames.items():
            if slot in self.views:
                self.steps[slot] += map(self.views[slot].take, own)
        entries = self.batch.entries.items()
        plain = [slot for slot, one in entries if not (one.is_watched or one.chooser)]
        texts = self.batch.texts() if plain else {}
        for slot in plain:
            self.tell(self.jobs[slot], texts[slot])
        self.ahead = 0

    def let_go(self) -> None:
        """Take texts that are over out of the batch, and free their slots unless they are kept."""
        over = [slot for slot, job in self.jobs.items() if job.is_over]
        if leaving := [slot for slot in over if slot in self.batch.entries]:
            self.batch.leave(leaving)
        for slot in over:
            self.views.pop(slot, None)
            self.steps.pop(slot, None)
            if not self.jobs[slot].is_kept:
                del self.jobs[slot]

    def close(self) -> None:
        self.let_go()
        self.runners.release(self.key, self.batch)

    def num_passes(self, active: dict[int, Job]) -> int:
        """Return how many passes may go by before somebody looks."""
        # A pass on a CPU takes long enough to look after each.
        if not self.batch.is_captured or self.key.has_choosers:
            return 1
        if self.views:
            return min(self.batch.num_frames, *(view.num_left for view in self.views.values()))
        return self.batch.passes_for(min(map(tokens_to_go, active.values())))

    def tell(self, job: Job, text: Text) -> None:
        """Tell a job how far its text has come."""
        job.tokens = text.tokens
        job.passes = passes_by_block(job, text.when)
        is_read_apart = self.batch.is_captured and not self.batch.counts_context
        if job.passes and is_read_apart and not job.is_forked:
            job.passes[0] += (len(job.request.context) > 1) * job.request.num_copies

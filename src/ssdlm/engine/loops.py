"""Texts side by side on a CPU: each has the plain loop to itself, and their passes go as one.

schedule -> [loops] -> plain;  denoiser.meeting lets the loops wait for each other
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ssdlm.denoiser.meeting import Loop, next_steps
from ssdlm.diffusion.sampler import Step
from ssdlm.engine.requests import Request
from ssdlm.engine.schedule import Batch, Job

MOST_LOOPS = 16
"""Texts that a CPU writes side by side: with two positions each, more would gain little."""


class Loops:
    """The worker of texts of any kind, which join and leave between passes."""

    is_shared = True

    def __init__(self, num_places: int, start: Callable[[list[Request]], Iterator[Step]]) -> None:
        self.num_places, self.start = num_places, start
        self.loops: dict[Job, Loop[list[Job]]] = {}

    @property
    def num_jobs(self) -> int:
        return sum(not job.is_over for job in self.loops)

    def room(self) -> int:
        return self.num_places - self.num_jobs

    def join(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            batch = Batch(1, self.start)
            batch.join([job])
            self.loops[job] = Loop(turns(batch))

    def turn(self) -> list[Job]:
        for job in [job for job in self.loops if job.is_over]:
            self.loops.pop(job).give_up()
        return [job for jobs in next_steps(list(self.loops.values())) for job in jobs]


def turns(batch: Batch) -> Iterator[list[Job]]:
    """Yield the jobs of each turn until all are over; raise if their steps run out before.

    A generator, unlike `iter(batch.turn, [])`, turns the StopIteration of such steps into an error.
    """
    while jobs := batch.turn():
        yield jobs

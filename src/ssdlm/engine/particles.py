"""Several versions of a text, weighed while they are written.  schedule, scorers -> [particles]

    particles -> a few tokens each -> scores -> weights -> maybe resampled -> a few tokens each ...

This is sequential Monte Carlo (Feynman-Kac steering). With scores s, weights tend to make the text
one of p(text) exp(weight * s(text)). After every few tokens a particle's weight is multiplied by
exp(weight * difference of its scores), or with `particle_potential=maximum` by exp(weight * the
highest of its scores so far), for which the last weighing makes up. Where the effective number of
particles falls below half, they are resampled, systematically. The text that stays is drawn by
weight. Under a grammar a token also multiplies it by p/q, its probability without the grammar over
that with it.

Between two weighings a particle is a request like any other: its context is the prompt and what it
has written. So particles go through decode batches as texts do, guided or not. All noise is
the text's own, by counters: what becomes of it does not depend on other texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from ssdlm.engine.controls import Controls
from ssdlm.engine.ending import end
from ssdlm.engine.requests import Request
from ssdlm.engine.schedule import Job, Schedule, Worker
from ssdlm.engine.ways import Way
from ssdlm.guidance.scorers import ScorerError
from ssdlm.ops.counters import uniform
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import quote

RESAMPLING, CHOOSING = 0, 1
"""Streams of a text's own numbers beside those of its particles."""


@dataclass
class Particle:
    """One version of a text, as far as it has come."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    """The weighted sum of its scores when it was last weighed."""
    best: float = -math.inf
    """The highest that it has been."""
    potential: float = 0.0
    """The logarithm of what all weighings have multiplied its weight by."""
    base: float = 0.0
    """What that was when particles were last resampled."""
    worth: float = 0.0
    """The logarithm of what its tokens are worth since then, if a grammar holds them."""
    is_over: bool = False
    """Whether nothing that is written later would change it."""
    job: Job | None = None
    """What wrote its latest tokens: others may go on from there."""

    @property
    def log_weight(self) -> float:
        """The logarithm of its weight, which was 1 when particles were last resampled."""
        return self.potential - self.base + self.worth

    def take(self, score: float, *, is_maximum: bool) -> None:
        """Multiply its weight by what a score is worth on the way."""
        self.score, self.best = score, max(self.best, score)
        self.potential = self.potential + self.best if is_maximum else score


@dataclass(eq=False)
class Swarm:
    """The particles of one text."""

    job: Job
    """What it is to its schedule."""
    particles: list[Particle]
    chunks: list[int]
    """How many tokens are written before each weighing."""
    ways: Sequence[Way]
    round: int = 0
    """How many weighings there were."""
    writing: dict[Job, Particle] = field(default_factory=dict)
    """The particles that are on their way to the next one."""
    latest: list[Job] = field(default_factory=list)
    """What has written up to the last one."""
    is_chosen: bool = False
    """Whether one of them has become the text."""

    @property
    def request(self) -> Request:
        return self.job.request

    @property
    def is_written(self) -> bool:
        """Whether no particle has anything left to write."""
        return self.round == len(self.chunks) or all(one.is_over for one in self.particles)

    def requests(self) -> list[tuple[Request, Particle]]:
        """Return what is to be written before the next weighing."""
        first, size, made = self.request, self.chunks[self.round], []
        piece = piece_of(first, self.chunks, self.round)  # checking its options takes a while
        for number, particle in enumerate(self.particles):
            if particle.is_over:
                continue
            request = behind(piece, particle.tokens, number)
            if first.placement is not None and len(self.chunks) > 1:
                placement = first.placement.after(particle.tokens, size)
                request = replace(request, placement=placement)
            made.append((request, particle))
        return made

    def texts(self, tokenizer: Tokenizer | None) -> list[tuple[str, str]]:
        """Return each particle's prompt and continuation, and its continuation alone."""
        texts = []
        for particle in self.particles:
            ended = end(tokenizer, self.request, list(particle.tokens))
            particle.is_over = ended.is_over
            texts.append((self.request.prompt + ended.text, ended.text))
        return texts

    def weigh(self, scores: Sequence[float]) -> None:
        """Take in the particles' scores; resample where few of them carry most of the weight."""
        is_maximum = self.request.options.particle_potential == "maximum"
        for particle, score in zip(self.particles, scores, strict=True):
            particle.take(score, is_maximum=is_maximum)
        if not all(score < math.inf for score in scores):  # nan is not, either
            self.is_chosen, self.job.failure = True, ScorerError(self.why_too_large())
            return
        self.round += 1
        weights = normalised([particle.log_weight for particle in self.particles])
        if not self.is_written and effective(weights) < len(weights) / 2:
            chosen = systematic(weights, self.uniform(RESAMPLING), len(weights))
            kept = [self.particles[index] for index in chosen]
            self.particles = [replace(one, base=one.potential, worth=0.0) for one in kept]
        if self.is_written:  # resampling may have left finished particles alone
            self.is_chosen = True
            if all(particle.score == -math.inf for particle in self.particles):
                self.job.failure = ScorerError(self.why_impossible())
                return
            for particle in self.particles:
                particle.potential = particle.score  # whatever was multiplied on the way
            weights = normalised([particle.log_weight for particle in self.particles])
            (chosen,) = systematic(weights, self.uniform(CHOOSING), 1)
            self.particles = [self.particles[chosen]]
        self.job.tokens = common_start([particle.tokens for particle in self.particles])

    def why_impossible(self) -> str:
        """Return what to say where no particle has become a text that may be."""
        names = ", ".join(way.name for way in self.ways if way.scorer is not None)
        return (
            f"all {len(self.particles)} particles after {quote(self.request.prompt)} score -inf by "
            f"{names}, which no text may have; use more particles, another seed or finite scores"
        )

    def why_too_large(self) -> str:
        """Return what to say where scores, times their weights, are beyond all numbers."""
        weights = ", ".join(f"{way.weight:g} for {way.name}" for way in self.ways if way.scorer)
        return f"particle_weight ({weights}) times a score is too large; use smaller weights"

    def uniform(self, stream: int) -> float:
        """Return a number in (0, 1), the text's own for this weighing."""
        seeds = torch.tensor([self.request.noise_seed])
        return float(uniform(seeds, block=stream, step=self.round, B=1))


class Swarms(Worker):
    """The worker of texts with particles: within, these are requests of a schedule of their own."""

    def __init__(
        self,
        num_places: int,
        num_particles: int,
        schedule: Schedule,
        finish: Callable[[Job], object],
        controls: Controls,
    ) -> None:
        self.num_places, self.num_particles = num_places, num_particles
        self.schedule, self.finish, self.controls = schedule, finish, controls
        self.swarms: list[Swarm] = []

    def texts(self) -> Iterable[Job]:
        return (swarm.job for swarm in self.swarms)

    def room(self) -> int:
        return self.num_places - len(self.swarms)

    def join(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            particles = [Particle() for _ in range(self.num_particles)]
            ways = self.controls.ways(job.request.options)
            swarm = Swarm(job, particles, chunks_of(job.request), ways)
            self.swarms.append(swarm)
            self.send(swarm)

    def send(self, swarm: Swarm) -> None:
        """Let a text's particles be written up to the next weighing."""
        before = {id(job): job for job in swarm.latest}
        swarm.latest = []
        for request, particle in swarm.requests():
            job = self.schedule.submit(
                request, look_every=swarm.job.look_every, parent=particle.job
            )
            job.is_kept = swarm.round + 1 < len(swarm.chunks)
            swarm.writing[job] = particle
            before.pop(id(particle.job), None)
        for job in before.values():
            job.is_kept = False  # nobody goes on with its text
        swarm.job.passes.append(0)

    def let_go(self) -> None:
        """Give up the particles of texts that are over."""
        for swarm in [swarm for swarm in self.swarms if swarm.job.is_over]:
            for job in (*swarm.writing, *swarm.latest):
                job.cancel()
                job.is_kept = False
            self.swarms.remove(swarm)

    def close(self) -> None:
        self.let_go()
        self.schedule.dismiss()

    def turn(self) -> list[Job]:
        self.let_go()
        if not self.swarms:
            return []
        for job in self.schedule.turn():
            self.finish(job)
        moved = [swarm for swarm in self.swarms if self.take(swarm)]
        if ready := [swarm for swarm in moved if not swarm.writing]:
            self.weigh(ready)
            for swarm in ready:
                if not swarm.is_chosen:
                    self.send(swarm)
        return [swarm.job for swarm in self.swarms]

    def take(self, swarm: Swarm) -> bool:
        """Give a text's particles the tokens that were written; tell whether there were any."""
        done = [job for job in swarm.writing if job.is_over]
        for job in done:
            particle = swarm.writing.pop(job)
            particle.job = job
            swarm.latest.append(job)
            particle.tokens += tuple(job.tokens)
            particle.worth += job.log_weight
            swarm.job.passes[-1] += sum(job.passes)
        return bool(done)

    def weigh(self, swarms: Sequence[Swarm]) -> None:
        """Score the particles of several texts together."""
        texts = [swarm.texts(self.controls.tokenizer) for swarm in swarms]
        totals = [[0.0] * len(one) for one in texts]
        asked: dict[int, tuple[Way, list[tuple[int, int]]]] = {}
        for index, swarm in enumerate(swarms):
            for way in swarm.ways:
                if way.scorer is not None:
                    places = asked.setdefault(id(way), (way, []))[1]
                    places += [(index, place) for place in range(len(texts[index]))]
        for way, places in asked.values():
            assert way.scorer is not None
            which = 0 if way.scorer.reads == "all" else 1
            scores = way.scorer([texts[index][place][which] for index, place in places])
            for (index, place), score in zip(places, scores, strict=True):
                # Nothing is unheard that has no weight, not even -inf.
                totals[index][place] += way.weight * score if way.weight else 0.0
        for swarm, scores in zip(swarms, totals, strict=True):
            swarm.weigh(scores)


def chunks_of(request: Request) -> list[int]:
    """Return how many tokens of a text are written before each weighing of its particles."""
    if request.placement is not None and not (
        request.options.has_grammar and request.placement.is_free
    ):
        return [request.options.length]
    if not request.slides:
        return request.blocks()
    length, step = request.options.length, request.options.particle_step
    return [min(step, length - start) for start in range(0, length, step)]


def piece_of(first: Request, chunks: Sequence[int], round: int) -> Request:
    """Return what a particle writes before a weighing, if it had no tokens yet."""
    own = first.options
    if len(chunks) > 1:
        B = own.B if first.slides else (own.whole_block(round),)
        own = replace(own, length=chunks[round], B=B, stop=())
    return replace(first, options=own, branch=(round, 0), num_after=sum(chunks[round + 1 :]))


def behind(piece: Request, tokens: tuple[int, ...], number: int = 0) -> Request:
    """Return what one of the particles writes behind its tokens."""
    return replace(
        piece,
        context=(*piece.context, *tokens),
        described=(*piece.described, *tokens) if piece.described else (),
        branch=(piece.branch[0], number),
        num_before=len(tokens),
    )


def normalised(log_weights: Sequence[float]) -> list[float]:
    """Return weights that add up to 1; where all are 0, equal ones: later scores may be finite."""
    top = max(log_weights)
    if top == -math.inf:
        return [1 / len(log_weights)] * len(log_weights)
    weights = [math.exp(one - top) for one in log_weights]
    return [one / sum(weights) for one in weights]


def effective(weights: Sequence[float]) -> float:
    """Return the effective sample size of weights that add up to 1."""
    return 1 / sum(weight * weight for weight in weights)


def systematic(weights: Sequence[float], u: float, count: int) -> list[int]:
    """Return `count` indices by systematic resampling: each gets its share, rounded either way."""
    chosen, index, reached = [], 0, weights[0]
    for number in range(count):
        while reached < (u + number) / count and index < len(weights) - 1:
            index += 1
            reached += weights[index]
        chosen.append(index)
    return chosen


def common_start(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens with which all rows begin: those that will stay."""
    start = []
    for tokens in zip(*rows, strict=False):
        if len(set(tokens)) > 1:
            break
        start.append(tokens[0])
    return start

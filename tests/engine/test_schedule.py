"""Turns: requests join and leave between passes, in order, and one's text is nothing to another."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests import tiny

from ssdlm.engine.fleet import Fleet, has_lane
from ssdlm.engine.lanes import SlidingLane
from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import MIXED_TOGETHER, Request, noise_seeds
from ssdlm.engine.schedule import Berths
from ssdlm.options import GenerateOptions

OPTIONS = GenerateOptions(
    length=8, B=(4,), T=4, grid="sliding", width=1.0, nucleus="network", top_p=0.9, returns="w_0"
)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2], [6], [5, 3, 5, 8, 9], [7, 9], [3, 2]]


@pytest.fixture
def engine():
    return Engine(tiny.block(), None)


def requests_for(engine, prompts=PROMPTS, **changes):
    return list(engine.prepare(prompts, [OPTIONS.change(**changes)] * len(prompts)))


def alone(engine, request):
    """Return a text as the plain loop writes it."""
    blocks = [step.tokens for step in engine.steps([request]) if step.is_last]
    return torch.cat(blocks, 1)[0].tolist()


def work(engine, schedule, jobs):
    """Take turns until all jobs are over; return who got on in each turn."""
    turns = []
    while not all(job.is_over for job in jobs):
        turn = schedule.turn()
        turns.append([jobs.index(job) for job in turn])
        for job in turn:
            engine.finish(job)
    return turns


def in_a_lane(engine, num_slots, released=None, around=nullcontext):
    """Let an engine put everything into one lane, as on a GPU; `released` gets it when idle."""
    released = [] if released is None else released
    fleet = Fleet(engine.chains, engine.controls, is_deterministic=False)
    lane = SlidingLane(engine.denoiser, width=1.0, num_slots=num_slots, capacity=64)
    schedule = engine.schedule(most_jobs=100)
    schedule.kind_of = lambda request: "lane"
    release = partial(released.append, lane)
    schedule.employ = lambda jobs: Berths(lane, fleet.rows, release, around)
    return schedule


@pytest.mark.parametrize("num_slots", [1, 2, 4, 8])
def test_texts_in_a_lane_are_those_of_the_plain_loop(engine, num_slots):
    schedule, requests = in_a_lane(engine, num_slots), requests_for(engine, seed=5)
    jobs = [schedule.submit(request) for request in requests]
    work(engine, schedule, jobs)
    assert [job.tokens for job in jobs] == [alone(engine, request) for request in requests]
    # The first pass of a context of one token is the first of its text.
    assert [job.passes for job in jobs] == [[5, 4], [5, 4], [4, 4], [5, 4], [5, 4], [5, 4]]


def test_jobs_take_turns_and_none_waits_for_another_to_end(engine):
    engine.denoiser.has_packs = False  # else they get on side by side
    schedule, requests = engine.schedule(most_jobs=3), requests_for(engine)
    jobs = [schedule.submit(request) for request in requests]
    turns = work(engine, schedule, jobs)
    assert turns[:6] == [[0], [1], [2], [0], [1], [2]]
    assert [job.tokens for job in jobs] == [alone(engine, request) for request in requests]
    assert schedule.num_waiting == 0


def test_a_cancelled_job_makes_room_for_the_next(engine):
    for schedule in (engine.schedule(most_jobs=1), in_a_lane(engine, 1)):
        requests = requests_for(engine, stop_at_end=True)  # looked at once a block
        jobs = [schedule.submit(request) for request in requests[:3]]
        schedule.turn()
        jobs[0].cancel()
        jobs[1].cancel()
        work(engine, schedule, jobs)
        assert len(jobs[0].tokens) < 8
        assert jobs[1].tokens == []
        assert jobs[2].tokens == alone(engine, requests[2])


def test_who_comes_later_joins_while_others_are_at_work(engine):
    schedule, requests = in_a_lane(engine, 2), requests_for(engine, stop_at_end=True)
    first = schedule.submit(requests[0])
    schedule.turn()
    assert len(first.tokens) == 4
    second = schedule.submit(requests[1])
    assert schedule.turn() == [first, second]
    work(engine, schedule, [first, second])
    assert second.tokens == alone(engine, requests[1])


def test_different_settings_are_different_kinds(engine):
    engine.denoiser.has_packs = False
    kinds = {
        engine.kind_of(request)
        for changes in ({}, {"length": 4}, {"temperature": 0.5}, {"grid": "warped"})
        for request in requests_for(engine, [[3, 1, 4]], **changes)
    }
    assert len(kinds) == 4
    one, other = (requests_for(engine, [[3, 1, seed]], seed=seed)[0] for seed in (1, 2))
    assert engine.kind_of(one) == engine.kind_of(other)


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, True),
        ({"projection": "greedy"}, True),
        ({"width": 3.0}, True),
        ({"width": 3.0, "projection": "greedy"}, False),
        ({"width": 3.0, "rho": 0.5}, False),
        ({"width": 3.0, "nucleus": "logits"}, False),
        ({"T": 8}, False),
        ({"B": [4, 8]}, False),
        ({"grid": "staggered"}, False),
        ({"returns": "logits"}, False),
        ({"projection": "mean", "returns": "logits"}, False),
    ],
)
def test_lanes_take_what_they_write_as_the_plain_loop_does(changes, answer):
    assert has_lane(OPTIONS.change(**changes)) is answer


def test_slots_hold_the_prompt_and_the_text(engine):
    fleet = Fleet(engine.chains, engine.controls, is_deterministic=False)
    for length, capacity in ((8, 128), (124, 128), (125, 256), (1000, 1024), (1021, 2048)):
        request = Request("", (1, 2), OPTIONS.change(length=length))
        assert fleet.capacity(request, 2) == capacity
    assert fleet.kind_of(request) is None  # a CPU has no lanes


def test_a_lane_is_released_when_its_last_text_is_written_and_not_before(engine):
    released = []
    schedule = in_a_lane(engine, 2, released)
    jobs = [schedule.submit(request) for request in requests_for(engine)[:2]]
    work(engine, schedule, jobs)
    assert released == []
    schedule.turn()
    assert len(released) == 1
    assert schedule.num_jobs == 0


def test_a_job_that_is_cancelled_while_it_is_looked_at_stays_so(engine):
    schedule = engine.schedule(most_jobs=1)
    job = schedule.submit(requests_for(engine, length=12)[0])
    while job.step is None or not job.step.is_last:
        schedule.turn()
    job.cancel()
    assert engine.finish(job) is None
    assert job.is_over


def test_where_many_come_a_larger_lane_takes_over(engine):
    """As in a server: a text is alone when its lane is made, and others come later."""
    made = []

    def employ(jobs):
        slots = 1
        while slots < len(jobs):
            slots *= 2
        lane = SlidingLane(engine.denoiser, width=1.0, num_slots=slots, capacity=64)
        made.append(slots)
        return Berths(lane, fleet.rows, lambda: None)

    fleet = Fleet(engine.chains, engine.controls, is_deterministic=False)
    schedule = engine.schedule(most_jobs=100, grows=True)
    schedule.kind_of, schedule.employ = lambda request: "lane", employ
    requests = requests_for(engine, [*PROMPTS, *PROMPTS[:3]], seed=5)
    jobs = [schedule.submit(requests[0], look_every=2)]
    schedule.turn()
    jobs += [schedule.submit(request, look_every=2) for request in requests[1:6]]
    schedule.turn()
    assert made == [1, 8] and schedule.num_jobs == 6
    jobs += [schedule.submit(request, look_every=2) for request in requests[6:]]
    work(engine, schedule, jobs)
    assert made == [1, 8]  # the rest joined the second, and the first took no more
    assert [job.tokens for job in jobs] == [alone(engine, request) for request in requests]


def test_a_lane_is_looked_at_as_often_as_a_job_wants(engine):
    schedule, (request, *_) = in_a_lane(engine, 1), requests_for(engine)
    job = schedule.submit(request, look_every=3)
    lengths = []
    while not job.is_over:
        schedule.turn()
        engine.finish(job)
        lengths.append(len(job.tokens))
    assert lengths == [3, 6, 8]


def test_a_job_that_is_given_up_makes_room_at_once(engine):
    schedule, requests = engine.schedule(most_jobs=3), requests_for(engine)
    jobs = [schedule.submit(request) for request in requests[:3]]
    schedule.turn()
    for job in jobs[1:]:
        job.cancel()
    assert schedule.num_jobs == 1
    more = [schedule.submit(request) for request in requests[3:5]]
    schedule.turn()
    assert schedule.num_jobs == 3 and schedule.num_waiting == 0
    work(engine, schedule, [jobs[0], *more])


def test_a_text_that_is_watched_takes_the_plain_loop(engine):
    fleet = Fleet(engine.chains, engine.controls, is_deterministic=False)
    fleet.is_used = True
    (request, *_) = requests_for(engine)
    assert fleet.kind_of(request) is not None
    assert fleet.kind_of(replace(request, is_watched=True)) is None


def test_seeds_of_many_requests_are_each_ones_own():
    options = GenerateOptions(seed=5)
    requests = [
        Request("", tuple(range(n % 7)), options, sample=n, branch=(n,) if n % 3 == 0 else ())
        for n in range(2 * MIXED_TOGETHER)
    ]
    assert noise_seeds(requests) == [one.noise_seed for one in requests]
    assert noise_seeds(requests[:2]) == [one.noise_seed for one in requests[:2]]


def test_words_are_shown_while_a_lane_gets_ready(engine):
    shown = []

    @contextmanager
    def around():
        shown.append("begins")
        yield
        shown.append("ends")

    schedule = in_a_lane(engine, 2, around=around)
    jobs = [schedule.submit(request) for request in requests_for(engine)[:2]]
    work(engine, schedule, jobs)
    assert shown == ["begins", "ends"] * 2  # the contexts, and the first turn

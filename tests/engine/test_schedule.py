"""Turns: requests join and leave between passes, in order, and one's text is nothing to another."""

import re
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import MIXED_TOGETHER, Request, noise_seeds
from ssdlm.engine.schedule import Job, tokens_to_go
from ssdlm.engine.worker import BatchWorker
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


def in_a_batch(engine, num_slots):
    """Let an engine put everything into one decode batch of so many slots."""
    schedule = engine.schedule(most_jobs=100)

    def employ(jobs):
        request = jobs[0].request
        return BatchWorker(engine.runners, engine.runners.key_of(request), request, num_slots)

    schedule.employ = employ
    return schedule


@pytest.mark.parametrize("num_slots", [1, 2, 4, 8])
def test_texts_in_a_batch_are_those_of_the_plain_loop(engine, num_slots):
    schedule, requests = in_a_batch(engine, num_slots), requests_for(engine, seed=5)
    jobs = [schedule.submit(request) for request in requests]
    work(engine, schedule, jobs)
    assert [job.tokens for job in jobs] == [alone(engine, request) for request in requests]
    assert [job.passes for job in jobs] == [[4, 4]] * 6  # a context is read by a text's first pass


def test_jobs_take_turns_and_none_waits_for_another_to_end(engine):
    schedule, requests = (
        engine.schedule(most_jobs=3),
        requests_for(engine, early_exit=True, grid="warped"),
    )
    jobs = [schedule.submit(request) for request in requests]
    turns = work(engine, schedule, jobs)
    assert turns[:6] == [[0], [1], [2], [0], [1], [2]]
    assert [job.tokens for job in jobs] == [alone(engine, request) for request in requests]
    assert schedule.num_waiting == 0


def test_a_cancelled_job_makes_room_for_the_next(engine):
    for schedule in (engine.schedule(most_jobs=1), in_a_batch(engine, 1)):
        requests = requests_for(engine, stop_at_end=True)  # looked at once a block
        jobs = [schedule.submit(request) for request in requests[:3]]
        schedule.turn()
        jobs[0].cancel()
        jobs[1].cancel()
        work(engine, schedule, jobs)
        assert len(jobs[0].tokens) < 8
        assert jobs[1].tokens == []
        assert jobs[2].tokens == alone(engine, requests[2])


WAYS = {
    "batch": {},
    "plain loop": {"early_exit": True, "grid": "warped"},
    "particles": {"regex": "[a-e ]*", "particles": 2, "particle_step": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_who_gives_up_just_before_a_turn_costs_no_pass(way):
    """As a client of a server may, whose thread is another."""
    engine = Engine(tiny.block(), tiny.tokenizer())
    (request,) = requests_for(engine, [[3, 1, 4]], **WAYS[way])
    job = Job(request, kind=engine.kind_of(request))
    worker = engine.employ([job])
    worker.join([job])
    assert worker.turn() == [job]
    passes = sum(job.passes)
    job.cancel()
    assert worker.turn() == []
    assert sum(job.passes) == passes and worker.num_jobs == 0


def test_who_comes_later_joins_while_others_are_at_work(engine):
    schedule, requests = in_a_batch(engine, 2), requests_for(engine, stop_at_end=True)
    first = schedule.submit(requests[0])
    schedule.turn()
    assert len(first.tokens) == 1
    second = schedule.submit(requests[1])
    assert schedule.turn() == [first, second]
    work(engine, schedule, [first, second])
    assert second.tokens == alone(engine, requests[1])


def test_different_settings_are_different_kinds(engine):
    def kinds(*changes, **usual):
        made = (requests_for(engine, [[3, 1, 4]], **usual | own)[0] for own in changes)
        return {engine.kind_of(request) for request in made}

    # What a slot has of its own does not matter, what a pass has does.
    assert len(kinds({}, {"length": 4}, {"temperature": 0.5}, {"seed": 3})) == 1
    assert len(kinds({}, {"width": 2.0}, {"grid": "warped"}, {"mode": "autoregressive"})) == 4
    loops = {"early_exit": True, "grid": "warped"}
    assert len(kinds({}, {"length": 4}, {"temperature": 0.5}, {"T": 5}, **loops)) == 4
    one, other = (requests_for(engine, [[3, 1, seed]], seed=seed)[0] for seed in (1, 2))
    assert engine.kind_of(one) == engine.kind_of(other)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"projection": "greedy"}, ""),
        ({"width": 3.0}, ""),
        ({"grid": "staggered"}, ""),
        ({"width": 3.0, "rho": 0.5}, "keeps more than its latest token"),
        ({"width": 3.0, "rule": "adaptive"}, "keeps more than its latest token"),
        ({"width": 3.0, "nucleus": "logits"}, ""),
        ({"width": 3.0, "nucleus": "logits", "temperature": 0.7}, "use nucleus=network"),
        ({"width": 3.0, "returns": "logits"}, "positions end one by one"),
        ({"grid": "warped", "returns": "logits"}, ""),
        ({"T": 8}, ""),
        ({"T": 6}, "T=6, B=4 and width=1 do not move"),
        ({"T": 8, "width": 1.5}, "T=8, B=4 and width=1.5 do not move"),
        ({"B": [4, 8]}, "T=4, B=4,8 and width=1 do not move"),
        ({"grid": "warped", "B": [4, 3]}, "blocks of 4, 3, 1 tokens"),
        ({"grid": "warped", "early_exit": True}, "early_exit"),
        ({"mode": "speculative"}, ""),
    ],
)
def test_programs_say_what_they_do_not_write(engine, changes, why):
    (request,) = requests_for(engine, PROMPTS[:1], **changes)
    assert (
        re.search(why, engine.runners.why_not(request))
        if why
        else not engine.runners.why_not(request)
    )
    assert (engine.runners.key_of(request) is None) == bool(why)


def test_slots_hold_the_prompt_and_the_text(engine, monkeypatch):
    runners = engine.runners
    assert runners.capacity(Request("", (1, 2), OPTIONS), 2) == 0  # on a CPU they grow
    long = Request("", (1,) * 3000, OPTIONS)
    assert runners.capacity(long, 2) == 4096  # up to a bound
    assert runners.num_slots(runners.key_of(long), 100) == 16
    monkeypatch.setattr("ssdlm.engine.runners.CPU_MEMORY", 10_000_000)
    assert 1 <= runners.num_slots(runners.key_of(long), 100) < 16
    monkeypatch.setattr(runners, "is_gpu", True)
    for length, capacity in ((8, 128), (124, 128), (125, 256), (1000, 1024), (1021, 2048)):
        request = Request("", (1, 2), OPTIONS.change(length=length))
        assert runners.capacity(request, 2) == capacity


def test_slots_grow_with_the_texts_that_join(engine):
    short, long = (requests_for(engine, [[3, 1, 4]], length=n)[0] for n in (8, 300))
    schedule = in_a_batch(engine, 2)
    jobs = [schedule.submit(request) for request in (short, long)]
    schedule.turn()
    assert schedule.num_jobs == 2
    work(engine, schedule, jobs)
    assert [job.tokens for job in jobs] == [alone(engine, request) for request in (short, long)]


def test_a_batch_is_released_when_its_last_text_is_written_and_not_before(engine):
    schedule, idle = in_a_batch(engine, 2), engine.runners.idle
    jobs = [schedule.submit(request) for request in requests_for(engine)[:2]]
    work(engine, schedule, jobs)
    assert not idle
    schedule.turn()
    assert len(idle) == 1
    assert schedule.num_jobs == 0
    again = [schedule.submit(request) for request in requests_for(engine)[2:4]]
    work(engine, schedule, again)
    assert not idle  # the same one is used again
    assert again[0].tokens == alone(engine, again[0].request)


def test_a_job_that_is_cancelled_while_it_is_looked_at_stays_so(engine):
    schedule = engine.schedule(most_jobs=1)
    job = schedule.submit(requests_for(engine, length=12)[0])
    while len(job.tokens) < 4:
        schedule.turn()
    job.cancel()
    assert engine.finish(job) is None
    assert job.is_over


def test_where_many_come_a_larger_batch_takes_over(engine):
    """As in a server: a text is alone when its batch is made, and others come later."""
    made = []

    def employ(jobs):
        request, count = jobs[0].request, 8 if len(jobs) > 1 else 1
        worker = BatchWorker(engine.runners, engine.runners.key_of(request), request, count)
        made.append(worker.num_places)
        return worker

    schedule = engine.schedule(most_jobs=100, grows=True)
    schedule.employ = employ
    requests = requests_for(engine, [*PROMPTS, *PROMPTS[:3]], seed=5)
    jobs = [schedule.submit(requests[0])]
    schedule.turn()
    jobs += [schedule.submit(request) for request in requests[1:6]]
    schedule.turn()
    assert made == [1, 8] and schedule.num_jobs == 6
    jobs += [schedule.submit(request) for request in requests[6:]]
    work(engine, schedule, jobs)
    assert made == [1, 8]  # the rest joined the second, and the first took no more
    assert [job.tokens for job in jobs] == [alone(engine, request) for request in requests]


def test_a_text_is_looked_at_as_often_as_its_job_wants(engine):
    (request, *_) = requests_for(engine)
    job = Job(request, look_every=3)
    assert tokens_to_go(job) == 3
    job.tokens = [1] * 6
    assert tokens_to_go(job) == 2
    (request, *_) = requests_for(engine, stop_at_end=True)
    assert tokens_to_go(Job(request)) == 4  # once a block
    assert tokens_to_go(Job(requests_for(engine)[0])) == 8


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


def test_nobody_is_employed_for_jobs_that_were_given_up(engine):
    schedule = engine.schedule(most_jobs=3)
    for request in requests_for(engine)[:2]:
        schedule.submit(request).cancel()
    assert schedule.turn() == [] and not schedule.workers and schedule.num_waiting == 0
    assert not engine.runners.idle
    late = [schedule.submit(request) for request in requests_for(engine)[:2]]
    late[0].cancel()
    work(engine, schedule, late[1:])
    assert late[1].tokens == alone(engine, late[1].request)


@pytest.mark.parametrize(
    "changes", [{}, {"width": 3.0}, {"grid": "staggered", "T": 8}, {"mode": "autoregressive"}]
)
def test_a_text_that_is_watched_is_the_same_in_the_same_batch(engine, changes):
    (request, other, *_) = requests_for(engine, **changes)
    watched = replace(request, is_watched=True, keeps_states=True)
    schedule = in_a_batch(engine, 2)
    jobs = [schedule.submit(one) for one in (watched, other)]
    steps = []
    while not jobs[0].is_over:
        for job in schedule.turn():
            engine.finish(job)
        steps.append(jobs[0].step)
    assert jobs[0].tokens == alone(engine, request)
    plain = list(engine.steps([request]))
    assert [(s.block, s.t, s.window, s.is_last) for s in steps] == [
        (s.block, s.t, s.window, s.is_last) for s in plain
    ]
    for step, own in zip(steps, plain, strict=True):
        assert step.tokens.tolist() == own.tokens.tolist()
        assert step.progress.tolist() == own.progress.tolist()
        # Evidence is the same up to a constant.
        assert_close(step.logits.softmax(-1), own.logits.softmax(-1), roundings=NETWORK)


def test_seeds_of_many_requests_are_each_ones_own():
    options = GenerateOptions(seed=5)
    requests = [
        Request("", tuple(range(n % 7)), options, sample=n, branch=(n,) if n % 3 == 0 else ())
        for n in range(2 * MIXED_TOGETHER)
    ]
    assert noise_seeds(requests) == [one.noise_seed for one in requests]
    assert noise_seeds(requests[:2]) == [one.noise_seed for one in requests[:2]]


def test_words_are_shown_while_a_batch_gets_ready(engine, monkeypatch):
    shown = []

    @contextmanager
    def tell(words):
        shown.append(words)
        yield

    engine.runners.tell = tell
    (request, *_) = requests_for(engine)
    worker = BatchWorker(engine.runners, engine.runners.key_of(request), request, 2)
    with worker.words():
        assert shown == []  # a CPU is ready
    worker.batch.is_captured = True
    with worker.words():
        assert shown == ["getting the GPU ready for 2 texts at a time ..."]
    worker.is_new = False
    with worker.words():
        assert len(shown) == 1

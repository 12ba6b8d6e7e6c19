"""Texts side by side on a CPU: their passes go as one, and each is what it is alone."""

from itertools import islice

import pytest
import torch
from tests import tiny

from ssdlm import SSDLM
from ssdlm.engine.batch import DecodeBatch
from ssdlm.engine.runners import Runners
from ssdlm.options import GenerateOptions

PROMPTS = ["a b", "the river", "c", "d e f g h", "the", "b b"]
USUAL = GenerateOptions(length=8, B=(4,), T=4, nucleus="network", top_p=0.9, returns="w_0")
WAYS = [
    {"grid": "sliding", "width": 1.0},
    {"grid": "sliding", "width": 3.0},
    {"grid": "staggered", "T": 8},
    {"grid": "sliding", "width": 3.0, "T": 8},
    {"grid": "warped"},
    {"grid": "tilted", "width": 2.0},
    {"grid": "sliding", "width": 1.0, "regex": "[a-h ]+"},
    {"grid": "sliding", "width": 1.0, "must_not": ["b"]},
    {"grid": "sliding", "width": 1.0, "temperature": 0.7, "num_samples": 3},
]


@pytest.fixture
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), USUAL)


@pytest.fixture
def packs(monkeypatch):
    """How many texts went through the network together, pass by pass."""
    counts, draw = [], DecodeBatch.read

    def counted(self, x, first):
        counts.append(len(x))
        return draw(self, x, first)

    monkeypatch.setattr(DecodeBatch, "read", counted)
    return counts


@pytest.mark.parametrize("options", WAYS)
def test_texts_are_what_each_is_alone_on_every_path(model, packs, options):
    alone = [text.tokens for text in model.generate(PROMPTS, **options, batch_size=1)]
    assert set(packs) == {1}
    packs.clear()
    together = [text.tokens for text in model.generate(PROMPTS, **options, batch_size=16)]
    assert together == alone
    assert max(packs) >= len(PROMPTS)


CUT_AS_IN_THE_PAPER = [
    {"grid": "sliding", "width": 3.0, "projection": "greedy"},
    {"grid": "sliding", "width": 3.0, "T": 8, "nucleus": "logits", "top_k": 9},
    {"grid": "uniform", "top_p": 0.0},
    {"grid": "uniform", "nucleus": "logits", "returns": "logits"},
    {"grid": "warped", "returns": "logits"},
    {"grid": "staggered", "T": 6, "projection": "greedy"},
    {"grid": "staggered", "T": 6, "nucleus": "logits", "frequency_penalty": 0.7},
]


@pytest.mark.parametrize(
    ("make", "options"),
    [(tiny.block, options) for options in CUT_AS_IN_THE_PAPER]
    + [(tiny.adapted, options) for options in CUT_AS_IN_THE_PAPER[:5]],
)
def test_greedy_texts_and_those_cut_as_in_the_paper_are_the_reference_loops(
    monkeypatch, make, options
):
    model = SSDLM(make(), tiny.tokenizer(), USUAL)
    written = model.generate(PROMPTS[:2], **options)
    monkeypatch.setattr(Runners, "why_not", lambda *_: "asked not to")
    plain = model.generate(PROMPTS[:2], **options)
    assert [text.tokens for text in written] == [text.tokens for text in plain]
    assert {text.written.program for text in written} == {"window"}
    assert {text.written.program for text in plain} == {"reference"}


def test_guides_steer_each_text_as_alone(model, packs):
    def fewer(context, logits):
        return -(logits.softmax(-1) * torch.arange(64.0)).sum((1, 2))

    options = {"grid": "sliding", "width": 1.0, "control": [fewer], "lam": 2.0}
    alone = [text.tokens for text in model.generate(PROMPTS, **options, batch_size=1)]
    assert [text.tokens for text in model.generate(PROMPTS, **options)] == alone
    assert max(packs) == len(PROMPTS)
    assert alone != [text.tokens for text in model.generate(PROMPTS, grid="sliding", width=1.0)]


def test_the_next_join_as_others_leave(model, packs):
    schedule, jobs = model.engine.schedule(most_jobs=3), []
    for length, prompts in ((4, PROMPTS[::2]), (8, PROMPTS[1::2])):
        for request in model.requests(prompts, {"grid": "sliding", "width": 1.0, "length": length}):
            jobs.append(schedule.submit(request))
    while not all(job.is_over for job in jobs):
        for job in schedule.turn():
            model.engine.finish(job)
    assert [len(job.tokens) for job in jobs] == [4, 4, 4, 8, 8, 8]
    assert packs == [3] * 12


def test_a_text_that_is_given_up_leaves_before_the_next_pass(model, packs):
    requests = list(model.requests(PROMPTS, {"grid": "sliding", "width": 1.0}))
    schedule = model.engine.schedule(most_jobs=8)
    jobs = [schedule.submit(request) for request in requests]
    schedule.turn()
    for job in jobs[1:]:
        job.cancel()
    packs.clear()
    assert schedule.turn() == jobs[:1]
    assert set(packs) == {1}


def test_a_text_that_is_given_up_while_others_are_on_their_way_harms_nobody(model, monkeypatch):
    """Another thread may give a text up at any moment."""
    requests = list(model.requests(PROMPTS[:3], {"grid": "sliding", "width": 1.0, "length": 4}))
    schedule, run, leaving = model.engine.schedule(most_jobs=8), DecodeBatch.run, []

    def interrupted(batch, count):
        for job in leaving:
            job.cancel()
        return run(batch, count)

    monkeypatch.setattr(DecodeBatch, "run", interrupted)
    jobs = [schedule.submit(request) for request in requests]
    schedule.turn()
    leaving.append(jobs[1])
    schedule.turn()
    assert schedule.turn() == [jobs[0], jobs[2]]
    while not all(job.is_over for job in jobs):
        for job in schedule.turn():
            model.engine.finish(job)
    assert [len(job.tokens) for job in (jobs[0], jobs[2])] == [4, 4]


@pytest.mark.parametrize("first", [{"must": ["cab"]}, {"pin": {2: "a"}}])
def test_what_one_text_must_have_is_nothing_to_the_next_in_its_slot(model, first):
    usual = {"grid": "staggered", "T": 8, "length": 8, "B": 8}
    alone = model.generate("a b", **usual).tokens
    schedule = model.engine.schedule(most_jobs=1)
    requests = [model.requests(["a b"], usual | own)[0] for own in (first, {})]
    jobs = [schedule.submit(request) for request in requests]
    while not all(job.is_over for job in jobs):
        for job in schedule.turn():
            model.engine.finish(job)
    assert jobs[1].tokens == alone != jobs[0].tokens


def test_where_products_depend_on_their_rows_texts_are_multiplied_one_by_one(model, monkeypatch):
    together = [text.tokens for text in model.generate(PROMPTS, grid="sliding", width=1.0)]
    sizes, linear = [], torch.nn.functional.linear
    monkeypatch.setattr("ssdlm.ops.rows.is_row_invariant", lambda weight: False)
    monkeypatch.setattr(
        "ssdlm.ops.rows.F.linear", lambda x, w: sizes.append(len(x)) or linear(x, w)
    )
    alone = [text.tokens for text in model.generate(PROMPTS, grid="sliding", width=1.0)]
    assert alone == together
    assert set(sizes[-20:]) == {2}


def test_an_encoder_is_written_text_by_text():
    encoder = SSDLM(tiny.encoder(), tiny.tokenizer())
    (request,) = encoder.requests(["a"], {"length": 4})
    assert encoder.engine.rows_at_once(request) == 1  # saved one by one


def test_an_error_of_a_guide_is_shown_and_leaves_nothing_behind(model):
    asked = []

    def failing_at_last(context, logits):
        asked.append(len(context))
        if len(asked) == 20:
            torch.zeros(3, 3) @ torch.zeros(2, 2)
        return (logits * 0).sum((1, 2))

    options = {"grid": "sliding", "width": 1.0, "control": [failing_at_last]}
    with pytest.raises(ValueError, match="failing_at_last raised RuntimeError: mat1 and"):
        model.generate(PROMPTS, **options)
    assert asked == [1] * 20
    assert torch.is_grad_enabled()
    assert not model.engine.runners.idle  # a batch that was left in the middle is not used again


def test_steps_that_run_out_before_the_text_are_an_error(model, monkeypatch):
    """A job whose loop has ended quietly would be waited for for ever."""
    loop = model.engine.loop
    monkeypatch.setattr(model.engine, "loop", lambda *given: islice(loop(*given), 3))
    with pytest.raises(RuntimeError, match="no more steps"):
        model.generate("a b", grid="sliding", width=1.0, must=["b"], must_not=["c"])

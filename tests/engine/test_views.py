"""What is shown of a text that a program writes is what the reference loop shows."""

from dataclasses import replace

import pytest
from tests import tiny

from ssdlm import SSDLM, GenerateOptions
from ssdlm.engine.views import NOTHING

OWN = {"length": 14, "T": 8, "B": 8, "returns": "w_0", "nucleus": "network", "top_p": 0.9}
WAYS = [
    {"grid": "sliding", "width": 1.0},
    {"grid": "sliding", "width": 1.0, "projection": "greedy"},
    {"grid": "sliding", "width": 3.5},
    {"grid": "sliding", "width": 3.0, "stop_at_end": True},
    {"grid": "sliding", "width": 4.0, "T": 16, "stop_at_end": True},
    {"grid": "sliding", "width": 2.0, "T": 24},
    {"grid": "staggered", "width": 3.0, "length": 16},
    {"grid": "uniform", "length": 16},
    {"grid": "uniform", "length": 16, "stop_at_end": True},
    {"grid": "sliding", "width": 1.0, "length": 16, "must": ["fed"], "pin": {2: "e"}},
    {"grid": "staggered", "width": 3.0, "length": 8, "suffix": " abc"},
]


@pytest.fixture(scope="module")
def models():
    return {
        make: SSDLM(make(), tiny.tokenizer(), GenerateOptions())
        for make in (tiny.block, tiny.adapted)
    }


@pytest.fixture(scope="module")
def model(models):
    return models[tiny.block]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("make", "way"),
    [(tiny.block, way) for way in WAYS]
    + [(tiny.adapted, way) for way in (WAYS[0], *WAYS[2:6], *WAYS[7:9])],
)
def test_a_program_shows_what_the_reference_loop_shows(models, make, way, seed):
    model = models[make]
    options = OWN | way | {"seed": seed}
    if "suffix" in way:  # with which a gap is one block
        del options["B"]
    if options.get("projection") == "greedy":
        del options["top_p"], options["nucleus"], options["returns"]
    shown = list(model.stream("no dog", **options))
    whole = list(model.stream("no dog", states=True, **options))
    assert len(shown) == len(whole)
    before = [1.0] * len(whole[0].noise)
    for draft, full in zip(shown, whole, strict=True):
        for name in ("text", "settled", "block", "t", "tokens", "start", "passes", "noise"):
            assert getattr(draft, name) == getattr(full, name), name
        assert draft.step.window == full.step.window
        wanted = full.confidence
        if "must" in way or "suffix" in way:  # steps are about what is decided, or replaced
            three = zip(draft.confidence, wanted, before, strict=True)
            wanted = [float(one > 0) if one == 0 or was == 0 else two for one, two, was in three]
        assert draft.confidence == pytest.approx(wanted, abs=1e-5)
        before = full.noise if full.t else [1.0] * len(full.noise)
        assert draft.step.logits is NOTHING and full.step.logits.shape[-1] == model.denoiser.V
    assert shown[-1].text == model.generate("no dog", **options).text


def test_texts_that_are_watched_and_others_go_together(model):
    engine = model.engine
    prompts = ["no dog", "the cat", "a"]
    requests = engine.prepare(prompts, [model.options.change(**OWN, grid="sliding", width=3.0)] * 3)
    schedule = engine.schedule(most_jobs=3)
    jobs = [schedule.submit(replace(one, is_watched=one.number == 1)) for one in requests]
    while not all(job.is_over for job in jobs):
        for job in schedule.turn():
            engine.finish(job)
    alone = [model.generate(one, options=requests[0].options).tokens for one in prompts]
    assert [job.tokens for job in jobs] == alone
    assert [job.step is not None for job in jobs] == [False, True, False]

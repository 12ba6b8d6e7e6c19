"""Texts whose passes graphs repeat are those of a CPU, whoever watches, weighs or forks them."""

from __future__ import annotations

import pytest
from tests import graphs, tiny

from ssdlm import SSDLM, GenerateOptions
from ssdlm.engine import reasons
from ssdlm.engine.runners import CPU_SLOTS, FIXED_SLOTS, MEMORY_SHARE

PROMPTS = ["a dog", "a", "the river ran"]
WINDOW = {"grid": "sliding", "width": 1.0, "B": 6, "T": 6}
PATHS = {
    "chain": {"mode": "autoregressive"},
    "window": WINDOW,
    "wide window": WINDOW | {"width": 3.0, "T": 12},
    "blocks": {"grid": "staggered", "width": 2.0, "B": 4, "T": 5},
}
ASKED = {
    "nothing": {},
    "a grammar": {"regex": "[a-e ]{9,}"},
    "a forbidden word": {"must_not": ["e", "a"]},
    "an end": {"stop_at_end": True, "temperature": 2.0},
    "stop": {"stop": ["e"]},
    "candidates": {"best_of": 2},
}
FEW = {"wide window": ["nothing", "a forbidden word"], "blocks": ["nothing", "a grammar"]}
"""What is asked where most of it has its place between the halves of a pass."""


def model_of(*, deterministic: bool = False) -> SSDLM:
    options = GenerateOptions(length=12, seed=3, returns="w_0", top_p=0.9)
    return SSDLM(tiny.block(), tiny.tokenizer(), options, deterministic=deterministic)


@pytest.fixture(scope="module")
def usual():
    """A model that writes as a CPU does."""
    return model_of()


def captured(monkeypatch, **changes):
    """Return the same model as if there were a GPU; from now on all batches are as there."""
    graphs.capture(monkeypatch)
    model = model_of(**changes)
    graphs.choose_as_on_a_gpu(monkeypatch, model)
    return model


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", PATHS)
def test_texts_are_those_of_a_cpu_whatever_is_asked(usual, monkeypatch, path):
    asked = {name: ASKED[name] for name in FEW.get(path, ASKED)}
    wanted = {name: usual.generate(PROMPTS, **PATHS[path], **own) for name, own in asked.items()}
    model = captured(monkeypatch)
    for name, own in asked.items():
        found = model.generate(PROMPTS, **PATHS[path], **own)
        assert [text.tokens for text in found] == [text.tokens for text in wanted[name]], name
        assert found[0].written.program == wanted[name][0].written.program
        is_whole = name not in ("a grammar", "a forbidden word") or path in ("chain", "window")
        assert found[0].written.is_captured == is_whole


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", PATHS)
def test_who_watches_sees_every_pass(usual, monkeypatch, path):
    own = PATHS[path]
    wanted, text = list(usual.stream("a dog", **own)), usual.generate("a dog", **own).text
    model = captured(monkeypatch)
    found = list(model.stream("a dog", **own))
    assert [draft.tokens for draft in found] == [draft.tokens for draft in wanted]
    assert found[-1].text == model.generate("a dog", **own).text == text


@pytest.mark.usefixtures("unchecked")
def test_a_graph_reads_a_prompt_by_itself(usual, monkeypatch):
    wanted, model = usual.generate(PROMPTS, **WINDOW), captured(monkeypatch)
    found = model.generate(PROMPTS, **WINDOW)
    passes = [round(text.passes_per_token * 12) for text in found]
    assert [round(text.passes_per_token * 12) for text in wanted] == [12, 12, 12]
    assert passes == [13, 12, 13]  # the one of a token has nothing to read


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", ["window", "chain"])
def test_a_streamer_gets_the_tokens_as_they_come(usual, monkeypatch, path):
    wanted, got = usual.generate("a dog", **PATHS[path]).tokens, []

    class Streamer:
        def put(self, value):
            got.extend(value.tolist())

        def end(self):
            got.append("end")

    text = captured(monkeypatch).generate("a dog", streamer=Streamer(), **PATHS[path])
    assert got == [*wanted, "end"] and text.tokens == wanted


def vowels(texts):
    return [float(sum(text.count(vowel) for vowel in "aeiou")) for text in texts]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "own", [{"control": vowels}, {"regex": "[a-e ]{9,}"}], ids=["scorer", "grammar"]
)
def test_particles_fork_slots(usual, monkeypatch, own):
    asked = WINDOW | {"particles": 4, "particle_step": 3, "num_samples": 2} | own
    wanted = usual.generate(["a dog"], **asked)
    found = captured(monkeypatch).generate(["a dog"], **asked)
    assert [text.tokens for text in found] == [text.tokens for text in wanted]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", ["chain", "window", "blocks"])
def test_a_deterministic_model_reads_prompts_one_by_one(usual, monkeypatch, path):
    wanted = usual.generate(PROMPTS, **PATHS[path])
    model = captured(monkeypatch, deterministic=True)
    found = model.generate(PROMPTS, **PATHS[path])
    assert [text.tokens for text in found] == [text.tokens for text in wanted]
    (batch,) = model.engine.runners.idle.values()
    assert batch.num_slots == {"chain": CPU_SLOTS, "window": FIXED_SLOTS, "blocks": 1}[path]


@pytest.mark.usefixtures("unchecked")
def test_slots_are_a_power_of_two_for_which_there_is_memory(usual, monkeypatch):
    wanted, model = usual.generate(PROMPTS[:3], **WINDOW), captured(monkeypatch)
    key = model.engine.runners.key_of(model.requests(["a"], WINDOW)[0])
    each = model.engine.runners.num_bytes(key)
    assert [model.engine.runners.num_slots(key, count) for count in (1, 2, 3, 5)] == [1, 2, 4, 8]
    graphs.choose_as_on_a_gpu(monkeypatch, model, free=int(2 * each / MEMORY_SHARE))
    assert [model.engine.runners.num_slots(key, count) for count in (1, 2, 3, 5)] == [1, 2, 2, 2]
    found = model.generate(PROMPTS[:3], **WINDOW)
    assert [text.tokens for text in found] == [text.tokens for text in wanted]


@pytest.mark.usefixtures("unchecked")
def test_contexts_beyond_a_graph_are_read_without_one(usual, monkeypatch):
    wanted = usual.generate(PROMPTS, **WINDOW)
    monkeypatch.setattr("ssdlm.engine.batch.MOST_RECORDED", 8)
    model = captured(monkeypatch)
    found = model.generate(PROMPTS, **WINDOW)
    assert [text.tokens for text in found] == [text.tokens for text in wanted]
    (batch,) = model.engine.runners.idle.values()
    assert not any("contexts" in name for name in batch.graphs.graphs)


def test_without_kernels_the_reference_loop_writes(monkeypatch):
    model = model_of()
    monkeypatch.setattr(model.engine.runners, "is_gpu", True)
    written = model.generate("a dog", **WINDOW).written
    assert (written.program, written.is_captured) == ("reference", False)
    assert written.why == reasons.without_kernels("BlockDenoiser")

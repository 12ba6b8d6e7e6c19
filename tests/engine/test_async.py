"""Texts beside an event loop, which goes on meanwhile; and a model on its way to the Hub."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests import tiny

from ssdlm import SSDLM
from ssdlm.engine.schedule import UNWANTED, Schedule


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer())


HOW = {"length": 12, "B": [6], "T": 4}


def test_texts_are_those_of_generate_and_the_loop_goes_on(model):
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.001)

    async def both():
        clock = asyncio.create_task(tick())
        texts = await asyncio.gather(
            *(model.generate_async("the dog", seed=seed, **HOW) for seed in range(3))
        )
        clock.cancel()
        return texts

    expected = [model.generate("the dog", seed=seed, **HOW) for seed in range(3)]
    assert asyncio.run(both()) == expected
    assert len(ticks) > 3


def test_a_cancelled_call_ends_before_its_next_pass_and_the_next_call_goes_on(model, monkeypatch):
    begun, may_go, unwanted = threading.Event(), threading.Event(), []
    turn = Schedule.turn

    def watched(self):
        unwanted.append(UNWANTED.get()())
        begun.set()
        assert may_go.wait(60)
        return turn(self)

    monkeypatch.setattr(Schedule, "turn", watched)

    async def cancel_one():
        one = asyncio.create_task(model.generate_async("the dog", seed=1, **HOW))
        await asyncio.to_thread(begun.wait, 60)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        may_go.set()
        return await model.generate_async("the dog", seed=2, **HOW)

    text = asyncio.run(cancel_one())
    assert len(unwanted) > 2 and not any(unwanted)
    monkeypatch.undo()
    assert text == model.generate("the dog", seed=2, **HOW)


def test_two_streams_take_turns_and_drafts_are_those_of_stream(model):
    async def watch(seed, seen):
        async for draft in model.stream_async("the dog", seed=seed, **HOW):
            seen.append((seed, draft.text))

    async def both():
        seen = []
        await asyncio.gather(watch(0, seen), watch(1, seen))
        return seen

    seen = asyncio.run(both())
    for seed in (0, 1):
        expected = [draft.text for draft in model.stream("the dog", seed=seed, **HOW)]
        assert [text for own, text in seen if own == seed] == expected
    assert seen != sorted(seen, key=lambda one: one[0])


def test_bad_input_is_refused_as_elsewhere(model):
    async def watch():
        return [one async for one in model.stream_async("a", width=-1.0)]

    for call in (model.generate_async("a", T=0), watch()):
        with pytest.raises(ValueError, match="use"):
            asyncio.run(call)


def test_a_model_goes_to_the_hub_whole_or_with_a_line(model, monkeypatch):
    files, asked = {}, []

    class Hub:
        def create_repo(self, name, **how):
            asked.append((name, how))
            return f"https://huggingface.co/{name}"

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            files[repo_id] = sorted(path.name for path in Path(folder_path).iterdir())

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert model.push_to_hub("me/model", private=True).endswith("me/model")
    assert asked == [("me/model", {"private": True, "exist_ok": True})]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files["me/model"])

    def fail(self, name, **how):
        raise RuntimeError("401\nUnauthorized")

    monkeypatch.setattr(Hub, "create_repo", fail)
    with pytest.raises(ValueError, match=r"did not take me/model \(401\); .*hf auth login"):
        model.push_to_hub("me/model")

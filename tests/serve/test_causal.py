"""A causal language model over HTTP: its texts are the library's own."""

import re

import pytest
from tests import causal, tiny
from tests.serve.running import serving

from ssdlm import SSDLM


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    model = SSDLM.from_pretrained(causal.save(root / "llama", "llama"))
    guide = tiny.save_classifier(root / "mood", V=tiny.V)
    with serving(model, folders={"mood": str(guide), "tense": "tense"}) as running:
        yield running


def test_a_completion_and_its_stream_are_the_text_of_generate(server):
    more = {"seed": 3, "never_end": True, "stop_at_end": False}
    body = {"prompt": "the river", "max_tokens": 30, **more}
    expected = server.model.generate("the river", length=30, **more).text
    assert server.complete(**body)["choices"][0]["text"] == expected
    chunks = server.chunks(**body)
    assert "".join(one["text"] for chunk in chunks for one in chunk["choices"]) == expected
    assert len(chunks) > 1
    (*_, last) = server.events(prompt="the river", length=30, **more)
    assert last["text"] == expected


def test_grammars_controls_and_words_hold(server):
    held = server.complete(prompt="a", regex="[a-e]{3}", max_tokens=8)["choices"][0]["text"]
    assert re.fullmatch("[a-e]{3}", held)
    body = {"prompt": "the", "max_tokens": 12, "seed": 1}
    plain, steered, weighed = (
        server.complete(**body, **more)["choices"][0]["text"]
        for more in (
            {},
            {"control": ["mood=positive:40"]},
            {"control": "mood=positive", "particles": 3},
        )
    )
    assert len({plain, steered, weighed}) == 3
    refused = server.refusal(prompt="a", must=["up"])
    assert "needs an adapter" in refused["message"]


def test_the_page_knows_what_the_model_does(server):
    assert server.get("/").status_code == 200
    about = server.get("/v1/info").json()
    assert about["most_open"] == 1
    assert (sorted(about["guides"]), about["readers"]) == (["mood", "tense"], ["mood"])
    assert (about["defaults"]["grid"], about["defaults"]["width"]) == ("sliding", 1.0)
    told = server.post("/v1/explain", {"prompt": "a", "control": "mood=positive"})
    assert told.status_code == 200 and "it knows all 64 tokens" in told.text

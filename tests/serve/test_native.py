"""The native form: options as JSON, answers as the library gives them, drafts as events."""

import json
import re
from dataclasses import asdict, replace

import pytest
from tests import tiny
from tests.serve.running import serving, tiny_model

from ssdlm import __version__
from ssdlm.options import all_names
from ssdlm.serve.chat import OWN_FIELDS as chat_fields
from ssdlm.serve.completions import OWN_FIELDS as completion_fields
from ssdlm.serve.fields import Served
from ssdlm.serve.guides import Guides
from ssdlm.serve.limits import Limits
from ssdlm.serve.native import OWN_FIELDS as native_fields
from ssdlm.serve.responses import OWN_FIELDS as response_fields

SETTLING = {"grid": "staggered", "B": 6, "T": 8, "width": 4.0, "length": 12}


@pytest.fixture(scope="module")
def guided(tmp_path_factory):
    """A server with a guide under a name of its own."""
    folder = tiny.save_classifier(tmp_path_factory.mktemp("guide"))
    with serving(folders={"mood": str(folder)}) as running:
        yield running


def rebuilt(events):
    """The text that the drafts of a stream add up to."""
    state = {}
    for event in events:
        for change in event.get("changed", ()):
            state.setdefault(change["position"], {}).update(change)
    return "".join(state[position]["text"] for position in sorted(state))


def test_an_answer_is_what_generate_returns(server):
    body = {"prompt": ["ab", "cd"], "num_samples": 2, "best_of": 2, "length": 6, "seed": [3, 4]}
    answer = server.post("/v1/generate", body).json()
    texts = server.model.generate(["ab", "cd"], num_samples=2, best_of=2, length=6, seed=[3, 4])
    assert answer == {"model": "tiny", "texts": [asdict(text) for text in texts]}


def test_biases_have_their_tokens_as_json_does(server):
    body = {"prompt": "ab", "length": 9, "logit_bias": {"5": 4, "7": -100}, "top_k": 6}
    (text,) = server.post("/v1/generate", body).json()["texts"]
    own = {"length": 9, "logit_bias": {5: 4.0, 7: -100.0}, "top_k": 6}
    assert text == asdict(server.model.generate("ab", **own))
    assert text["text"] != server.model.generate("ab", length=9).text
    own = body | {"presence_penalty": 1, "width": 3.0}
    told = server.post("/v1/explain", own).json()["explained"][0]
    assert "penalties count tokens that are decided" in told["notes"][0]


def test_every_length_of_a_gap_is_tried(server):
    options = {"gap": [3, 5], "suffix": " end", "num_samples": 2, "best_of": 2}
    answer = server.post("/v1/generate", {"prompt": "ab"} | options).json()
    assert answer["texts"] == [asdict(text) for text in server.model.generate("ab", **options)]
    refusal = server.refusal("/v1/generate", prompt="ab", gap="3-5", suffix=" end", stream=True)
    assert "shows one text, and 3 are to be written" in refusal["message"]


def test_who_needs_particles_is_counted_with_them(tmp_path):
    folder = tiny.save_classifier(tmp_path / "other", V=63)
    text = json.loads(tiny.tokenizer().to_json())
    del text["model"]["vocab"]["2"]
    text["added_tokens"][0]["id"] = 62
    (folder / "tokenizer.json").write_text(json.dumps(text))
    body = {"prompt": "ab", "length": 2, "control": "mood=positive"}
    with serving(folders={"mood": str(folder)}) as running:
        answer = running.post("/v1/generate", body).json()
        assert answer["texts"][0]["passes_per_token"] >= 8
        refusal = running.refusal("/v1/generate", **body, num_samples=9)
        assert "72 texts are more than the 64" in refusal["message"]


def test_the_models_own_settings_may_be_sent_back(server):
    defaults = server.get("/v1/info").json()["defaults"]
    answer = server.post("/v1/generate", {"prompt": "ab"} | defaults).json()
    assert answer["texts"] == [asdict(server.model.generate("ab"))]


def test_a_stream_shows_every_draft_and_ends_with_the_text(server):
    events = server.events(prompt="ab", candidates=3, **SETTLING)
    names = [event["event"] for event in events]
    assert names[0] == "queued" and names[-1] == "done"
    assert names.count("draft") == 16 and names.count("block") == 2
    text = server.model.generate("ab", **SETTLING)
    assert events[-1] == {"event": "done", **asdict(text)}
    assert rebuilt(events) == text.text
    listed = [
        len(c["candidates"]) for e in events for c in e.get("changed", ()) if "candidates" in c
    ]
    assert listed and max(listed) == 3


def test_what_a_command_line_calls_the_model_and_the_guides(tmp_path):
    folder = tiny.save_classifier(tmp_path / "mood")
    served = Served(
        tiny_model(),
        "any",
        Guides({"mood": f"{folder}[a+b+c]", "sentiment": "sentiment"}),
        Limits(),
        source=str(tmp_path),
    )
    guides = {"mood": f"{folder.resolve()}[a+b+c]", "sentiment": "sentiment"}
    sources = {"model": str(tmp_path.resolve()), "guides": guides}
    assert served.info(is_local=True)["sources"] == sources
    away = served.info(is_local=False)["sources"]
    assert away["model"] == f"path/to/{tmp_path.name}"
    assert away["guides"] == {"mood": "path/to/mood[a+b+c]", "sentiment": "sentiment"}
    for name in ("builtin:mini", "org/name"):
        info = replace(served, source=name).info(is_local=True)
        assert info["sources"]["model"] == name and info["model"] == "any"


def test_guides_have_the_servers_names(guided):
    info = guided.get("/v1/info").json()
    assert info["guides"] == {"mood": ["negative", "neutral", "positive"]}
    assert info["lam"] == {"mood": 2000.0}
    folder = guided.server.served.guides.folders["mood"]
    body = {"prompt": "ab", "length": 6, "control": ["mood=positive:50", "mood!=neutral"]}
    answer = guided.post("/v1/generate", body).json()
    controls = [f"{folder}=positive:50", f"{folder}!=neutral"]
    text = guided.model.generate("ab", length=6, control=controls)
    assert answer["texts"] == [asdict(text)]
    plain = guided.model.generate("ab", length=6)
    assert plain.text != text.text  # the guide was heard


def test_drafts_tell_what_guides_think(guided):
    events = guided.events(prompt="ab", length=6, guides=["mood"], control="mood=positive")
    opinions = [event["guides"]["mood"] for event in events if "guides" in event]
    assert opinions and set(opinions[-1]) == {"negative", "neutral", "positive"}
    assert all(abs(sum(one.values()) - 1) < 0.01 for one in opinions)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"control": "sentiment=positive"}, "there is no guide 'sentiment' on this server"),
        ({"control": ["mood=positive"] * 9}, "control has 9 values, and this server takes 8"),
        ({"control": [f"mood=positive:{lam}" for lam in range(1000)]}, "control has 1000 "),
        ({"control": "mood=cheerful"}, "not one of the labels of mood"),
        ({"control": "mood"}, "is not CLASSIFIER=LABEL"),
        ({"control": {"a": 1}}, "is not a control"),
        ({"control": "../mood=1"}, "there is no guide"),
        ({"control": "org/name=1"}, "there is no guide"),
        ({"control": "mood=positive", "lam": [1, 2]}, "has 2 values for 1 control"),
        ({"control": ["mood=positive", "mood!=positive"]}, "sought and avoided"),
        ({"lam": 5}, "weighs nothing"),
        ({"sees": "block"}, "sees=block has no effect"),
        ({"particle_weight": 5}, "particle_weight=5.0 weighs nothing"),
        ({"gradient": "simplex"}, "gradient=simplex says how control is heard"),
        ({"control": "mood=positive", "particle_step": 3}, "particle_step=3 is how particles"),
        ({"control": "mood=positive", "threshold": 1.5}, "threshold=1.5 is of gradient=words"),
        ({"projection": "greedy", "top_p": 0.4}, "top_p=0.4 has no effect"),
        ({"guides": ["mood"]}, "set stream to true"),
        ({"guides": ["sentiment"], "stream": True}, "there is no guide 'sentiment'"),
        ({"guides": [5], "stream": True}, "guides=[5] is not"),
        ({"candidates": -1, "stream": True}, "candidates=-1 is out of range"),
        ({"candidates": "x", "stream": True}, "candidates='x' is not a whole number"),
        ({"candidates": {}, "stream": True}, "candidates={} is not a whole number"),
        ({"candidates": "x"}, "set stream to true"),
        ({"guides": {}, "stream": True}, "guides={} is not"),
        ({"batch_size": 0}, "batch_size=0 is out of range"),
        ({"num_samples": 2, "stream": True}, "shows one text"),
        ({"prompt": None}, "neither a text nor"),
        ({"stream": "yes"}, "stream='yes' is not true or false"),
    ],
)
def test_what_cannot_be_done_is_said(guided, body, words):
    error = guided.refusal("/v1/generate", **{"prompt": "ab"} | body)
    assert words in error["message"]


@pytest.mark.parametrize(
    "options", [{}, {"suffix": " end", "gap": [3, 5]}, {"early_exit": True, "grid": "uniform"}]
)
def test_how_a_text_would_be_written_is_told_without_writing_it(server, options):
    body = {"prompt": ["ab", "cd"], "num_samples": 2} | options
    answer = server.post("/v1/explain", body).json()
    found = [
        json.loads(json.dumps(server.model.explain(one, **options).json())) for one in ("ab", "cd")
    ]
    assert answer == {"model": "tiny", "explained": found}
    texts = server.post("/v1/generate", body).json()["texts"]
    assert {json.dumps(text["written"]) for text in texts} == {json.dumps(found[0]["written"])}
    completion = server.post("/v1/completions", options | {"prompt": "ab"}).json()
    assert completion["choices"][0]["written"] == found[0]["written"]
    last = server.events(prompt="ab")[-1]
    watched = server.post("/v1/explain", {"prompt": "ab", "stream": True}).json()
    assert last["written"] == watched["explained"][0]["written"]
    assert "lenght" in server.refusal("/v1/explain", prompt="ab", lenght=3)["message"]


def test_a_prompt_must_be_there(server):
    assert "there is no prompt" in server.refusal("/v1/generate", length=5)["message"]


def test_the_schemas_have_every_option(server):
    told = server.get("/openapi.json").json()
    assert told["info"]["version"] == __version__
    paths = told["paths"]
    bodies = [paths[path]["post"]["requestBody"] for path in ("/v1/generate", "/v1/completions")]
    native, completion = (body["content"]["application/json"]["schema"] for body in bodies)
    assert set(native["properties"]) == {*native_fields, *all_names()} - {"streamer"}
    assert native["required"] == ["prompt"]
    others = {*all_names()} - {"streamer", "num_samples", "num_return_sequences"}
    assert set(completion["properties"]) == {*completion_fields, *others}
    for path, own in (("chat/completions", chat_fields), ("responses", response_fields)):
        found = paths[f"/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]
        assert set(found["schema"]["properties"]) == {*own, *others}
    page = server.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for name in {**native["properties"], **completion["properties"]}:
        assert f"<code>{name}</code>" in page.text
    assert "http://" not in page.text and "https://" not in page.text  # nothing from elsewhere
    for path in re.findall(r'(?:href|src)="([^"]+)"', page.text):
        assert server.get(path).status_code == 200, path


def test_nothing_in_an_answer_breaks_json(server):
    answer = server.post("/v1/generate", {"prompt": "a\u2028b\x00\"'<", "length": 6})
    assert answer.status_code == 200
    assert json.loads(answer.content)["texts"][0]["prompt"] == "a\u2028b\x00\"'<"


def test_particles_count_as_texts_and_have_no_draft_to_show(guided):
    steered = {"prompt": "ab", "length": 4, "control": "mood=positive", "particles": 3}
    answer = guided.post("/v1/generate", steered).json()
    folder = guided.server.served.guides.folders["mood"]
    text = guided.model.generate("ab", length=4, control=f"{folder}=positive", particles=3)
    assert answer["texts"] == [asdict(text)]
    many = guided.refusal("/v1/generate", **steered, num_samples=22)
    assert many["message"].startswith("66 texts are more than the 64")
    watched = guided.refusal("/v1/generate", **steered, stream=True)
    assert watched["param"] == "particles" and "no one draft to show" in watched["message"]
    with pytest.raises(ValueError, match="no one draft to show"):
        guided.model.stream("ab", control=f"{folder}=positive", particles=3)

"""Rewriting over HTTP: the library's own answer, drafts of each span as events, one line each."""

import httpx2 as httpx
import pytest
from tests.serve.running import parse_event, serving

TEXT = "the river ran by the mill."
SPANS = [[4, 9], [21, 25]]


def plain(rewrites):
    """Rewrites as JSON has them, without how each was written."""
    return [(one.text, [list(span) for span in one.spans], one.seed) for one in rewrites]


def told(answer):
    return [(one["text"], one["spans"], one["seed"]) for one in answer]


def events(server, **body):
    answer = server.post("/v1/rewrite", {"text": TEXT, "spans": SPANS, "stream": True} | body)
    assert answer.status_code == 200, answer.text
    return [parse_event(text) for text in answer.text.split("\n\n") if text]


HELD = {"length": "free", "must_not": ["the"], "must": [["fog"], []]}


@pytest.mark.parametrize("how", [{}, HELD], ids=["plain", "held"])
def test_an_answer_is_what_rewrite_returns(server, how):
    how = {"alternatives": 2, "seed": 3} | how
    answer = server.post("/v1/rewrite", {"text": TEXT, "spans": SPANS, **how}).json()
    expected = server.model.rewrite(TEXT, SPANS, **how)
    assert answer["model"] == "tiny" and told(answer["rewrites"]) == plain(expected)
    first = answer["rewrites"][0]["generations"]
    assert [one["tokens"] for one in first] == [one.tokens for one in expected[0].generations]


def test_a_stream_shows_the_drafts_of_each_span_and_ends_with_the_text(server):
    found = events(server, alternatives=2, candidates=2)
    assert found[0]["event"] == "queued"
    expected = server.model.rewrite(TEXT, SPANS, alternatives=2)
    assert [event["event"] for event in found[-2:]] == ["done", "done"]
    assert [event["alternative"] for event in found[-2:]] == [0, 1]
    assert told(found[-2:]) == plain(expected)
    for number, one in enumerate(expected):
        own = [event for event in found if event.get("alternative") == number]
        for index, (start, end) in enumerate(one.spans):
            drafts = [event for event in own if event["event"] == "draft"]
            drafts = [event for event in drafts if event["span"] == index]
            state = {}
            for change in (change for event in drafts for change in event["changed"]):
                state.setdefault(change["position"], {}).update(change)
            spelled = "".join(state[place]["text"] for place in range(drafts[0]["gap"]))
            assert spelled.strip() == one.text[start:end]
            assert any("candidates" in change for event in drafts for change in event["changed"])
        spans = [event for event in own if event["event"] == "span"]
        assert [(e["span"], e["start"], e["end"], e["text"]) for e in spans] == [
            (index, start, end, one.text[start:end]) for index, (start, end) in enumerate(one.spans)
        ]
    order = [event["span"] for event in found if "span" in event]
    assert order == sorted(order), "each span after the one before it"


def test_every_length_that_is_tried_is_shown(server):
    found = events(server, length="free", spans=[[4, 9]])
    assert {event["gap"] for event in found if event["event"] == "draft"} == {3, 4, 5, 6, 7}
    assert told(found[-1:]) == plain(server.model.rewrite(TEXT, [(4, 9)], length="free"))


def test_who_leaves_between_spans_frees_the_server(server):
    body = {"text": TEXT, "spans": SPANS, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/rewrite", json=body, trust_env=False) as answer:
        next(line for line in answer.iter_lines() if "event: span" in line)
    server.settle()
    again = server.post("/v1/rewrite", {"text": TEXT, "spans": SPANS}).json()["rewrites"]
    assert told(again) == plain(server.model.rewrite(TEXT, SPANS))


@pytest.mark.parametrize(
    ("given", "message", "param"),
    [
        ({"spans": [[4, 9], [8, 12]]}, "spans 4-9 and 8-12 overlap", "spans"),
        ({"spans": [[4, 99]]}, "span 4-99 is empty or lies outside", None),
        ({"spans": None}, "spans=None is not a list of places", "spans"),
        ({"spans": "4-9"}, "spans='4-9' is not a list of places", "spans"),
        ({"spans": [[0, 1]], "text": "e\u0301a"}, "splits the character at 1", None),
        ({"text": None}, "there is no text", None),
        ({"text": 7}, "text=7 is not a text", "text"),
        ({"length": "long"}, "length='long'", "length"),
        ({"length": 5}, "length=5 is unknown; choose one of equal, free", "length"),
        ({"alternatives": 0}, "alternatives=0 is out of range", "alternatives"),
        ({"alternatives": 40}, "80 texts are more than the 64 that a request may have", None),
        ({"alternatives": 10**6}, "alternatives=1000000 is out of range", "alternatives"),
        ({"length": ""}, "length='' is unknown", "length"),
        ({"suffix": "x"}, "suffix=x: the text behind a span", "suffix"),
        ({"num_samples": 2}, "num_samples=2: use alternatives", "num_samples"),
        ({"must": ["a long way"]}, "takes 11 tokens and there is room for 5", "must"),
        ({"must": [[], ["a long way"]]}, "takes 11 tokens and there is room for 4", "must"),
        ({"seed": [1, 2, 3]}, "seed=[1, 2, 3] is not one for each of 2 spans", "seed"),
        ({"candidates": 3}, "is about drafts; set stream to true", "candidates"),
        ({"n": 2}, "there is no option 'n'; use alternatives", "n"),
        (
            {"max_tokens": 3},
            "'max_tokens'; a span is as long as it was; use length=f",
            "max_tokens",
        ),
        ({"lenght": 3}, "there is no option 'lenght'", "lenght"),
        ({"text": "a" * 70_000}, "text has 70000 characters, and this server reads 65536", "text"),
        ({"text": "a" * 3000}, "text has 3000 tokens, and this server reads 2048", "text"),
        ({"spans": [[0, 1]] * 1001}, "spans has 1001 values, and this server takes 1000", "spans"),
    ],
    ids=lambda one: str(one)[:30],
)
def test_a_bad_request_is_one_line(server, given, message, param):
    refusal = server.refusal("/v1/rewrite", **{"text": TEXT, "spans": SPANS} | given)
    assert message in refusal["message"] and "\n" not in refusal["message"]
    assert refusal["param"] == param


def test_a_span_longer_than_a_server_writes_is_refused():
    with serving(limits={"max_length": 8}) as running:
        refusal = running.refusal("/v1/rewrite", text=TEXT, spans=[[0, 20]])
        assert "span 0-20 takes 20 tokens, and this server writes 8; give" in refusal["message"]


def test_the_path_is_listed_with_its_fields(server):
    post = server.get("/openapi.json").json()["paths"]["/v1/rewrite"]["post"]
    fields = post["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"text", "spans", "length", "alternatives", "stream", "must", "control"} <= set(fields)
    assert not {"prompt", "suffix", "num_samples", "max_new_tokens", "regex"} & set(fields)
    assert "/v1/rewrite" in server.get("/docs").text

"""OpenAI's responses: a text or messages in, one text out, whole or as named events."""

import json

import pytest
from tests.serve.running import serving
from tests.talking import talking_model

PATH = "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server():
    with serving(talking_model()) as running:
        yield running


@pytest.fixture(scope="module")
def short(server):
    """A seed with which an answer ends by itself."""
    chat = server.model.chat
    return next(s for s in range(200) if chat("Hello", seed=s, length=30).finish_reason == "stop")


def response_to(server, **body):
    answer = server.post(PATH, {"input": "Hello"} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(response):
    (item,) = response["output"]
    (part,) = item["content"]
    assert (item["type"], item["role"], part["type"]) == ("message", "assistant", "output_text")
    return part["text"]


def test_a_response_is_what_chat_gives(server, short):
    body = {"model": "tiny", "seed": short, "max_output_tokens": 30, "metadata": {"a": "b"}}
    found = response_to(server, **body)
    text = server.model.chat("Hello", seed=short, length=30)
    assert text_of(found) == text.text
    assert (found["status"], found["incomplete_details"]) == ("completed", None)
    assert found["output"][0]["status"] == "completed"
    assert found["usage"]["output_tokens"] == len(text.tokens)
    assert found["usage"]["total_tokens"] == found["usage"]["input_tokens"] + len(text.tokens)
    assert (found["metadata"], found["max_output_tokens"]) == ({"a": "b"}, 30)
    assert found["store"] is False and found["id"].startswith("resp_")


def test_a_response_is_biased_as_the_library_would(server):
    body = {"frequency_penalty": 1, "logit_bias": {"5": 4}, "min_p": 0.1, "seed": 3}
    own = {"frequency_penalty": 1.0, "logit_bias": {5: 4.0}, "min_p": 0.1, "seed": 3}
    text = server.model.chat("Hello", **own).text
    assert text_of(response_to(server, **body)) == text != server.model.chat("Hello", seed=3).text


def test_a_text_that_is_cut_is_incomplete(server):
    found = response_to(server, max_output_tokens=2, stop_at_end=False)
    assert found["status"] == found["output"][0]["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    *_, last = server.events(PATH, input="Hello", max_output_tokens=2, stop_at_end=False)
    assert last["type"] == "response.incomplete" and last["response"]["status"] == "incomplete"


def test_instructions_come_first_and_a_response_may_be_sent_back(server):
    first = response_to(server, instructions="Be kind", seed=1)
    told = {"role": "system", "content": "Be kind"}
    assert text_of(first) == server.model.chat([told, *HELLO], seed=1).text
    again = {"role": "user", "content": [{"type": "input_text", "text": "More"}]}
    second = response_to(server, input=[*HELLO, *first["output"], again], seed=1)
    said = [*HELLO, {"role": "assistant", "content": text_of(first)}]
    said.append({"role": "user", "content": "More"})
    assert text_of(second) == server.model.chat(said, seed=1).text


def test_a_stream_names_each_event_and_numbers_them(server, short):
    body = {"input": "Hello", "seed": short, "max_output_tokens": 30}
    events = server.events(PATH, **body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if "delta" in event]
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * len(deltas),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    text = server.model.chat("Hello", seed=short, length=30).text
    assert "".join(deltas) == text and len(deltas) > 1
    *_, done, part, item, last = events
    assert done["text"] == part["part"]["text"] == item["item"]["content"][0]["text"] == text
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None
    whole, told = response_to(server, **body), last["response"]
    assert text_of(told) == text and told["output"] == [item["item"]]
    assert {**told, "id": 0, "created_at": 0, "output": 0, "written": 0} == {
        **whole,
        "id": 0,
        "created_at": 0,
        "output": 0,
        "written": 0,
    }


def test_a_stream_that_breaks_says_so(monkeypatch):
    with serving(talking_model(), limits={"grace": 0.0}) as running:
        monkeypatch.setattr(running.server.worker.schedule, "turn", lambda: 1 / 0)
        events = running.events(PATH, input="Hello")
        assert events[-1]["type"] == "response.failed"
        assert "could not be written" in events[-1]["response"]["error"]["message"]


def test_logprobs_are_included_where_they_are_asked_for(server):
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "seed": 2}
    rated = response_to(server, **asked)["output"][0]["content"][0]["logprobs"]
    assert rated and all(len(one["top_logprobs"]) == 2 for one in rated)
    own = {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "seed": 2}
    chat = server.post("/v1/chat/completions", own).json()
    assert rated == chat["choices"][0]["logprobs"]["content"]
    events = server.events(PATH, input="Hello", **asked)
    assert events[-2]["item"]["content"][0]["logprobs"] == rated


def test_text_follows_its_format(server):
    form = {"type": "json_schema", "name": "x", "schema": {"enum": [0, 1, 2]}}
    found = response_to(server, text={"format": form})
    assert json.loads(text_of(found)) in (0, 1, 2)
    assert found["status"] == "completed" and found["text"] == {"format": form}


@pytest.mark.parametrize(
    ("body", "name", "words"),
    [
        ({"input": None}, "input", "input=None is no list of messages"),
        ({"input": [{"type": "function_call"}]}, "input", "input[0] has the role None"),
        ({"input": "a" * 3000}, "input", "input has 30"),
        ({"instructions": 5}, "instructions", "is not a text"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send all that was said"),
        ({"conversation": {"id": "x"}}, "conversation", "send all that was said"),
        ({"store": True}, "store", "store=True is not supported"),
        ({"background": True}, "background", "is not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools", "is not supported"),
        ({"max_output_tokens": 0}, "max_output_tokens", "use 1 to 512"),
        ({"max_tokens": 5}, "max_tokens", "use max_output_tokens"),
        ({"messages": HELLO}, "messages", "use input"),
        ({"n": 2}, "n", "ask several times"),
        ({"max_output_token": 5}, "max_output_token", "the nearest is max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "text", "text.format has the type 'xml'"),
        ({"text": {"format": {"type": "json_schema", "schema": 5}}}, "text", "text.format.schema"),
        ({"text": {"form": 1}}, "text", 'is not {"format": ...}'),
        ({"text": {"verbosity": "low"}}, "text", "text.verbosity='low' is not supported"),
        ({"text.format": {"type": "text"}}, None, "there is no option 'text.format'"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex", "are grammars"),
        ({"include": ["file_search_call.results"]}, "include", "is not supported"),
        ({"top_logprobs": 2}, "top_logprobs", "set include"),
        ({"include": 0}, "include", "is not supported"),
        ({"metadata": "x"}, "metadata", "is no object"),
        ({"metadata": 0}, "metadata", "is no object"),
        ({"length": 5, "max_output_tokens": 5}, "length", "give max_output_tokens"),
    ],
)
def test_a_bad_field_is_answered_with_one_line_that_names_it(server, body, name, words):
    error = server.refusal(PATH, **{"input": "Hello"} | body)
    assert words in error["message"] and "\n" not in error["message"]
    assert error["param"] == name


def test_a_format_without_room_is_told_by_its_field(server):
    form = {"type": "json_schema", "name": "x", "schema": {"enum": [111111, 222222]}}
    error = server.refusal(PATH, input="Hello", text={"format": form}, max_output_tokens=3)
    assert "6 tokens" in error["message"] and error["param"] == "text"


def test_a_model_without_a_template_names_what_there_is():
    with serving() as running:
        assert "use /v1/completions" in running.refusal(PATH, input="Hello")["message"]

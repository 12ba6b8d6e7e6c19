"""Structured output, as OpenAI and vLLM ask for it: whole and valid in its room, or refused."""

import json
import re

import pytest
from tests import tiny
from tests.bpe import write_gpt2
from tests.serve.running import OPTIONS, serving
from tests.talking import TEMPLATE

from ssdlm import SSDLM
from ssdlm.serve.formats import grammar_in, json_object
from ssdlm.tokenizer import load_tokenizer

FILM = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 9}, "stars": {"enum": [1, 2, 3]}},
    "required": ["title", "stars"],
    "additionalProperties": False,
}
PATHS = ["/v1/completions", "/v1/chat/completions"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server whose tiny model can write all of JSON, and answers."""
    tokenizer = load_tokenizer(write_gpt2(tmp_path_factory.mktemp("bytes")))
    tokenizer.settings["chat_template"] = TEMPLATE
    model = SSDLM(tiny.block(V=tokenizer.V), tokenizer, OPTIONS.change(length=60))
    with serving(model) as running:
        yield running


def is_film(text):
    found = json.loads(text)
    return list(found) == ["title", "stars"] and len(found["title"]) < 10 and 0 < found["stars"] < 4


def prompted(path, text="Say"):
    is_chat = "chat" in path
    return {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}


def text_of(server, path, **body):
    answer = server.post(path, prompted(path) | body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": FILM}}},
        {"structured_outputs": {"json": FILM, "regex": None}},
        {"structured_outputs": {"json": json.dumps(FILM)}},
        {"guided_json": FILM},
    ],
)
def test_schemas_are_followed(server, path, asked):
    own = server.post(path, prompted(path) | {"json_schema": FILM, "seed": 3}).json()["choices"]
    text = text_of(server, path, seed=3, **asked)
    assert is_film(text)
    assert text == own[0].get("text", own[0].get("message", {}).get("content"))


@pytest.mark.parametrize("path", PATHS)
def test_patterns_and_choices_are_matched(server, path):
    for asked in ({"guided_regex": "[a-e]{3}"}, {"structured_outputs": {"regex": "[a-e]{3}"}}):
        assert re.fullmatch("[a-e]{3}", text_of(server, path, **asked))
    choices = ["a.b|c", "yes", "no (maybe)\n"]
    for asked in ({"guided_choice": choices}, {"structured_outputs": {"choice": choices}}):
        found = {text_of(server, path, seed=seed, **asked) for seed in range(4)}
        assert found <= set(choices)


@pytest.mark.parametrize("path", PATHS)
def test_context_free_grammars_are_followed(server, path):
    grammar = 'root ::= "(" root ")" | "<" [0-9]{5} ">"'
    for asked in ({"guided_grammar": grammar}, {"structured_outputs": {"grammar": grammar}}):
        text = text_of(server, path, seed=5, max_tokens=12, **asked)
        assert text == text_of(server, path, seed=5, max_tokens=12, grammar=grammar)
        inside = re.fullmatch(r"(\(*)<\d{5}>(\)*)", text)
        assert inside and len(inside[1]) == len(inside[2])
    refused = server.refusal(path, **prompted(path), guided_grammar=grammar, max_tokens=1)
    assert re.search(r"takes at least [3-7] tokens", refused["message"])


@pytest.mark.parametrize("length", [2, 5, 9, 30, 60])
def test_any_object_is_whole_however_little_room_it_has(server, length):
    for seed in range(4):
        more = {"max_tokens": length, "seed": seed, "response_format": {"type": "json_object"}}
        assert isinstance(json.loads(text_of(server, PATHS[1], **more)), dict)


@pytest.mark.parametrize(
    "text",
    ["{}", '{"a": 1}', '{"a": -0.5, "b": [1, "x", null], "c": {"d": [true, {"e": {}}]}}'],
)
def test_the_pattern_of_objects_takes_what_json_dumps_writes(text):
    is_shallow = not text.endswith("{}}]}}")
    assert json.dumps(json.loads(text)) == text
    assert bool(re.fullmatch(json_object(), text)) == is_shallow
    for wrong in (text[:-1], text + "}", text.replace(" ", ""), "[]", "1"):
        assert wrong == "{}" or not re.fullmatch(json_object(), wrong)


def test_a_stream_is_whole_too(server):
    body = prompted(PATHS[1]) | {"guided_json": FILM, "seed": 1}
    chunks = server.chunks(PATHS[1], **body)
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert is_film(text)


def test_what_has_no_room_is_told_how_much_it_takes(server):
    for name, asked in (("guided_choice", ["abcdefgh"]), ("guided_json", FILM)):
        refused = server.refusal(PATHS[1], **prompted(PATHS[1]), **{name: asked}, max_tokens=3)
        assert re.search(r"\d+ tokens", refused["message"]) and refused["param"] == name


def test_asking_for_text_asks_for_nothing():
    assert grammar_in({"response_format": {"type": "text"}, "regex": "a"}) == {}
    assert grammar_in({"response_format": None, "guided_json": None}) == {}


@pytest.mark.parametrize(
    ("body", "name", "words"),
    [
        ({"guided_json": FILM, "regex": "a"}, "regex", "regex and guided_json are grammars"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex", "give one of them"),
        ({"response_format": "json"}, "response_format", "is no object"),
        ({"response_format": {"type": "xml"}}, "response_format", "use text, json_object or"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "not a JSON schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
            "response_format",
            "response_format.schema=3 is not a JSON schema",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "grammar, json_object; give one"),
        ({"structured_outputs": {"json": FILM, "regex": "a"}}, "structured_outputs", "give one"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "not supported"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "not a list of texts"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs", "is not true"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "line 1: x is not defined"),
        ({"guided_grammar": 3}, "guided_grammar", "is not the text of a grammar"),
        ({"guided_grammar": "/etc/passwd"}, "guided_grammar", "a server opens none"),
        ({"guided_choice": "yes"}, "guided_choice", "not a list of texts"),
        ({"guided_regex": 5}, "guided_regex", "not a text"),
        ({"guided_regex": "("}, "guided_regex", "regex="),
        ({"guided_regex": "a" * 20_000}, "guided_regex", "10000; make it shorter"),
        ({"guided_json": "/etc/passwd"}, "guided_json", "a server opens none"),
        ({"guided_json": {"type": "array", "items": {"$ref": "#"}}}, "guided_json", "refers to"),
        ({"guided_json": FILM, "stop": "x"}, "stop", "would cut a text"),
    ],
)
def test_a_bad_format_is_answered_with_one_line_that_names_it(server, body, name, words):
    for path in PATHS:
        error = server.refusal(path, **prompted(path) | body)
        assert words in error["message"] and "\n" not in error["message"]
        assert error["param"] == name


@pytest.mark.parametrize(
    ("path", "own", "called"),
    [
        ("/v1/completions", {"prompt": "Say", "max_tokens": 4}, "max_tokens"),
        ("/v1/completions", {"prompt": "Say", "length": 4}, "length"),
        ("/v1/chat/completions", {"max_completion_tokens": 4}, "max_completion_tokens"),
        ("/v1/chat/completions", {"max_tokens": 4}, "max_tokens"),
        ("/v1/responses", {"input": "Say", "max_output_tokens": 4}, "max_output_tokens"),
        ("/v1/generate", {"prompt": "Say", "length": 4}, "length"),
    ],
)
def test_too_little_room_names_the_length_as_the_client_does(server, path, own, called):
    body = (prompted(path) if "chat" in path else {}) | own | {"regex": "a{50}Z{50}"}
    error = server.post(path, body).json()["error"]
    assert re.search(rf"takes at least \d+ tokens, and .* 4; raise {called}$", error["message"])
    assert error["param"] == "regex"

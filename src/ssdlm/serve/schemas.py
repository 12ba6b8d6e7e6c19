"""What the bodies of all forms of a request may be, as JSON.  options -> [schemas] -> app"""

from __future__ import annotations

from typing import Any, get_args

from ssdlm.engine.drafts import CANDIDATES
from ssdlm.needs import NOT_OF_SPANS
from ssdlm.options import OTHER_NAMES, SpanLength, json_schema
from ssdlm.serve.chat import CHAT_NEUTRAL, MOST_TOP, ROLES, TEXTS
from ssdlm.serve.completions import COUNTS, MOST_LOGPROBS, UNUSED
from ssdlm.serve.responses import KEPT, RATED, RESPONSE_NEUTRAL
from ssdlm.serve.responses import OWN_FIELDS as RESPONSE_FIELDS

IDS = {"type": "array", "items": {"type": "integer"}}
ONE_PROMPT = {"anyOf": [{"type": "string"}, IDS]}
SHARED: dict[str, Any] = {
    "prompt": {
        "description": "what to continue: a text, the ids of one, or a list of such",
        "anyOf": [*ONE_PROMPT["anyOf"], {"type": "array", "items": ONE_PROMPT}],
    },
    "model": {"description": "the name of the model; may be left out", "type": "string"},
}
NATIVE: dict[str, Any] = SHARED | {
    "stream": {"description": "events instead of one answer", "type": "boolean"},
    "candidates": {
        "description": "stream: so many likely tokens of each open position",
        "type": "integer",
        "minimum": CANDIDATES.low,
        "maximum": CANDIDATES.high,
    },
    "guides": {
        "description": "stream: guides whose label probabilities each draft has",
        "type": "array",
        "items": {"type": "string"},
    },
}
REWRITE: dict[str, Any] = {
    "text": {"description": "what to rewrite a part of", "type": "string"},
    "spans": {
        "description": "what is written anew: a start and an end each, in characters",
        "type": "array",
        "items": IDS | {"minItems": 2, "maxItems": 2},
    },
    "length": {
        "description": "as many tokens as a span had, or the likeliest of several lengths",
        "enum": list(get_args(SpanLength)),
    },
    "alternatives": {"description": "texts to return", "type": "integer", "minimum": 1},
    **{name: about for name, about in NATIVE.items() if name != "prompt"},
}
UNSUPPORTED = "only at the value that asks for nothing"
COMPLETION: dict[str, Any] = SHARED | {
    "max_tokens": {
        "description": "tokens to write, for length; 0, with echo and logprobs, rates the prompt",
        "type": "integer",
        "minimum": 0,
    },
    "temperature": {
        "description": "0 is greedy; else what logits are divided by",
        "type": "number",
        "minimum": 0,
        "maximum": 100,
    },
    "n": {"description": "texts to return", "type": "integer", "minimum": 1},
    "best_of": {
        "description": "texts to write in all, of which the likeliest n are returned",
        "type": "integer",
        "minimum": 1,
    },
    "logprobs": {
        "description": "log-probabilities of the tokens and of so many likely ones",
        "type": "integer",
        "minimum": 0,
        "maximum": MOST_LOGPROBS,
    },
    "echo": {"description": "the prompt before the text", "type": "boolean"},
    "stream": {"description": "chunks of decided text instead of one answer", "type": "boolean"},
    "stream_options": {
        "description": "stream: include_usage adds a last chunk with the counts",
        "type": "object",
        "properties": {"include_usage": {"type": "boolean"}},
    },
    "diffusing": {
        "description": "stream: each chunk is the whole draft and replaces the one before",
        "type": "boolean",
    },
    **{name: {"description": "not used", "type": "string"} for name in UNUSED},
    "response_format": {
        "description": "what the text is: text, json_object or json_schema",
        "type": "object",
        "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
        "required": ["type"],
    },
    "structured_outputs": {
        "description": "what the text is, as vLLM says it: json, regex, choice, grammar or "
        "json_object",
        "type": "object",
        "maxProperties": 1,
    },
    "guided_json": {"description": "for json_schema", "type": "object"},
    "guided_regex": {"description": "for regex", "type": "string"},
    "guided_choice": {
        "description": "one of these texts",
        "type": "array",
        "items": {"type": "string"},
    },
    "guided_grammar": {"description": "for grammar", "type": "string"},
}
PART = {"type": "object", "properties": {"type": {"enum": list(TEXTS)}, "text": {"type": "string"}}}
MESSAGES = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": PART}]},
        },
        "required": ["role", "content"],
    },
}
CHAT: dict[str, Any] = {
    "messages": {"description": "what was said", **MESSAGES},
    "max_completion_tokens": {
        "description": "tokens to write at most, for length; max_tokens is its old name",
        "type": "integer",
        "minimum": 1,
    },
    "logprobs": {"description": "log-probabilities of the tokens", "type": "boolean"},
    "top_logprobs": {
        "description": "logprobs: and of so many likely ones",
        "type": "integer",
        "minimum": 0,
        "maximum": MOST_TOP,
    },
    **{name: {"description": UNSUPPORTED, "enum": list(one)} for name, one in CHAT_NEUTRAL.items()},
}
RESPONSE: dict[str, Any] = {
    "input": {"description": "what was said", "anyOf": [{"type": "string"}, MESSAGES]},
    "instructions": {"description": "what the model is told first", "type": "string"},
    "max_output_tokens": {
        "description": "tokens to write at most, for length",
        "type": "integer",
        "minimum": 1,
    },
    "text": {
        "description": "format: what the text is, as response_format elsewhere",
        "type": "object",
        "properties": {"format": COMPLETION["response_format"]},
    },
    "include": {"description": "logprobs of the text", "enum": [[], [RATED]]},
    "top_logprobs": CHAT["top_logprobs"],
    "metadata": {"description": "returned with the response", "type": "object"},
    **{name: {"description": "nothing is kept", "enum": [None]} for name in KEPT},
    **{
        name: {"description": UNSUPPORTED, "enum": list(one)}
        for name, one in RESPONSE_NEUTRAL.items()
    },
}


def native_schema() -> dict[str, Any]:
    """Return the schema of a body of `/v1/generate`: its own fields, and all options."""
    found = json_schema()
    return found | {"properties": NATIVE | found["properties"], "required": ["prompt"]}


def rewrite_schema() -> dict[str, Any]:
    """Return the schema of a body of `/v1/rewrite`: its own fields, and options for spans."""
    found = json_schema()
    foreign = {*NOT_OF_SPANS, *OTHER_NAMES}
    options = {name: about for name, about in found["properties"].items() if name not in foreign}
    return found | {"properties": REWRITE | options, "required": ["text", "spans"]}


def completion_schema() -> dict[str, Any]:
    """Return the schema of a body of `/v1/completions`: OpenAI's fields, and other options."""
    found = json_schema()
    options = {name: about for name, about in found["properties"].items() if name not in COUNTS}
    return found | {"properties": options | COMPLETION}


def chat_schema() -> dict[str, Any]:
    """Return the schema of a body of `/v1/chat/completions`."""
    found = completion_schema()
    fields = {n: about for n, about in found["properties"].items() if n not in ("prompt", "echo")}
    return found | {"properties": fields | CHAT, "required": ["messages"]}


def response_schema() -> dict[str, Any]:
    """Return the schema of a body of `/v1/responses`."""
    found = completion_schema()
    foreign = {*COMPLETION} - {*RESPONSE_FIELDS}
    fields = {name: about for name, about in found["properties"].items() if name not in foreign}
    return found | {"properties": fields | RESPONSE, "required": ["input"]}

"""What a text is made of, by the words of OpenAI and vLLM, as an option of ours.

[formats] -> fields, completions
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ssdlm.needs import GRAMMARS
from ssdlm.values import quote

KINDS = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice"}
KINDS |= {"guided_grammar": "grammar"}
"""What vLLM's older fields are called within `structured_outputs`."""
NOUNS = {"json": "a JSON schema", "regex": "a text", "choice": "a list of texts"}
NOUNS |= {"grammar": "the text of a grammar", "json_object": "true"}
"""What the value of each kind is."""
FORMATS = ("response_format", "structured_outputs", *KINDS)
TEXT_FORMAT = "text.format"
"""Where a response has what `response_format` is elsewhere."""
STRING = r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
LEVELS = 2
"""Lists and objects within each other that the object of `json_object` may have."""


def json_value(levels: int) -> str:
    """Return the pattern of any JSON value, spaced as `json.dumps` does."""
    found = f"{STRING}|{NUMBER}|true|false|null"
    if levels > 0:
        found += rf"|\[{several(json_value(levels - 1))}\]|{json_object(levels - 1)}"
    return f"({found})"


def json_object(levels: int = LEVELS) -> str:
    """Return the pattern of any JSON object."""
    return rf"\{{{several(f'{STRING}: {json_value(levels)}')}\}}"


def several(pattern: str) -> str:
    """Return the pattern of nothing, or of what matches one, with commas between."""
    return f"({pattern}(, {pattern})*)?"


def grammar_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option that a body asks for in other words than ours; two grammars are refused."""
    found = {name: dict[str, Any]() for name in GRAMMARS if body.get(name) is not None}
    for name in (*FORMATS, TEXT_FORMAT):
        value = body.get(name)
        if value is not None and (meant := read_format(name, value)) is not None:
            found[name] = meant
    if len(found) > 1:
        raise ValueError(f"{' and '.join(found)} are grammars for one text; give one of them")
    return next(iter(found.values()), {})


def read_format(name: str, value: Any) -> dict[str, Any] | None:
    """Return the option that a field means, None where it asks for nothing."""
    if name in KINDS:
        return option_of(name, KINDS[name], value)
    if not isinstance(value, dict):
        raise ValueError(f"{name}={quote(value)} is no object; give one")
    if name in ("response_format", TEXT_FORMAT):
        return response_format(name, value)
    asked = {kind: one for kind, one in value.items() if one is not None and one is not False}
    if len(asked) != 1:
        raise ValueError(f"{name}={quote(value)} is not one of {', '.join(NOUNS)}; give one")
    ((kind, one),) = asked.items()
    return option_of(f"{name}.{kind}", kind, one)


def response_format(name: str, value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the option that OpenAI's format means; a schema may stand in one of its own."""
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_schema":
        inner = value.get(kind, value)
        schema = inner.get("schema") if isinstance(inner, dict) else inner
        return option_of(f"{name}.schema", "json", schema)
    if kind != "json_object":
        raise ValueError(f"{name} has the type {quote(kind)}; use text, json_object or json_schema")
    return option_of(name, kind, True)


def option_of(name: str, kind: str, value: Any) -> dict[str, Any]:
    """Return the option for a grammar of vLLM's kinds."""
    if kind == "json" and (isinstance(value, dict) or is_text(value)):
        return {"json_schema": value}
    if kind == "regex" and isinstance(value, str):
        return {"regex": value}
    if kind == "grammar" and is_text(value):
        return {"grammar": value}
    if kind == "choice" and isinstance(value, list) and value and all(map(is_text, value)):
        return {"regex": "|".join(map(re.escape, value))}
    if kind == "json_object" and value is True:
        return {"regex": json_object()}
    if kind not in NOUNS:
        raise ValueError(f"{name}={quote(value)} is not supported; use {', '.join(NOUNS)}")
    raise ValueError(f"{name}={quote(value)} is not {NOUNS[kind]}; give one")


def is_text(value: Any) -> bool:
    """Tell whether a value is a text with something in it."""
    return isinstance(value, str) and bool(value)

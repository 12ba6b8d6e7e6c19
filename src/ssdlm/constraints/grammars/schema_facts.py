"""What a schema says, keyword by keyword, and what is said of a wrong one.  -> schema"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

from ssdlm.values import quote, shorten

ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
ANNOTATIONS |= {"$schema", "$id", "$comment", "$defs", "definitions", "$anchor"}
"""Keywords that ask nothing of a value."""
KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"pattern", "minLength", "maxLength", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set(),
    "null": set(),
}
"""What may be asked of a value of each type."""


def problem(place: str, what: str) -> ValueError:
    """Return the error about what is wrong at a place of a schema."""
    return ValueError(f"json_schema {place}: {what}")


def refuse_constant(word: str) -> None:
    """Raise on NaN and the infinities, which JSON has not."""
    raise problem("#", f"contains {word}, which is no JSON; use a number")


def read_real(text: str) -> float:
    """Return a number with a point or an exponent; raise on one that no float can hold."""
    if math.isinf(value := float(text)):
        raise problem("#", f"contains {shorten(text)}, which is too large; use a smaller number")
    return value


def first_of(schema: Mapping[str, Any]) -> str:
    """Return the first keyword that asks something."""
    return next(str(word) for word in schema if word not in ANNOTATIONS)


def refuse_others(schema: Mapping[str, Any], known: set[str], place: str) -> None:
    """Raise on keywords that ask for what is not done here."""
    others = {word: value for word, value in schema.items() if word not in known | ANNOTATIONS}
    for word, value in others.items():
        beside = "" if "type" in known else f" beside {first_of(schema)}"
        raise problem(place, f"{word}={quote(value)}{beside} is not supported; leave it out")


def given_types(schema: Mapping[str, Any], place: str) -> list[str]:
    """Return the types that a schema names, all of them where it names none."""
    types = schema.get("type", list(KEYWORDS))
    types = types if isinstance(types, list) else [types]
    for kind in types:
        if not isinstance(kind, str) or kind not in KEYWORDS:
            known = ", ".join(KEYWORDS)
            raise problem(place, f"type={quote(kind)} is unknown; use one of {known}")
    return types


def listed(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, None where it lists none."""
    if "const" in schema and "enum" not in schema:
        return [schema["const"]]
    values = schema.get("enum")
    if not isinstance(values, list) or "const" in schema:
        return None
    return values


def identity(value: Any) -> Hashable:
    """Return what two JSON values share if and only if they are equal: 1 and 1.0, not 1 and true.

    The order of names in an object does not count.
    """
    if isinstance(value, Mapping):
        return frozenset((name, identity(one)) for name, one in value.items())
    if isinstance(value, list):
        return tuple(map(identity, value))
    return isinstance(value, bool), value


def type_of(value: Any) -> set[str]:
    """Return the types of a JSON value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if value == math.floor(value) else {"number"}
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema allows, as far as it says so; integers are numbers."""
    values = listed(schema)
    if values is not None:
        return set().union(*map(type_of, values))
    types = schema.get("type", list(KEYWORDS))
    found = set(types if isinstance(types, list) else [types])
    return found | {"number", "integer"} if found & {"number"} else found


def bounds(
    schema: Mapping[str, Any], lowest: str, highest: str, place: str
) -> tuple[int, int | None]:
    """Return how many there are at least and at most."""
    low, high = schema.get(lowest, 0), schema.get(highest)
    for name in (lowest, highest):
        value = schema.get(name, 0)
        if type(value) is not int or value < 0:
            raise problem(place, f"{name}={quote(value)} is not a count; use 0 or more")
    if high is not None and low > high:
        raise problem(place, f"{lowest}={low} is more than {highest}={high}; swap them")
    return low, high

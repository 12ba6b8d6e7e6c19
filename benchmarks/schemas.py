"""Fifty JSON schemas of many kinds.  -> grammars"""

from __future__ import annotations

from typing import Any

STRING, WHOLE, NUMBER, TRUTH = ({"type": t} for t in ("string", "integer", "number", "boolean"))
FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4")
COLOURS = {"enum": ["red", "green", "blue"]}


def record(needed: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of an object; `needed` has the names of those that may not be absent."""
    return {
        "type": "object",
        "properties": properties,
        "required": needed.split(),
        "additionalProperties": False,
    }


def several(items: Any, **more: Any) -> dict[str, Any]:
    """Return the schema of an array."""
    return {"type": "array", "items": items, **more}


def text(**more: Any) -> dict[str, Any]:
    """Return the schema of a string."""
    return STRING | more


SCHEMAS: list[dict[str, Any]] = [
    STRING,
    WHOLE,
    NUMBER,
    TRUTH,
    {"type": "null"},
    {"type": ["string", "null"]},
    COLOURS,
    {"enum": [1, "one", None, True, [1], {"a": 1}]},
    {"const": {"b": [1, 2.5], "a": {}}},
    text(minLength=3, maxLength=9),
    text(pattern="^[A-Z][a-z]+$"),
    text(pattern="[0-9]{2}"),
    *(text(format=one) for one in FORMATS),
    WHOLE | {"minimum": 1, "maximum": 5},
    WHOLE | {"exclusiveMinimum": -3, "exclusiveMaximum": 1000},
    WHOLE | {"maximum": -17},
    NUMBER | {"minimum": 0, "maximum": 1},
    NUMBER | {"exclusiveMinimum": 0.5, "maximum": 3.25},
    several(WHOLE),
    several(TRUTH, minItems=2, maxItems=4),
    several(several(COLOURS, maxItems=3), maxItems=3),
    several(text(maxLength=8), minItems=1, maxItems=3),
    {"type": "array", "prefixItems": [STRING, WHOLE], "minItems": 2},
    {"type": "array", "prefixItems": [COLOURS], "items": WHOLE, "maxItems": 4},
    several({"anyOf": [WHOLE, text(maxLength=5)]}, maxItems=4),
    record("name", name=text(maxLength=20)),
    record("name age", name=text(minLength=1, maxLength=12), age=WHOLE | {"minimum": 0}),
    record("title stars", title=text(maxLength=30), stars={"enum": [1, 2, 3, 4, 5]}),
    record("a", a=TRUTH, b=WHOLE, c=text(maxLength=6)),
    record("", a=TRUTH, b=WHOLE, c=text(maxLength=6)),
    record("id tags", id=text(format="uuid"), tags=several(COLOURS, maxItems=3)),
    record("from to", **{"from": text(format="email"), "to": text(format="email")}),
    record("when where", when=text(format="date-time"), where=text(maxLength=15)),
    record("x y", x=NUMBER | {"minimum": -1, "maximum": 1}, y=NUMBER | {"minimum": 0}),
    record("point", point=record("x y", x=WHOLE | {"maximum": 99}, y=WHOLE | {"maximum": 99})),
    record("items", items=several(record("n", n=WHOLE | {"minimum": 1, "maximum": 9}), maxItems=3)),
    record("value", value={"anyOf": [TRUTH, {"type": "null"}, record("v", v=COLOURS)]}),
    record("kind", kind={"const": "a"}, note=text(maxLength=10)),
    {"anyOf": [record("a", a=WHOLE), record("b", b=TRUTH)]},
    {"oneOf": [record("k a", k={"const": 1}, a=TRUTH), record("k b", k={"const": 2}, b=WHOLE)]},
    {"oneOf": [STRING | {"maxLength": 4}, WHOLE]},
    record("one two", one={"$ref": "#/$defs/c"}, two={"$ref": "#/$defs/c"})
    | {"$defs": {"c": COLOURS}},
    several(record("name", name=text(maxLength=9), age=WHOLE | {"maximum": 120}), maxItems=2),
    record("answer why", answer={"enum": ["yes", "no"]}, why=text(maxLength=40)),
    record("r g b", **{one: WHOLE | {"minimum": 0, "maximum": 255} for one in "rgb"}),
]

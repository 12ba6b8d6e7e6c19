"""Texts of a JSON schema are JSON and follow it; what cannot be done is refused by its place."""

import json
import math
import random
import re

import pytest
from tests.constraints.grammars.machines import accepts, random_texts

from ssdlm.constraints.grammars.json_strings import FORMATS
from ssdlm.constraints.grammars.schema import read_schema
from ssdlm.constraints.grammars.utf8 import ByteMachine, byte_machine

PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["a", "b\"'", 1]}, "maxItems": 3},
        "place": {"$ref": "#/$defs/place"},
        "married": {"type": ["boolean", "null"]},
    },
    "required": ["age", "place"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number", "minimum": -1, "exclusiveMaximum": 2}},
            "required": ["x"],
        }
    },
}
SCHEMAS = {
    "person": PERSON,
    "string": {"type": "string"},
    "length": {"type": "string", "minLength": 2, "maxLength": 3},
    "found": {"type": "string", "pattern": "[0-9]"},
    "anchored": {"type": "string", "pattern": '^["\\\\a-c]{1,4}$'},
    "either end": {"type": "string", "pattern": "^a|b$"},
    "integer": {"type": "integer"},
    "negative": {"type": "integer", "exclusiveMaximum": 0},
    "one bound": {"type": "integer", "minimum": 17},
    "number": {"type": "number"},
    "fractions": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 3.5},
    "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
    "lists": {"type": "array", "items": {"type": "array", "items": {"type": "null"}}},
    "pair": {"type": "array", "prefixItems": [{"const": 1}, {"const": None}], "minItems": 1},
    "head": {
        "type": "array",
        "prefixItems": [{"const": 1}],
        "items": {"const": "x"},
        "maxItems": 3,
    },
    "const": {"const": {"b": [1, 2.5, "\u00e9"], "a": {}}},
    "empty": {"type": "object", "properties": {}},
    "any": {"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "string", "maxLength": 2}]},
    "one": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]},
    "tagged": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "n": {"type": "integer"}},
                "required": ["kind"],
            }
            for kind in ("cat", "dog")
        ]
    },
    "between": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "narrow": {"type": "number", "exclusiveMinimum": 0.2, "exclusiveMaximum": 0.7},
    "below": {"type": "number", "minimum": -1, "exclusiveMaximum": 0},
    "hundred": {"type": "number", "minimum": 0, "exclusiveMaximum": 100},
    "optional": {"type": "object", "properties": {n: {"type": "null"} for n in ("a", "b", "c")}},
    "typed values": {"type": "string", "enum": ["a", 1, "b"]},
} | {name: {"type": "string", "format": name} for name in FORMATS}


def machine_of(schema) -> ByteMachine:
    return byte_machine(read_schema(json.dumps(schema)))


def is_valid(value, schema, root) -> bool:
    """Whether a value follows a schema, by a reader of our own that knows nothing of machines."""
    if "$ref" in schema:
        assert schema["$ref"] == "#/$defs/place"
        return is_valid(value, root["$defs"]["place"], root)
    if "anyOf" in schema:
        return any(is_valid(value, one, root) for one in schema["anyOf"])
    if "oneOf" in schema:
        return [is_valid(value, one, root) for one in schema["oneOf"]].count(True) == 1
    if "const" in schema:
        return is_same(value, schema["const"])
    if "enum" in schema and not any(is_same(value, one) for one in schema["enum"]):
        return False
    types = schema.get("type", [])
    types = types if isinstance(types, list) else [types]
    if types and not any(is_of_type(value, name) for name in types):
        return False
    return all(CHECKS[word](value, wanted, schema, root) for word, wanted in schema.items())


def is_same(one, other) -> bool:
    """Whether two values are equal as JSON schemas have it: 1 is 1.0, and true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[n], other[n]) for n in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def is_of_type(value, name) -> bool:
    kinds = {"string": str, "object": dict, "array": list, "boolean": bool, "null": type(None)}
    if name in kinds:
        return isinstance(value, kinds[name])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (name == "number" or value == int(value))


def anything(value, wanted, schema, root) -> bool:
    return True


CHECKS = {word: anything for word in ("$schema", "title", "type", "$defs", "enum", "format")}
CHECKS |= {
    "minLength": lambda v, n, s, r: len(v) >= n,
    "maxLength": lambda v, n, s, r: len(v) <= n,
    "pattern": lambda v, p, s, r: re.search(p, v) is not None,
    "minimum": lambda v, n, s, r: v >= n,
    "maximum": lambda v, n, s, r: v <= n,
    "exclusiveMinimum": lambda v, n, s, r: v > n,
    "exclusiveMaximum": lambda v, n, s, r: v < n,
    "minItems": lambda v, n, s, r: len(v) >= n,
    "maxItems": lambda v, n, s, r: len(v) <= n,
    "prefixItems": lambda v, o, s, r: all(is_valid(a, b, r) for a, b in zip(v, o, strict=False)),
    "items": lambda v, o, s, r: all(is_valid(a, o, r) for a in v[len(s.get("prefixItems", [])) :]),
    "properties": lambda v, o, s, r: all(is_valid(v[n], o[n], r) for n in v if n in o),
    "required": lambda v, names, s, r: all(name in v for name in names),
    "additionalProperties": lambda v, o, s, r: o is not False or not set(v) - set(s["properties"]),
}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0, -0.0),
        (100, 1e2),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, {"a": [0], "b": None}], [1.0, {"b": None, "a": [-0.0]}]),
    ],
)
def test_values_that_json_holds_equal_are_not_two_options(one, other):
    for options in ([{"const": one}, {"const": other}], [{"enum": [one, "x"]}, {"enum": [other]}]):
        with pytest.raises(ValueError, match="one value might fit both"):
            machine_of({"oneOf": options})
        tagged = [{"type": "object", "properties": {"a": o}, "required": ["a"]} for o in options]
        with pytest.raises(ValueError, match="one value might fit both"):
            machine_of({"oneOf": tagged})


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0, False), ([1], [True]), ([], {}), ("1", 1), (None, False)]
)
def test_values_that_json_holds_apart_are_two_options(one, other):
    machine = machine_of({"oneOf": [{"const": one}, {"const": other}]})
    assert accepts(machine, json.dumps(one)) and accepts(machine, json.dumps(other))


def test_numbers_lie_between_their_limits_and_none_is_left_out():
    rng = random.Random(0)
    names = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]
    limits = [0, 0.5, 1, -1, 0.1, 0.25, 100, -3.75, 1e-5, 1e15, 0.30000000000000004, -12.5]
    candidates = [
        "0",
        "0.5",
        "-0.5",
        "0.1",
        "0.3",
        "0.05",
        "1",
        "1.0",
        "-3.75",
        "99.9",
        "-1.0",
        "7",
    ]
    written = 0
    for _ in range(8):
        schema = {name: rng.choice(limits) for name in names if rng.random() < 0.5}
        schema |= {"type": "number"}
        expected = [one for one in candidates if is_valid(json.loads(one), schema, schema)]
        try:
            machine = machine_of(schema)
        except ValueError:
            assert not expected, schema
            continue
        assert [one for one in candidates if accepts(machine, one)] == expected, schema
        for number in random_texts(machine, rng, 20):
            assert is_valid(json.loads(number), schema, schema), (schema, number)
            written += 1
    assert written > 60


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_it_writes_is_json_and_follows_the_schema(name):
    schema, rng = SCHEMAS[name], random.Random(0)
    machine = machine_of(schema)
    texts = random_texts(machine, rng, 80)
    for text in texts:
        assert is_valid(json.loads(text), schema, schema), text
    assert len(set(texts)) > 1 or name in ("const", "empty")


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("person", ['{"age": 7, "place": {"x": 1.99}}'], ['{"place": {"x": 0}, "age": 7}']),
        ("length", ['"ab"', '"\\"\\n"', '"\u65e5\u672c\u8a9e"'], ['"a"', '"abcd"', "ab", '"a\n"']),
        ("found", ['"a1b"', '"7"', '"\\n8"'], ['"ab"', '""']),
        ("anchored", ['"\\"\\\\a"'], ['"d"', '"\\"\\\\abc"', '"ab\\n"']),
        ("either end", ['"axyz"', '"xyzb"'], ['"xyz"', '"ba"']),
        ("negative", ["-1", "-999999999999999"], ["0", "-0", "1", "-01"]),
        ("one bound", ["17", "999999999999999"], ["16", "-17", "017"]),
        ("fractions", ["1", "1.0", "2.999", "3"], ["0.5", "3.6", "0", "1e0", "1."]),
        ("between", ["0.5", "0.000001", "0.99"], ["0", "0.0", "-0.5", "-0.0", "1", "1.0", "0.5e1"]),
        ("narrow", ["0.21", "0.6999", "0.3"], ["0.2", "0.20", "0.7", "0", "1"]),
        ("below", ["-0.5", "-1", "-1.0"], ["-0.0", "0", "-1.5", "0.5"]),
        ("hundred", ["99.9999", "99.9999999999999"], ["100", "100.0", "99.999999999999999"]),
        ("list", ["[true, false]"], ["[true]", "[]", "[true,false]", "[true, false, ]"]),
        ("pair", ["[1]", "[1, null]"], ["[]", "[null]", "[1, null, 1]"]),
        ("head", ["[]", "[1]", '[1, "x"]', '[1, "x", "x"]'], ['["x"]', '[1, "x", "x", "x"]']),
        ("const", ['{"b": [1, 2.5, "\u00e9"], "a": {}}'], ["{}"]),
        ("empty", ["{}"], ["{ }"]),
        ("optional", ["{}", '{"b": null}', '{"a": null, "c": null}'], ['{"c": null, "a": null}']),
        ("typed values", ['"a"', '"b"'], ["1"]),
    ],
)
def test_which_texts_it_accepts(name, yes, no):
    machine = machine_of(SCHEMAS[name])
    assert [accepts(machine, text) for text in yes] == [True] * len(yes)
    assert [accepts(machine, text) for text in no] == [False] * len(no)


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
DOUBLING = {str(n): {"type": "array", "prefixItems": [{"$ref": f"#/$defs/{n + 1}"}] * 2}
            for n in range(20)}  # fmt: skip
DEEP = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}]} for n in range(60)}
MANY = {"type": "object", "properties": {str(n): {"type": "null"} for n in range(2000)}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, "refers to itself"),
        ({"$ref": "#"}, "refers to itself"),
        ({"$ref": "https://example.com/schema.json"}, "is elsewhere"),
        ({"$ref": "other.json#/x"}, "is elsewhere"),
        ({"$ref": "#/$defs/none"}, "is not there"),
        ({}, "says nothing of its value"),
        ({"type": "array", "items": {"title": "x"}}, "#/items: {'title': 'x'} says nothing"),
        ({"type": "text"}, "type='text' is unknown"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf=3 is not supported"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "uniqueItems=True"),
        ({"type": "object", "patternProperties": {}}, "patternProperties={} is not supported"),
        ({"not": {"type": "null"}}, "has no type, but not"),
        ({"allOf": [{"type": "null"}, {"type": "null"}]}, "allOf of several"),
        ({"anyOf": [{"type": "null"}], "type": "null"}, "type='null' beside anyOf"),
        ({"anyOf": []}, "is not a list of schemas"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "one value might fit both"),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, "one value might fit both"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no number"),
        ({"type": "integer", "minimum": "3"}, "minimum='3' is not a number"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength=3 is more than"),
        ({"type": "string", "maxLength": -1}, "maxLength=-1 is not a count"),
        ({"type": "string", "pattern": "(?=a)"}, "contains a lookahead"),
        ({"type": "string", "pattern": "("}, "does not compile"),
        ({"type": "string", "pattern": "a^b"}, "in the middle"),
        ({"type": "string", "pattern": "a", "minLength": 3}, "beside another limit"),
        ({"type": "string", "format": "regex"}, "format='regex' is unknown"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required='a' is not among"),
        ({"type": "object", "additionalProperties": {"type": "null"}}, "leave the names open"),
        ({"type": "array", "minItems": 1}, "minItems=1 is more than it can have"),
        ({"type": "string", "enum": [1]}, "has no value of its type"),
        ({"enum": []}, "enum=[] is no list of values"),
        ({"$ref": "#/$defs/0", "$defs": DOUBLING | {"20": {"type": "null"}}}, "more than 5000"),
        ({"$ref": "#node"}, "$ref='#node' is no place in this file"),
        ({"type": "integer", "minimum": math.inf}, "contains Infinity, which is no JSON"),
        ({"type": "number", "maximum": math.nan}, "contains NaN"),
        ({"const": -math.inf}, "contains -Infinity"),
        ({"type": {"a": 1}, "enum": [1]}, "type={'a': 1} is unknown"),
        ({"oneOf": [{"type": [["null"]]}, {"type": "null"}]}, "type=['null'] is unknown"),
        ({"type": "object", "required": [["a"]]}, "required=['a'] is not among"),
        ({"oneOf": [{"type": "object", "required": 5}] * 2}, "required is not a list"),
        ({"oneOf": [{"type": "object", "properties": 5}] * 2}, "properties are not an object"),
        ({"type": "array", "minItems": None}, "minItems=None is not a count"),
        (MANY, "has too many properties (2000)"),
        ({"$ref": "#/$defs/0", "$defs": DEEP | {"60": {"type": "null"}}}, "is nested too deep"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_place(schema, words, unchecked):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        machine_of(schema)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("json_schema #")


@pytest.mark.parametrize("schema", ['{"const": 1e400}', '{"enum": [-1e999]}', '{"maximum": 1e400}'])
def test_a_number_that_no_float_can_hold_is_refused(schema):
    with pytest.raises(ValueError, match=r"contains -?1e\d+, which is too large"):
        read_schema(schema)

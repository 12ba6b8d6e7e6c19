"""From a JSON schema to what its texts are made of.  json_schema -> [schema] -> expression

Texts are written as `json.dumps` writes them: properties in the schema's order, one space after a
comma or colon. That is one way to write each value, and no number has an exponent. What a regular
language cannot say (recursion) and what is not known here is refused by its place and name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import combinations
from typing import Any

from ssdlm.constraints.grammars import numerals
from ssdlm.constraints.grammars.expression import EMPTY, Chain, Either, Expression, Repeat, text
from ssdlm.constraints.grammars.json_strings import FORMATS, USUAL_CHARACTER, escaped, unanchored
from ssdlm.constraints.grammars.pattern import read_pattern
from ssdlm.constraints.grammars.schema_facts import (
    ANNOTATIONS,
    KEYWORDS,
    bounds,
    first_of,
    given_types,
    identity,
    listed,
    problem,
    read_real,
    refuse_constant,
    refuse_others,
    type_of,
    types_of,
)
from ssdlm.values import DEEPEST, quote

MOST_SCHEMAS = 5000
"""Schemas within one, each counted as often as it is referred to."""
MOST_PROPERTIES = 1000
"""Of one object."""


def read_schema(source: str, *, is_narrow: bool = False) -> Expression:
    """Return the expression of texts that follow a schema, given as JSON."""
    root = json.loads(source, parse_constant=refuse_constant, parse_float=read_real)
    return SchemaReader(root, is_narrow).read(root, "#")


@dataclass
class SchemaReader:
    """Reads the schemas within one."""

    root: Any
    is_narrow: bool
    open_refs: list[str] = field(default_factory=list)
    """References that are being followed."""
    count: int = 0
    level: int = 0

    def read(self, schema: Any, place: str) -> Expression:
        """Return the expression of the values that a schema allows."""
        self.count += 1
        self.level += 1
        if self.count > MOST_SCHEMAS:
            raise problem(place, f"comes to more than {MOST_SCHEMAS} schemas; make it simpler")
        if self.level > DEEPEST:
            raise problem("#", f"is nested too deep, more than {DEEPEST} schemas; make it simpler")
        found = self.read_one(schema, place)
        self.level -= 1
        return found

    def read_one(self, schema: Any, place: str) -> Expression:
        """Return the expression of the values of a schema that is neither too deep nor too many."""
        if not isinstance(schema, Mapping) or not set(schema) - ANNOTATIONS:
            raise problem(place, f"{quote(schema)} says nothing of its value; give it a type")
        for word, reader in (
            ("$ref", self.read_ref),
            ("anyOf", self.read_options),
            ("oneOf", self.read_options),
            ("allOf", self.read_options),
            ("enum", self.read_values),
            ("const", self.read_values),
        ):
            if word in schema:
                return reader(schema, word, place)
        if "type" not in schema:
            raise problem(place, f"has no type, but {first_of(schema)}; give it one")
        types = given_types(schema, place)
        known = set().union(*(KEYWORDS[kind] for kind in types))
        refuse_others(schema, {"type", *known}, place)
        return Either(tuple(self.read_type(schema, kind, place) for kind in types))

    def read_type(self, schema: Mapping[str, Any], kind: str, place: str) -> Expression:
        """Return the expression of the values of one type."""
        if kind == "object":
            return self.read_object(schema, place)
        if kind == "array":
            return self.read_array(schema, place)
        if kind == "string":
            return self.read_string(schema, place)
        if kind in ("integer", "number"):
            return read_number(schema, place, is_whole=kind == "integer")
        if kind == "boolean":
            return Either((text("true"), text("false")))
        return text("null")

    def read_ref(self, schema: Mapping[str, Any], word: str, place: str) -> Expression:
        """Return the expression of a schema that is referred to."""
        refuse_others(schema, {word}, place)
        name = schema[word]
        if not isinstance(name, str) or not name.startswith("#"):
            raise problem(
                place, f"$ref={quote(name)} is elsewhere; only # of this file is followed"
            )
        if name[1:] and not name.startswith("#/"):
            raise problem(place, f"$ref={quote(name)} is no place in this file; write it as #/...")
        if name in self.open_refs:
            raise problem(
                place, f"$ref={quote(name)} refers to itself, which no regular language can; "
                "write out as many levels as you need"
            )  # fmt: skip
        self.open_refs.append(name)
        found = self.read(self.find(name, place), name)
        self.open_refs.pop()
        return found

    def find(self, name: str, place: str) -> Any:
        """Return what a reference within the file points to."""
        here = self.root
        for part in name.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            is_index = isinstance(here, list) and part.isdecimal() and int(part) < len(here)
            if not is_index and not (isinstance(here, Mapping) and part in here):
                raise problem(place, f"$ref={quote(name)} is not there; correct it")
            here = here[int(part)] if isinstance(here, list) else here[part]
        return here

    def read_options(self, schema: Mapping[str, Any], word: str, place: str) -> Expression:
        """Return the expression of a choice between schemas."""
        refuse_others(schema, {word}, place)
        options = schema[word]
        if not isinstance(options, list) or not options:
            raise problem(place, f"{word}={quote(options)} is not a list of schemas; give some")
        if word == "allOf" and len(options) > 1:
            raise problem(place, "allOf of several schemas is not supported; write them as one")
        found = Either(
            tuple(self.read(one, f"{place}/{word}/{n}") for n, one in enumerate(options))
        )
        if word == "oneOf":
            for one, other in combinations(options, 2):
                if not self.are_apart(one, other):
                    raise problem(
                        place, "oneOf has options that one value might fit both of; use anyOf, or "
                        "give them different types or a const that differs"
                    )  # fmt: skip
        return found

    def are_apart(self, one: Any, other: Any) -> bool:
        """Tell whether it is plain that no value fits both of two schemas."""
        one, other = self.resolved(one), self.resolved(other)
        values = listed(one), listed(other)
        if all(found is not None for found in values):
            return not set(map(identity, values[0] or ())) & set(map(identity, values[1] or ()))
        if not types_of(one) & types_of(other):
            return True
        if types_of(one) | types_of(other) != {"object"}:
            return False
        shared = set(one.get("required", ())) & set(other.get("required", ()))
        pairs = [(one.get("properties", {}), other.get("properties", {}))]
        return any(
            name in a and name in b and self.are_apart(a[name], b[name])
            for a, b in pairs
            for name in shared
        )

    def resolved(self, schema: Any) -> Any:
        """Return a schema, or the one that it refers to."""
        seen: list[str] = []
        while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
            if schema["$ref"] in seen:
                return {}
            seen.append(schema["$ref"])
            schema = self.find(schema["$ref"], "#")
        return schema if isinstance(schema, Mapping) else {}

    def read_values(self, schema: Mapping[str, Any], word: str, place: str) -> Expression:
        """Return the expression of the values that are listed."""
        refuse_others(schema, {"enum", "const", "type"}, place)
        values = listed(schema)
        if not values:
            raise problem(place, f"{word}={quote(schema[word])} is no list of values; give some")
        types = types_of({"type": given_types(schema, place)})
        values = [one for one in values if type_of(one) & types]
        if not values:
            raise problem(place, f"{word}={quote(schema[word])} has no value of its type; give one")
        return Either(tuple(text(json.dumps(one, ensure_ascii=False)) for one in values))

    def read_object(self, schema: Mapping[str, Any], place: str) -> Expression:
        """Return the expression of objects with their properties in order."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise problem(place, "properties are not an object, or required is not a list")
        if len(properties) > MOST_PROPERTIES:
            count = len(properties)
            raise problem(place, f"has too many properties ({count}); give {MOST_PROPERTIES}")
        for name in required:
            if not isinstance(name, str) or name not in properties:
                raise problem(place, f"required={quote(name)} is not among the properties; add it")
        if not properties and isinstance(schema.get("additionalProperties"), Mapping):
            raise problem(place, "additionalProperties leave the names open; give properties")
        parts = [
            (
                Chain((text(f"{json.dumps(name, ensure_ascii=False)}: "), self.read(one, there))),
                name in required,
            )
            for name, one in properties.items()
            for there in [f"{place}/properties/{name}"]
        ]
        return Chain((text("{"), members(parts), text("}")))

    def read_array(self, schema: Mapping[str, Any], place: str) -> Expression:
        """Return the expression of lists."""
        low, high = bounds(schema, "minItems", "maxItems", place)
        heads = schema.get("prefixItems", [])
        if not isinstance(heads, list):
            raise problem(place, f"prefixItems={quote(heads)} is not a list; give one")
        first = [self.read(one, f"{place}/prefixItems/{n}") for n, one in enumerate(heads)]
        items = schema.get("items", False)
        tail = None if items in (False, True) else self.read(items, f"{place}/items")
        if tail is None:
            high = len(first) if high is None else min(high, len(first))
        if high is not None and low > high:
            raise problem(place, f"minItems={low} is more than it can have; give it items")
        comma = text(", ")
        parts = [(one, number < low) for number, one in enumerate(first[:high])]
        if tail is None or (high is not None and high <= len(first)):
            return Chain((text("["), in_order(parts), text("]")))
        least, most = max(0, low - len(first)), None if high is None else high - len(first)
        if first:
            rest = Repeat(Chain((comma, tail)), least, most)
            # Items come after all that stand before them.
            whole = Chain((joined([one for one, _ in parts]), rest))
            fewer = in_order(parts[:-1]) if low < len(first) else None
            body = Either((whole, fewer)) if fewer is not None else whole
        else:
            more = Repeat(
                Chain((comma, tail)), max(0, least - 1), None if most is None else most - 1
            )
            body = Chain((tail, more))
            body = body if least else Repeat(body, 0, 1)
        return Chain((text("["), body, text("]")))

    def read_string(self, schema: Mapping[str, Any], place: str) -> Expression:
        """Return the expression of strings in quotes."""
        low, high = bounds(schema, "minLength", "maxLength", place)
        forms = [word for word in ("pattern", "format") if word in schema]
        if forms and ({"minLength", "maxLength"} & set(schema) or len(forms) > 1):
            raise problem(place, f"{forms[0]} beside another limit is not supported; use one")
        if not forms:
            return Chain((text('"'), Repeat(USUAL_CHARACTER, low, high), text('"')))
        name, value = forms[0], schema[forms[0]]
        if not isinstance(value, str) or (name == "format" and value not in FORMATS):
            raise problem(
                place, f"{name}={quote(value)} is unknown; there are {', '.join(FORMATS)}"
            )
        pattern = f"^(?:{FORMATS[value]})$" if name == "format" else value
        found = read_pattern(pattern, is_narrow=self.is_narrow, name=f"json_schema {place} pattern")
        inside = escaped(unanchored(found, f"{place}/pattern"))
        return Chain((text('"'), inside, text('"')))


def read_number(schema: Mapping[str, Any], place: str, *, is_whole: bool) -> Expression:
    """Return the expression of numbers within their limits."""
    for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise problem(place, f"{name}={quote(value)} is not a number; use one")
    low = max(limit(schema, "minimum", -math.inf), limit(schema, "exclusiveMinimum", -math.inf))
    high = numerals.lower(
        limit(schema, "maximum", math.inf), limit(schema, "exclusiveMaximum", math.inf)
    )
    found = numerals.integers(low, high) if is_whole else numerals.decimals(low, high)
    if found is None:
        raise problem(place, "no number that can be written is within its limits; widen them")
    return found


def limit(schema: Mapping[str, Any], name: str, default: float) -> numerals.Limit:
    """Return a limit of numbers as its shortest decimal, which is how it was written."""
    return numerals.Limit(Decimal(repr(schema.get(name, default))), name.startswith("exclusive"))


def joined(parts: Sequence[Expression]) -> Expression:
    """Return parts one after another, with commas between them."""
    found: list[Expression] = []
    for part in parts:
        found += [text(", "), part] if found else [part]
    return Chain(tuple(found))


def in_order(parts: Sequence[tuple[Expression, bool]]) -> Expression:
    """Return the first parts, with commas, at least as many as are required."""
    counts = [n for n in range(len(parts) + 1) if not any(needed for _, needed in parts[n:])]
    return Either(tuple(joined([part for part, _ in parts[:count]]) for count in counts))


def members(parts: Sequence[tuple[Expression, bool]]) -> Expression:
    """Return parts in order with commas between them; those that are not required may be absent."""
    after = [Chain((text(", "), part)) for part, _ in parts]
    later = [
        one if is_required else Repeat(one, 0, 1)
        for one, (_, is_required) in zip(after, parts, strict=True)
    ]
    options: list[Expression] = []
    for number, (first, is_required) in enumerate(parts, start=1):
        options.append(Chain((first, *later[number:])))
        if is_required:
            return Either(tuple(options))
    return Either((*options, EMPTY))

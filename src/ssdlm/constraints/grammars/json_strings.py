"""Strings as JSON spells them.  pattern -> [json_strings] -> schema"""

from __future__ import annotations

import json

from ssdlm.constraints.grammars.expression import (
    Anchor,
    Chain,
    Chars,
    Either,
    Expression,
    Repeat,
    complement,
    merged,
    text,
    walk,
    within,
)
from ssdlm.constraints.grammars.schema_facts import problem

FORMATS = {
    "date": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])",
    "time": r"([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ",
    "date-time": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ",
    "email": r"[a-z0-9]+([._-][a-z0-9]+)*@[a-z0-9]+(-[a-z0-9]+)*(\.[a-z]{2,6})+",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)",
}
"""Strings of a named form: some of them, which every reader takes. No month has a 29th day here."""

EVERY = ((0, 0x10FFFF),)
ESCAPES = {code: json.dumps(chr(code))[1:-1] for code in (*range(0x20), ord('"'), ord("\\"))}
"""The characters that a JSON string has in another spelling."""
BARE = complement(merged((code, code) for code in ESCAPES))
USUAL_CHARACTER = Either((Chars(BARE), text('\\"'), text("\\\\"), text("\\n")))
"""A character of a string of which nothing is asked."""


def unanchored(found: Expression, place: str) -> Expression:
    """Return what stands in a string in which a pattern is found, as JSON schemas mean it."""
    if isinstance(found, Either):
        return Either(tuple(unanchored(option, place) for option in found.options))
    parts = list(found.parts) if isinstance(found, Chain) else [found]
    anything = Repeat(Chars(EVERY))
    is_start = bool(parts) and parts[0] is Anchor.START
    is_end = bool(parts) and parts[-1] in (Anchor.END, Anchor.LAST_LINE_END)
    parts = parts[is_start : len(parts) - is_end]
    if any(isinstance(part, Anchor) for part in walk(Chain(tuple(parts)))):
        raise problem(place, "has ^ or $ in the middle, which is not supported; write it without")
    return Chain((*([] if is_start else [anything]), *parts, *([] if is_end else [anything])))


def escaped(part: Expression) -> Expression:
    """Return an expression with the characters spelled as a JSON string has them."""
    if isinstance(part, Chars):
        spelled = [
            text(ESCAPES[code])
            for low, high in part.ranges
            for code in ESCAPES
            if low <= code <= high
        ]
        return Either((Chars(within(part.ranges, BARE)), *spelled))
    if isinstance(part, Chain):
        return Chain(tuple(map(escaped, part.parts)))
    if isinstance(part, Either):
        return Either(tuple(map(escaped, part.options)))
    return Repeat(escaped(part.part), part.low, part.high) if isinstance(part, Repeat) else part

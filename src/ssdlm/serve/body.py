"""The body of a request: received within its bounds, and parsed strictly.  app -> [body]"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from ssdlm.serve.errors import ApiError
from ssdlm.serve.limits import Limits
from ssdlm.storage.files import JsonError, parse_object
from ssdlm.tokenizer import is_utf8
from ssdlm.values import quote

JSON = "application/json"
PATIENCE = 16
"""A body is much too long if it is longer than so many that are allowed."""
MOST_CONTAINERS = 20_000
"""Lists and objects of a body. While many are made, Python looks for garbage and nothing runs."""
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""One that is never closed goes on to the end; sought in vain, it would be so from every quote."""


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body that a client sent, or raise an ApiError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:  # what a page of another site may send without asking is of other types
        raise ApiError(415, f"content-type {quote(kind)} is not {JSON}; set that header")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        raise ApiError(415, f"content-encoding {quote(packed)} is not read; send the body as it is")
    try:
        return await asyncio.wait_for(read(request, limits.max_body), limits.body_seconds)
    except TimeoutError:
        message = f"the body did not come within {limits.body_seconds:g} seconds; send it at once"
        raise ApiError(408, message, headers={"connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, "the body was broken off; send all of it") from None


async def read(request: Request, most: int) -> bytes:
    """Return the bytes of a body that is not too long.

    One that is somewhat too long is read and forgotten: many clients listen only after they have
    sent all. Of one that is much too long the rest is not read.
    """
    declared = request.headers.get("content-length", "")
    parts, size = [], int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    if size <= PATIENCE * most:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size <= most:
                parts.append(part)
            elif size > PATIENCE * most:
                break
    if size > most:
        message = f"the body has more than the {most} bytes that this server takes; shorten it"
        raise ApiError(413, message, headers={"connection": "close"})
    return b"".join(parts)


def parse(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; strings with halves of characters are refused."""
    if num_containers(raw) > MOST_CONTAINERS:
        raise ApiError(
            400,
            f"the body has more than {MOST_CONTAINERS} lists and objects, too many or too deep for "
            "this server; send fewer",
        )
    try:
        body = parse_object(raw, where="the body", remedy="send a JSON object", is_strict=True)
    except JsonError as error:
        raise ApiError(400, error) from None
    if b"\\ud" in raw.lower():
        for name, value in body.items():
            if not all(map(is_utf8, [name, *strings_in(value)])):
                raise ApiError(400, f"{quote(name)} is not UTF-8; send whole characters")
    return body


def num_containers(raw: bytes) -> int:
    """Return how many lists and objects begin in a body, at the most."""
    count = raw.count(b"[") + raw.count(b"{")
    return count if count <= MOST_CONTAINERS else sum(map(STRING.sub(b"", raw).count, b"[{"))


def strings_in(value: Any) -> list[str]:
    """Return all strings in a JSON value, names of fields included."""
    found, inner = [], [value]
    while inner:
        one = inner.pop()
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, dict):
            inner += [*one, *one.values()]
        elif isinstance(one, list):
            inner += one
    return found

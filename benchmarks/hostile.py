"""Requests that no server should follow: malformed, oversized, nested, slow, or simply wrong.

[hostile] -> serve.py fuzz. Every one of them is to be answered 4xx, or its connection closed; a few
of `ODD` mean something, and are answered.
"""

from __future__ import annotations

import json
import random
import string
from typing import Any

from ssdlm.options import all_names
from ssdlm.serve import chat, completions, native, responses, rewriting

CHAT, RESPONSES, REWRITE = "/v1/chat/completions", "/v1/responses", "/v1/rewrite"
PATHS = ("/v1/completions", "/v1/generate", "/v1/explain", CHAT, RESPONSES, REWRITE)
SAID = {CHAT: b'"messages": [{"role": "user", "content": "a"}]', RESPONSES: b'"input": "a"'}
SAID |= {REWRITE: b'"text": "a b", "spans": [[1, 3]]'}
"""What a prompt is elsewhere."""
OWN_FIELDS = {
    CHAT: chat.OWN_FIELDS,
    RESPONSES: responses.OWN_FIELDS,
    REWRITE: rewriting.OWN_FIELDS,
    "/v1/completions": completions.OWN_FIELDS,
}
ODD = ("null", "true", "false", "0", "-0.0", "-1", "1", "1.5", "1e999", "-1e999", "1e-400")
ODD += ("9" * 400, "-" + "9" * 5000, "18446744073709551616", '""', '" "', '"1"', '"\\u0000"')
ODD += (
    '"\\ud800"',
    '"../../etc/passwd"',
    '"%00"',
    '"a\\nb"',
    '"' + "a" * 70_000 + '"',
    "[]",
    "[[]]",
)
ODD += ("[null]", "[true]", "[-1]", "[1e999]", '["a", 1]', "[{}]", "{}", '{"a": 1}', '{"0": 1e999}')
ODD += ('{"-1": 1}', '{"99999999": 1}', '{"5": 1, "05": 2}', '{"type": null}', '{"type": "text"}')
ODD += ('["a"' + ', "a"' * 2000 + "]", "[1" + ", 1" * 2000 + "]", "[" * 99 + "]" * 99)
ODD += ('{"a": ' * 98 + "1" + "}" * 98, "[" * 950 + "]" * 950)
"""Values of other kinds, and numbers, texts and depths at the borders."""
SHORT = {"/v1/completions": "max_tokens", CHAT: "max_completion_tokens"}
SHORT |= {RESPONSES: "max_output_tokens", REWRITE: "alternatives"}
"""What bounds the work of those that mean something."""
NUMBERS = ("length", "T", "seed", "best_of", "width", "rho", "top_p", "temperature")
WRONG: tuple[Any, ...] = ("x", "", [], {}, [[]], {"a": 1}, True, -1, 1e308, -1e308, 10**400, "5")
WORDS = ("stop", "must", "must_not", "control", "suffix", "pin", "grid", "mode", "projection")


def request(method: str, path: str, body: bytes, **headers: str) -> bytes:
    """Return a request as it goes over a connection, which ends with it."""
    named = {"host": "localhost", "content-type": "application/json", "connection": "close"}
    named |= {"content-length": str(len(body))} | headers
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def post(rng: random.Random, body: bytes, **headers: str) -> bytes:
    """Return a request for texts with some body."""
    path = rng.choice(PATHS)
    said = b'"prompt": "a"'
    return request("POST", path, body.replace(said, SAID.get(path, said)), **headers)


def wrong_number(rng: random.Random) -> bytes:
    """A number that is none, or far out of its range."""
    # Every name with every value is refused, but for a few that mean something.
    allowed = {("width", 1e308), ("seed", 10**400)}
    name, value = rng.choice(NUMBERS), rng.choice([v for v in WRONG if v != -1 or v is True])
    value = "x" if (name, str(value)) in {(n, str(v)) for n, v in allowed} else value
    return post(rng, json.dumps({"prompt": "a", name: value}).encode())


def wrong_words(rng: random.Random) -> bytes:
    """Words of the wrong kind: numbers, objects, lists of lists."""
    name = rng.choice(WORDS)
    value = rng.choice([5, -1.5, True, [5], [None], {"x": 1}, {"a": {"b": []}}])
    return post(rng, json.dumps({"prompt": "a", name: value}).encode())


def wrong_prompt(rng: random.Random) -> bytes:
    """A prompt that is none."""
    value = rng.choice([5, True, [], [[]], {}, [1.5], [-1], [10**9], ["a", 1], [["a"]], [None]])
    if isinstance(value, list) and value and rng.random() < 0.2:
        value = [value, value]
    return post(rng, json.dumps({"prompt": value, "mode": "autoregressive"}).encode())


def wrong_messages(rng: random.Random) -> bytes:
    """Messages that are none, from nobody, or of something else than text."""
    wrong = [5, True, {}, [], [5], [[]], [{}], [{"role": "user"}], [{"role": "x", "content": "a"}]]
    wrong += [[{"role": "user", "content": value}] for value in (5, [5], [{"type": "image"}], {})]
    wrong += [[{"role": "user", "content": "a" * 10**5}], [{"role": "user", "content": "a"}] * 5000]
    path, name = rng.choice([(CHAT, "messages"), (RESPONSES, "input")])
    return request("POST", path, json.dumps({name: rng.choice(wrong)}).encode())


def wrong_spans(rng: random.Random) -> bytes:
    """Spans that are none, that are nowhere, too many, or of no text."""
    wrong: list[Any] = [
        5,
        "x",
        {},
        [],
        [5],
        [[]],
        [[0]],
        [[0, 1, 2]],
        [[1, 1]],
        [[3, 1]],
        [[-1, 1]],
    ]
    wrong += [[[0, 10**30]], [[0.5, 1]], [[True, 1]], [["0", "1"]], [[0, 2], [1, 3]], None]
    wrong += [[[i, i + 1] for i in range(5000)], [[0, 1]] * 300_000]
    body: dict[str, Any] = {"text": "a b c", "spans": rng.choice(wrong)}
    more: list[dict[str, Any]] = [
        {"text": rng.choice([5, None, [], {}, "", " " * 1_000_000, "a" * 400_000, "\ud800"])},
        {"alternatives": rng.choice([0, -1, 10**9, "x", 1.5, True])},
        {"length": rng.choice([5, "longer", "", [], {}])},
        {"regex": "a"},
    ]
    if rng.random() < 0.5:
        body |= {"spans": [[0, 1]]} | rng.choice(more)
    return request("POST", REWRITE, json.dumps(body).encode())


def wrong_format(rng: random.Random) -> bytes:
    """A grammar that is none, that matches nothing, or two of them."""
    bodies: list[dict[str, Any]] = [
        {"response_format": rng.choice([5, "json", [], {}, {"type": 5}, {"type": "json_schema"}])},
        {"structured_outputs": rng.choice([5, {}, {"json": 5}, {"x": 1}, {"regex": ["a"]}])},
        {"guided_json": rng.choice([5, [], "/etc/passwd", {"type": "x"}, {"$ref": "#"}])},
        {"guided_regex": rng.choice([5, "(", "a" * 20_000, "(?=a)", "(a{999}){999}"])},
        {"guided_choice": rng.choice([5, [], [5], "a", [""]])},
        {"guided_grammar": "root ::= x"},
        {"guided_regex": "a", "guided_choice": ["a"]},
    ]
    return post(rng, json.dumps({"prompt": "a", **rng.choice(bodies)}).encode())


def odd_field(rng: random.Random) -> bytes:
    """Any field of any path with any value, as JSON that Python would not write."""
    path = rng.choice(PATHS)
    name = rng.choice([*OWN_FIELDS.get(path, native.OWN_FIELDS), *all_names()])
    fields = {SHORT.get(path, "length"): "2", name: rng.choice(ODD)}
    said = SAID.get(path, b'"prompt": "a"').decode()
    more = [f'"{key}": {value}' for key, value in fields.items() if f'"{key}"' not in said]
    if f'"{name}"' in said:
        said = f'"{name}": {fields[name]}'
    return request("POST", path, f"{{{', '.join([said, *more])}}}".encode())


def unknown_field(rng: random.Random) -> bytes:
    """A field that there is not, maybe with a very long name."""
    name = "x" + "".join(rng.choices(string.ascii_letters, k=rng.choice([1, 8, 3000])))
    return post(rng, json.dumps({"prompt": "a", name: rng.choice(WRONG[:6])}).encode())


def unknown_guide(rng: random.Random) -> bytes:
    """A path or a name of the Hub, where a guide's name belongs."""
    name = rng.choice(["/etc/passwd", "../../x", "org/name", "~", "file:///x", "\u0000", "a" * 500])
    return post(rng, json.dumps({"prompt": "a", "control": f"{name}=positive"}).encode())


def too_large(rng: random.Random) -> bytes:
    """More texts, tokens or words than one request may ask for."""
    bodies: list[dict[str, Any]] = [
        {"prompt": ["a"] * 1000},
        {"prompt": "a", "max_tokens": 10**9},
        {"prompt": "a", "length": 10**5},
        {"prompt": "word " * 5000},
        {"prompt": "a", "suffix": "word " * 5000},
        {"prompt": "a", "must": ["a" * 5000]},
        {"prompt": "a", "must_not": ["word"] * 5000},
        {"prompt": "a", "best_of": 10**5},
        {"prompt": "a", "T": 10**6, "grid": "uniform"},
        {"prompt": "a" * 2_000_000},
    ]
    return post(rng, json.dumps(rng.choice(bodies)).encode())


def no_json(rng: random.Random) -> bytes:
    """A body that is no JSON object, or not one that all readers take for the same."""
    deep = rng.choice([300, 10_000, 200_000])
    bodies = [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'"text"',
        b"\x00" * 50,
        b'{"prompt": NaN}',
        b'{"prompt": "a", "top_p": Infinity}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "stop": "\\udc00"}',
        b'{"prompt": ' + b"[" * deep,
        b'{"a":' * deep,
        b'{"prompt": ' + b"[" * deep + b"]" * deep + b"}",
        b'{"seed": ' + b"9" * rng.choice([4000, 5000, 100_000]) + b"}",
        bytes(rng.randrange(256) for _ in range(rng.randint(1, 400))),
    ]
    return post(rng, rng.choice(bodies))


def wrong_headers(rng: random.Random) -> bytes:
    """Another host, another type, a length that is none."""
    headers: list[dict[str, str]] = [
        {"host": "example.com"},
        {"host": ""},
        {"host": "localhost.example.com:8000"},
        {"content-type": "text/plain"},
        {"content-type": ""},
        {"content-length": "-5"},
        {"content-length": "abc"},
        {"content-length": "9" * 30},
        {"content-length": "5", "transfer-encoding": "chunked"},
        {"transfer-encoding": "gzip"},
        {"x": "y" * 2_000_000},
    ]
    return post(rng, b'{"prompt": "a"}', **rng.choice(headers))


def wrong_path(rng: random.Random) -> bytes:
    """A path or a method that there is not."""
    paths = ["/v1/embeddings", "/etc/passwd", "/page/../../x", "/page/%2e%2e/%2e%2e/x", "/" * 500]
    paths += ["/v1/models/other", "/v1/models/", "/v1/models/%2e%2e/x", "/v1/models/" + "a" * 5000]
    paths += ["/v1/chat", "/v1/responses/x", "/v1/rewrite/", "/v1/models/\x7f", "/v1/info/x"]
    paths += ["/v1/chat/completions", "/%00", "/\x7f", "/v1/completions/"]
    method = rng.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "X" * 50])
    return request(method, rng.choice(paths), b"{}")


def no_http(rng: random.Random) -> bytes:
    """Bytes of other protocols, or of none."""
    return rng.choice(
        [
            b"\x16\x03\x01" + bytes(200),
            b"GET / HTTP/7.3\r\n\r\n",
            b"GET\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /" + b"a" * 300_000,
            b"SSH-2.0-x\r\n\r\n",
            bytes(rng.randrange(256) for _ in range(300)) + b"\r\n\r\n",
        ]
    )


def broken_off(rng: random.Random) -> bytes:
    """A request whose sender stops in the middle and says nothing more."""
    whole = post(rng, b'{"prompt": "a"}')
    return whole[: rng.randint(1, len(whole) - 1)]


KINDS = (wrong_number, wrong_words, wrong_prompt, unknown_field, unknown_guide, too_large, no_json)
KINDS += (wrong_messages, wrong_spans, wrong_format, wrong_headers, wrong_path, no_http, odd_field)
SLOW_SHARE = 0.01
"""Of requests that are broken off while their connection stays: each takes a server's patience."""


def hostile(seed: int) -> tuple[str, bytes]:
    """Return the kind and the bytes of a request; the same ones for the same seed."""
    rng = random.Random(seed)
    kind = broken_off if rng.random() < SLOW_SHARE else rng.choice(KINDS)
    return kind.__name__, kind(rng)

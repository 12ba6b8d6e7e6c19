"""Clients that hold a server up, each kind on every path while somebody asks for /health.

hostile -> [siege] -> serve.py siege. A client stays until it is closed, or for `PATIENCE` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hostile import CHAT, REWRITE, request

CLIENTS = 40
PATIENCE = 6.0
LENGTHS = {CHAT: "max_completion_tokens", "/v1/responses": "max_output_tokens"}


def body(path: str, text: str, **more: Any) -> bytes:
    """Return a request for a text after another one; a span is its first character."""
    said: dict[str, Any] = {"prompt": text}
    if path == CHAT:
        said = {"messages": [{"role": "user", "content": text}]}
    elif path == "/v1/responses":
        said = {"input": text}
    elif path == REWRITE:
        said = {"text": text, "spans": [[0, 1]]}
    if "length" in more:
        name = "max_tokens" if path == "/v1/completions" else LENGTHS.get(path, "length")
        more[name] = more.pop("length")
        if path == REWRITE:
            del more[name]
    return request("POST", path, json.dumps(said | more).encode(), connection="keep-alive")


async def client(port: int, raw: bytes, *, reads: bool, pause: float = 0.0) -> None:
    """Send bytes, one at a time with a pause or all at once, and read what comes or nothing."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    loop, end = asyncio.get_running_loop(), time.monotonic() + PATIENCE
    with contextlib.suppress(OSError), contextlib.closing(plain):
        await asyncio.wait_for(loop.sock_connect(plain, ("127.0.0.1", port)), PATIENCE)
        for part in [raw[at : at + 1] for at in range(len(raw))] if pause else [raw]:
            await asyncio.wait_for(loop.sock_sendall(plain, part), end - time.monotonic())
            await asyncio.sleep(pause)
        while not reads and time.monotonic() < end:
            await asyncio.sleep(0.2)
        while reads and await asyncio.wait_for(loop.sock_recv(plain, 1 << 16), 4 * PATIENCE):
            pass


async def pipelined(port: int, path: str) -> None:
    """One request after another on a connection from which nothing is read."""
    await client(port, body(path, "ab cd") * 500, reads=False)


async def deaf(port: int, path: str) -> None:
    """A long stream that is not read."""
    stream = {} if path == "/v1/explain" else {"stream": True}
    await client(port, body(path, "ab cd", length=400, **stream), reads=False)


async def slow(port: int, path: str) -> None:
    """A body that comes byte by byte."""
    await client(port, body(path, "ab cd"), reads=True, pause=0.3)


async def leaving(port: int, path: str) -> None:
    """Somebody who asks for much and is gone, again and again."""
    for _ in range(10):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(body(path, "ab cd", length=400))
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()


def once(make: Callable[[str], bytes]) -> Callable[[int, str], Awaitable[None]]:
    """Return a client that sends one request, reads its answer, and ends."""

    async def send(port: int, path: str) -> None:
        raw = make(path).replace(b"connection: keep-alive", b"connection: close")
        await client(port, raw, reads=True)

    return send


ATTACKS: dict[str, Callable[[int, str], Awaitable[None]]] = {
    "pipelined": pipelined,
    "deaf": deaf,
    "slow": slow,
    "leaving": leaving,
    "a million spaces": once(lambda path: body(path, " " * 1_000_000)),
    "65,000 spaces": once(lambda path: body(path, " " * 65_000)),
    "300,000 texts": once(lambda path: request("POST", path, many(path))),
    "1,000 controls": once(lambda path: body(path, "a", control=["sentiment=positive"] * 1000)),
    "hard pattern": once(lambda path: body(path, "ab cd", regex="(a?){300}(a{40}){40}b")),
    "headers": once(lambda path: request("POST", path, b"{}", x="y" * 100_000)),
}


def many(path: str) -> bytes:
    """Return a body with as many texts as go into one."""
    name, one = {CHAT: ("messages", "{}"), REWRITE: ("spans", "[]")}.get(path, ("prompt", '""'))
    name = "input" if path == "/v1/responses" else name
    return f'{{"{name}": [{", ".join([one] * 250_000)}]}}'.encode()


async def besiege(port: int, kind: str, path: str, clients: int = CLIENTS) -> dict[str, Any]:
    """Return how /health was answered while clients of a kind were there."""
    attack = [asyncio.ensure_future(ATTACKS[kind](port, path)) for _ in range(clients)]
    ask = request("GET", "/health", b"")
    waits: list[float] = []
    num_refused = 0
    while not all(one.done() for one in attack):
        began = time.perf_counter()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ask)
            answer = await asyncio.wait_for(reader.read(), 30)
            writer.close()
        except OSError:
            answer = b""
        waits.append(time.perf_counter() - began)
        num_refused += b"200 OK" not in answer
        await asyncio.sleep(0.05)
    await asyncio.gather(*attack)
    waits.sort()
    found = {"kind": kind, "path": path, "asked": len(waits), "refused": num_refused}
    return found | {"median": waits[len(waits) // 2], "worst": waits[-1]}

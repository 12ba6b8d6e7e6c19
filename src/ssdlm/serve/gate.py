"""Who may come in: host names, keys, and a line in the log for each.  [gate] -> app"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssdlm.serve.errors import ApiError
from ssdlm.serve.log import RequestLog
from ssdlm.serve.metrics import Metrics
from ssdlm.storage.files import MOST_BY_HAND, read_whole
from ssdlm.values import quote

if TYPE_CHECKING:
    from starlette.types import Message

OPEN_PATHS = ("/", "/health", "/favicon.ico")
"""What needs no key: whether the server is well, and the page, which asks for it."""
OPEN_FOLDER = "/page/"
HOST = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\])(:(?P<port>[0-9]{0,5}))?"
)
"""A Host header: a name, an IPv4 address or an IPv6 address in brackets, and perhaps a port."""
MOST_OF_HEADERS = 32 << 10
"""Bytes of a path, a query and all headers: h11 bounds only what does not come at once."""
Scope = dict[str, Any]


def is_loopback(host: str) -> bool:
    """Tell whether an address or name means this machine alone."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() in ("localhost", "localhost.")
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def host_in(header: str) -> str:
    """Return the name or address in a Host header; nothing where it is not HOST or HOST:PORT."""
    found = HOST.fullmatch(header)
    if found is None or int(found["port"] or 0) > 65535:
        return ""
    return found["host"]


def check_origin(origin: str) -> str:
    """Return a website as browsers name it, or * for all; raise where no browser would."""
    scheme, mark, host = origin.partition("://")
    if origin != "*" and (not (scheme and mark and host) or set(host) & set("/?#@ *")):
        raise ValueError(
            f"--cors {quote(origin)} is no website as browsers name it; write it as "
            "https://example.org, with a port if it has one and no path"
        )
    return origin.lower()


def check_proxies(proxies: str) -> str:
    """Return addresses and networks of proxies, with commas between, or * for all."""
    for proxy in proxies.split(",") if proxies.strip() != "*" else ():
        try:
            ipaddress.ip_network(proxy.strip())
        except ValueError:
            raise ValueError(
                f"--forwarded-allow-ips {quote(proxy)} is neither an address nor a network; write "
                "127.0.0.1, 10.0.0.0/8, several with commas between, or * for all"
            ) from None
    return proxies.strip()


def read_keys(path: Path) -> frozenset[bytes]:
    """Return the digests of the keys in a file, one a line."""
    try:
        lines = read_whole(path, most=MOST_BY_HAND).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8; write a key on each line") from None
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ValueError(f"{path} has no key; write one on a line")
    return frozenset(digest(key.encode()) for key in keys)


def digest(key: bytes) -> bytes:
    """Return what a key is compared by: always as long, whatever was sent."""
    return hashlib.sha256(key).digest()


class Gate:
    """The application behind checks that hold for all paths; it counts and logs every answer."""

    def __init__(
        self,
        app: Any,
        *,
        metrics: Metrics,
        log: RequestLog,
        paths: Collection[str],
        keys: frozenset[bytes] = frozenset(),
        is_local: bool = True,
    ) -> None:
        self.app, self.metrics, self.log = app, metrics, log
        self.paths = frozenset(paths)
        """The paths there are, by which answers are counted."""
        self.keys = keys
        self.is_local = is_local
        """Whether only programs of this machine are to be served, and no website through them."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 500
        scope.setdefault("state", {})

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self.check(scope)
            except ApiError as error:
                await error.response()(scope, receive, send_counted)
            else:
                await self.app(scope, receive, send_counted)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
            self.metrics.request(method, path, status)
            self.log.answered(scope, status, time.monotonic() - start)
            # A connection keeps the scope of its last request.
            if ticket := scope["state"].pop("ticket", None):
                ticket.forget()

    def check(self, scope: Scope) -> None:
        """Raise an ApiError on a request that may not come in."""
        size = len(scope["path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > MOST_OF_HEADERS:
            said = f"path and headers have {size} bytes, and this server takes {MOST_OF_HEADERS}"
            raise ApiError(431, f"{said}; send fewer", headers={"connection": "close"})
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        if {"content-length", "transfer-encoding"} <= headers.keys():
            # A proxy may go by the other one, and take what follows for somebody else's request.
            said = "content-length and transfer-encoding both say where a body ends; send one"
            raise ApiError(400, said, headers={"connection": "close"})
        host = headers.get("host", b"").decode("latin-1")
        if self.is_local and not is_loopback(host_in(host)):
            raise ApiError(400, f"host {quote(host)} is not this machine; use localhost")
        path = scope["path"]
        if not self.keys or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return
        scheme, _, key = headers.get("authorization", b"").partition(b" ")
        given = digest(key.strip())
        # All keys are compared, and each in constant time.
        is_known = [hmac.compare_digest(given, known) for known in self.keys]
        if scheme.lower() != b"bearer" or not any(is_known):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

"""uvicorn, with bounds on connections and an end that clients are told of.  app -> [running] -> cli

A connection that sends no whole request within its time is closed, and so is one too many. So is
one that does not take its answer within its time, sooner where others wait for a connection.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ssdlm.serve.app import Server
from ssdlm.serve.limits import ACCEPTED_AT_ONCE, Limits
from ssdlm.values import first_line

BACKLOG = 2048
"""Connections that may come at once."""
MOST_AHEAD = 16 << 10
"""Bytes of further requests that may come before an answer is sent; then it is the last one."""
STUCK_SECONDS = 1.0
"""After so long without reading a client makes room where there are too many connections."""
NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Why no connection can be accepted just now."""
LAST_SECONDS = 5
"""For answers that are cut off to reach their clients."""

logger = logging.getLogger("ssdlm.serve")


def protocol_within(limits: Limits) -> type[H11Protocol]:
    """Return how one connection speaks HTTP, with bounds on its time and on the number of all."""

    class BoundedProtocol(H11Protocol):
        """HTTP/1.1 for one connection."""

        headers_due: asyncio.TimerHandle | None = None
        taken_due: asyncio.TimerHandle | None = None
        """When the client must have taken what it was sent, while anything of that is left."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # to be told of every byte that is left
            if len(self.connections) > limits.max_connections and not self.displace():
                transport.close()
            self.expect_headers()

        def data_received(self, data: bytes) -> None:
            # Between requests a first byte begins the next one's time.
            if self.headers_due is None and not self.is_answering:
                self.expect_headers()
            super().data_received(data)
            if self.is_answering:
                self.forget_headers()
                if len(self.conn.trailing_data[0]) > MOST_AHEAD:
                    self.cycle.keep_alive = False

        def pause_writing(self) -> None:
            super().pause_writing()
            # A transport that is closed waits for the rest, too, and for ever.
            self.taken_due = self.loop.call_later(limits.send_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self.forget_taken()

        def connection_lost(self, exc: Exception | None) -> None:
            self.forget_headers()
            self.forget_taken()
            super().connection_lost(exc)

        @property
        def is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def expect_headers(self) -> None:
            self.headers_due = self.loop.call_later(limits.header_seconds, self.transport.close)

        def forget_headers(self) -> None:
            if self.headers_due is not None:
                self.headers_due.cancel()
                self.headers_due = None

        def forget_taken(self) -> None:
            if self.taken_due is not None:
                self.taken_due.cancel()
                self.taken_due = None

        def displace(self) -> bool:
            """Cut off the client that has not read for longest; return whether there is one."""
            latest = self.loop.time() - STUCK_SECONDS + limits.send_seconds
            others = cast(set[BoundedProtocol], self.connections)
            due = {one: one.taken_due.when() for one in others if one.taken_due}
            first = min(due, key=due.__getitem__, default=None)
            if first is None or due[first] > latest:
                return False
            first.forget_taken()
            first.transport.abort()
            return True

    return BoundedProtocol


class Listener(socket.socket):
    """A listening socket of which asyncio accepts a few connections at a time.

    asyncio would take all that wait before it looks at one of them. Where there are no more file
    descriptors it pauses for a second, but not before it has failed as often as they could wait.
    """

    num_left = ACCEPTED_AT_ONCE

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; BlockingIOError ends a turn of asyncio's."""
        if self.num_left == 0:
            self.num_left = ACCEPTED_AT_ONCE
            raise BlockingIOError
        self.num_left -= 1
        try:
            return super().accept()
        except OSError as error:
            if error.errno in NOTHING_LEFT:
                self.num_left = 0
            raise


class GracefulServer(uvicorn.Server):
    """uvicorn, which after a signal lets requests end for a while, then cuts them off."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self.server = server
        self.complained = -math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        asyncio.get_running_loop().set_exception_handler(self.complain)
        await super().startup(sockets)

    def complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what went wrong in the event loop; a lack of file descriptors in a line a minute."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in NOTHING_LEFT:
            loop.default_exception_handler(context)
        elif loop.time() > self.complained + 60:
            self.complained = loop.time()
            logger.error(
                "no connection is accepted for a while (%s); raise ulimit -n, or lower "
                "--max-connections",
                error.strerror,
            )

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to end; a second signal ends at once."""
        del sig, frame
        if self.should_exit:
            self.force_exit = True
            return
        self.should_exit = True
        self.server.close()

    async def shutdown(self, sockets: Any = None) -> None:
        """Cut off what still runs when its time is over, and wait for the rest."""
        loop, grace = asyncio.get_running_loop(), self.server.served.limits.grace
        cut = loop.call_later(grace, self.server.abort)
        await super().shutdown(sockets)
        cut.cancel()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket at an address that takes connections from now on; port 0 is any."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = first_line(error)
        raise ValueError(
            f"--host {host} cannot be found ({reason}); give an address such as 127.0.0.1"
        ) from None
    family, kind, number, _, address = found[0]
    opened = Listener(family, kind, number)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise ValueError(
            f"{host} port {port} cannot be served ({error.strerror}); choose another --port or "
            "--host, or stop what uses it"
        ) from None
    return opened


def uvicorn_for(server: Server) -> GracefulServer:
    """Return what speaks HTTP for a server."""
    limits = server.served.limits
    config = uvicorn.Config(
        server.app,
        http=protocol_within(limits),
        ws="none",
        proxy_headers=False,  # uvicorn's default believes whoever connects from this machine
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=int(limits.grace) + LAST_SECONDS,
    )
    return GracefulServer(config, server)

"""From a ticket to its client, as long as there is one.  tickets -> [delivery] -> app

A client that leaves is noticed at once, and what was being written for it is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response

from ssdlm.serve.completions import Completion
from ssdlm.serve.errors import ApiError, json_response
from ssdlm.serve.native import Native
from ssdlm.serve.tickets import Closed, Failed
from ssdlm.serve.worker import Worker

Asked = Completion | Native
T = TypeVar("T")
GONE = 499
"""What logs call a request whose client left before there was an answer; nobody gets it."""


async def deliver(request: Request, worker: Worker, asked: Asked) -> Response:
    """Return the answer to what was asked, whole or as a stream that has begun."""
    ticket = asked.ticket
    request.state.ticket = ticket
    worker.submit(ticket)
    is_streaming = False
    try:
        first = await unless_gone(request, ticket.mailbox.get())
        if isinstance(first, Failed):
            raise first.error
        if asked.is_stream:
            is_streaming = True
            return EventStream(worker, asked)
        return json_response(asked.answer(await unless_gone(request, result(asked))))
    finally:
        if not is_streaming:
            worker.leave(ticket)


async def result(asked: Asked) -> Any:
    """Return what a ticket comes to, when all is written."""
    async for event in asked.ticket.mailbox:
        if isinstance(event, Closed):
            return event.result
    raise AssertionError("a mailbox ends with Closed")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return what some work gives, unless the client leaves before it is done."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(departure(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ApiError(GONE, "the client left")
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()


async def departure(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events about a ticket, until it is done or its client leaves."""

    media_type = "text/event-stream"

    def __init__(self, worker: Worker, asked: Asked) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.worker, self.asked = worker, asked

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            start = {"type": "http.response.start", "status": self.status_code}
            await send(start | {"headers": self.raw_headers})
            await unless_gone(request, self.pour(send))
        except TimeoutError:  # it is there, but takes nothing; the connection is closed
            pass
        except ApiError as error:
            if error.status != GONE:
                raise
        finally:
            self.worker.leave(self.asked.ticket)

    async def pour(self, send: Any) -> None:
        """Send what there is to tell, as it comes."""

        async def tell(said: bytes, *, is_last: bool = False) -> None:
            message = {"type": "http.response.body", "body": said, "more_body": not is_last}
            await asyncio.wait_for(send(message), self.worker.limits.send_seconds)

        try:
            async for event in self.asked.ticket.mailbox:
                if said := b"".join(self.asked.chunks(event)):
                    await tell(said)
            said = self.asked.ending()
        except ApiError as error:
            said = self.asked.failure(error)
        await tell(said, is_last=True)

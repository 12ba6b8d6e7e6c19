"""A client's request on its way through the engine, and what its thread tells of it.

app (event loop) -> [tickets] -> worker (thread of the engine), and back through a mailbox
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ssdlm.constraints.placement import Placement
from ssdlm.constraints.words import Wanted
from ssdlm.engine.plain import Engine, Prompt
from ssdlm.engine.requests import Generation, Request
from ssdlm.engine.schedule import Job
from ssdlm.options import GenerateOptions
from ssdlm.serve.compiling import NotCompiled
from ssdlm.serve.errors import ApiError
from ssdlm.serve.guides import Guides
from ssdlm.serve.limits import Limits


class Accepted(NamedTuple):
    """The engine can write what was asked for."""

    requests: Sequence[Request]


class Position(NamedTuple):
    """How many requests are before this one; 0 when it is being written."""

    ahead: int


class News(NamedTuple):
    """Something about a text that is being written."""

    row: int
    item: Any
    """What has a length: a text, or the bytes of an event."""


class Written(NamedTuple):
    """A text is whole."""

    row: int
    text: Generation
    extra: Any = None
    """What the ticket's `finish` made of it."""


class Closed(NamedTuple):
    """All texts are whole; what the ticket's `close` made of them."""

    result: Any


class Failed(NamedTuple):
    """There will be no more."""

    error: ApiError


Event = Accepted | Position | News | Written | Closed | Failed
Look = Callable[[Job], Sequence[Any]]
"""From a job that has had a turn to what is new about it."""
Looks = Callable[[Engine, Request], Look]
Texts = list[tuple[Request, Generation]]
Asking = tuple[Sequence[Prompt], Sequence[GenerateOptions]]
"""Prompts, and for each its own options."""


@dataclass(eq=False)
class Row:
    """One text of a request."""

    index: int
    request: Request
    look: Look | None
    text: Generation | None = None


@dataclass(eq=False)
class Ticket:
    """Texts that one client waits for."""

    prompts: Sequence[Prompt]
    options: Sequence[GenerateOptions]
    """For each prompt its own."""
    close: Callable[[Engine, Texts], Any] | None = None
    """Called in the engine's thread when all texts are whole, if its client waits for that."""
    go_on: Callable[[Engine, Texts], Asking | None] | None = None
    """Gives what to write next, in view of what was written, if anything is left."""
    look: Looks | None = None
    """Gives what looks at a text as it is written, if anybody wants to see it."""
    finish: Callable[[Engine, Request, Generation], Any] | None = None
    """Called in the engine's thread when a text is whole, if its client hears of it at once."""
    is_written: bool = True
    """False for a request for no tokens at all."""
    is_watched: bool = False
    """Whether every step is looked at, and not only what is decided."""
    keeps_states: bool = False
    """Whether more of a step is looked at than its tokens."""
    wants_position: bool = False
    mailbox: Mailbox = field(default_factory=lambda: Mailbox())
    placements: Sequence[Placement] | None = None
    """What its constraints were compiled to, when that is done."""
    rows: list[Row] = field(default_factory=list)
    todo: deque[Row] = field(default_factory=deque)
    """Texts that nobody has begun to write."""
    jobs: list[Job] = field(default_factory=list)
    is_over: bool = False
    """It is answered, refused, or nobody waits for it any more."""
    came: float = field(default_factory=time.monotonic)
    began: float | None = None
    """When the first pass for it was done."""
    ended: float | None = None
    num_tokens: int = 0
    num_whole: int = 0
    """Texts that are written."""

    @property
    def num_rows(self) -> int:
        """How many texts are to be written."""
        return sum(one.num_rows for one in self.options)

    @property
    def num_left(self) -> int:
        """How many of them are not whole."""
        return 0 if self.is_over else self.num_rows - self.num_whole

    def open(self, engine: Engine, guides: Guides, limits: Limits, at_once: int) -> None:
        """Let the engine check what is asked for; a ValueError says what is wrong with it.

        NotCompiled says that it has `placements` to wait for.
        """
        fitted = {id(one): guides.fitted(one) for one in self.options}
        options = [fitted[id(one)] for one in self.options]
        requests = engine.prepare(self.prompts, options, self.compiled)
        # Only now is it known who needs particles.
        limits.check_rows(sum(engine.num_particles(request) for request in requests), at_once)
        for index, request in enumerate(requests):
            request = replace(request, is_watched=self.is_watched, keeps_states=self.keeps_states)
            look = self.look(engine, request) if self.look is not None else None
            self.rows.append(Row(index, request, look))
        self.mailbox.put(Accepted(requests))
        if self.is_written:
            self.todo.extend(self.rows)
            return
        for row in self.rows:
            own = row.request.options
            nothing = Generation(row.request.prompt, "", [], own.seed, row.request.sample, calls=0)
            self.hand_in(engine, row, nothing)

    def compiled(self, wanted: list[Wanted]) -> Sequence[Placement]:
        """Return what was compiled of its constraints, or raise where nothing is yet."""
        if self.placements is None:
            raise NotCompiled(wanted)
        return self.placements

    def hand_in(self, engine: Engine, row: Row, text: Generation) -> None:
        """Take a text that is whole."""
        row.text = text
        self.num_whole += 1
        self.num_tokens += len(text.tokens[: row.request.options.length])  # a suffix is given
        finish = self.finish  # another thread may give the ticket up
        extra = finish(engine, row.request, text) if finish is not None else None
        self.mailbox.put(Written(row.index, text, extra))

    def is_whole(self) -> bool:
        """Tell whether all texts are there."""
        return self.num_whole == len(self.rows)

    def texts(self) -> Texts:
        """Return the texts that are written."""
        return [(row.request, row.text) for row in self.rows if row.text is not None]

    def goes_on(self, engine: Engine) -> bool:
        """Take up what is to be written next, if anything is; it has to be opened again."""
        go_on = self.go_on
        asking = go_on(engine, self.texts()) if go_on is not None else None
        if asking is None:
            return False
        self.prompts, self.options = asking
        self.placements, self.rows, self.num_whole = None, [], 0
        return True

    def hand_out(self, engine: Engine) -> None:
        """Tell the client what its texts came to."""
        close = self.close
        result = close(engine, self.texts()) if close is not None else None
        self.ended = time.monotonic()
        self.mailbox.put(Closed(result))

    def cancel(self) -> None:
        """Give it up, from whichever thread; its places are free at the next turn."""
        self.is_over = True
        # These know their ticket: in a circle, tensors would wait for the garbage collector.
        self.close = self.finish = self.go_on = self.look = None
        for job in list(self.jobs):
            job.cancel()

    def forget(self) -> None:
        """Drop what was asked for: who has left may still be in a queue."""
        self.prompts, self.options, self.placements = (), (), None

    def fail(self, error: ApiError) -> None:
        """Give it up and say why."""
        self.cancel()
        self.mailbox.put(Failed(error))


class Mailbox:
    """What the engine's thread tells the event loop."""

    loop: asyncio.AbstractEventLoop
    """The one that listens; known when the ticket is submitted."""

    def __init__(self) -> None:
        self.letters: deque[Event] = deque()
        self.has_come = asyncio.Event()
        self.num_put = self.num_got = 0
        """Bytes or characters of news that one thread has put in and the other one taken out."""

    @property
    def num_unread(self) -> int:
        """How long the news are that nobody has taken out."""
        return self.num_put - self.num_got

    def put(self, letter: Event) -> None:
        """Leave something, from any thread."""
        if isinstance(letter, News):
            self.num_put += len(letter.item)
        self.letters.append(letter)
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.has_come.set)

    async def get(self) -> Event:
        """Return the oldest letter, when there is one."""
        while not self.letters:
            self.has_come.clear()
            # One may have come between the two lines.
            if not self.letters:
                await self.has_come.wait()
        letter = self.letters.popleft()
        if isinstance(letter, News):
            self.num_got += len(letter.item)
        return letter

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield letters until the last; a failure is raised."""
        while True:
            letter = await self.get()
            if isinstance(letter, Failed):
                raise letter.error
            yield letter
            if isinstance(letter, Closed):
                return

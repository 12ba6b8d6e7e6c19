"""`POST /v1/generate`: the options of this library as JSON, and every draft as an event.

fields -> [native] -> tickets. `POST /v1/explain` takes the same and tells how it would be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ssdlm.engine.choosing import kept
from ssdlm.engine.drafts import CANDIDATES, DraftEncoder, Watcher
from ssdlm.engine.explaining import explain
from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import Generation, Request
from ssdlm.serve.errors import ApiError
from ssdlm.serve.fields import Served, field, flag, prompts_in, refuse_unknown
from ssdlm.serve.tickets import Event, Look, Looks, News, Position, Texts, Ticket, Written
from ssdlm.values import WORDS, check, quote

OWN_FIELDS = ("prompt", "model", "stream", "candidates", "guides")
Whose = Callable[[Request], dict[str, Any]]
"""From a request to what its events say beside the draft."""
NOTHING = (None, 0, [])
"""What asks for no candidates, and for no guides."""


@dataclass(frozen=True)
class Native:
    """A request of the native form."""

    length_field: ClassVar[str] = "length"

    ticket: Ticket
    is_stream: bool
    model: str

    def answer(self, texts: list[Generation]) -> dict[str, Any]:
        """Return the body of the whole answer."""
        return {"model": self.model, "texts": [asdict(text) for text in texts]}

    def chunks(self, event: Event) -> Iterator[bytes]:
        """Yield what a client that watches is told about an event."""
        if isinstance(event, Position):
            yield message({"event": "queued", "position": event.ahead})
        elif isinstance(event, News):
            yield event.item
        elif isinstance(event, Written):
            yield message({"event": "done", **asdict(event.text)})

    def failure(self, error: ApiError) -> bytes:
        """Return the last thing that a client is told whose text will not be whole."""
        return message({"event": "error", "message": str(error)})

    def ending(self) -> bytes:
        """Return what follows the last event: nothing."""
        return b""


class Explained(Native):
    """A request of the native form of which only is told how it would be written."""

    def answer(self, texts: list[Any]) -> dict[str, Any]:
        return {"model": self.model, "explained": texts}


def read_native(body: Mapping[str, Any], served: Served) -> Native:
    """Return what a body asks for, or raise a ValueError or ApiError."""
    if "prompt" not in body:
        raise ValueError("there is no prompt; give one, which may be empty")
    refuse_unknown(body, OWN_FIELDS)
    prompts = prompts_in(body["prompt"])
    changes = {name: value for name, value in body.items() if name not in OWN_FIELDS}
    options = served.options(prompts, changes)
    is_stream = flag(body, "stream")
    count = sum(one.num_rows for one in options)
    if is_stream and count > 1:
        raise ValueError(f"stream=true shows one text, and {count} are to be written; ask for one")
    ticket = Ticket(prompts, options, close=None if is_stream else chosen)
    watch(ticket, body, served)
    return Native(ticket, is_stream, served.name)


def watch(
    ticket: Ticket, body: Mapping[str, Any], served: Served, whose: Whose = lambda _: {}
) -> None:
    """Let the drafts of a ticket be told if its body asks for a stream, and `whose` they are."""
    if not flag(body, "stream"):
        for name in (name for name in ("candidates", "guides") if body.get(name) not in NOTHING):
            raise ValueError(f"{name}={quote(body[name])} is about drafts; set stream to true")
        return
    given, guides = body.get("candidates"), field(body, "guides", WORDS) or ()
    candidates = 0 if given is None else check("candidates", given, CANDIDATES)
    ticket.look = look_of(served, candidates, guides, whose)
    ticket.is_watched = ticket.wants_position = True
    ticket.keeps_states = bool(candidates or guides)


def read_explain(body: Mapping[str, Any], served: Served) -> Explained:
    """Return the same as a request to explain, in which nothing is written."""
    ticket = read_native(body, served).ticket
    ticket.close, ticket.look, ticket.is_written = explained, None, False
    return Explained(ticket, is_stream=False, model=served.name)


def look_of(served: Served, candidates: int, guides: Sequence[str], whose: Whose) -> Looks:
    """Return what makes the events of a text; guides are those of the server.

    An event is bytes from the start, so that it is known how much of it waits for a client.
    """
    served.limits.check_values("guides", list(guides))
    for name in guides:
        served.guides.check_name(name)
    homes = [f"{name}={served.guides.folders[name]}" for name in guides]

    def look(engine: Engine, request: Request) -> Look:
        watcher = Watcher(engine.controls, request, candidates=candidates, guides=homes)
        take, own = DraftEncoder(watcher).take, whose(request)
        return lambda job: [message(event | own) for event in take(job)]

    return look


def chosen(engine: Engine, texts: Texts) -> list[Generation]:
    """Return the texts that were asked for; of candidates the likeliest."""
    return [text for _, text in kept(engine.rate, texts)]


def explained(engine: Engine, texts: Texts) -> list[dict[str, Any]]:
    """Return how the text of each prompt would be written."""
    firsts: dict[int, list[Request]] = {}
    for request, _ in texts:
        if request.sample == 0:  # others are as these are
            firsts.setdefault(request.number, []).append(request)
    return [explain(engine, group).json() for group in firsts.values()]


def message(event: Mapping[str, Any]) -> bytes:
    """Return an event as server-sent events have it, named by its first field."""
    return f"event: {next(iter(event.values()))}\ndata: {json.dumps(event)}\n\n".encode()

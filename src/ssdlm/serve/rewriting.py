"""`POST /v1/rewrite`: spans of a text written anew, as JSON or draft by draft.

fields, native -> [rewriting] -> tickets. The ticket of a text comes back to the engine for each of
its spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import Request
from ssdlm.engine.rewriting import Rewrite, Rewriting, spans_in
from ssdlm.options import WORDS_OF_SPANS, SpanLength
from ssdlm.serve.fields import Served, field, flag, refuse_unknown, whole
from ssdlm.serve.limits import texts_at_once
from ssdlm.serve.native import Native, chosen, message, watch
from ssdlm.serve.tickets import (
    Asking,
    Closed,
    Event,
    News,
    Texts,
    Ticket,
    Written,
)
from ssdlm.values import TEXT, choose

OWN_FIELDS = ("text", "spans", "length", "alternatives", "model", "stream", "candidates", "guides")


@dataclass(frozen=True)
class Rewritten(Native):
    """A request to rewrite a text."""

    work: Rewriting

    def answer(self, texts: list[Any]) -> dict[str, Any]:
        return {"model": self.model, "rewrites": [asdict(one) for one in texts]}

    def chunks(self, event: Event) -> Iterator[bytes]:
        """Yield what a client that watches is told about an event."""
        if isinstance(event, Closed):
            rewrites: list[Rewrite] = event.result
            for number, one in enumerate(rewrites):
                yield message({"event": "done", "alternative": number, **asdict(one)})
        elif not isinstance(event, Written):
            yield from super().chunks(event)

    def go_on(self, engine: Engine, texts: Texts) -> Asking | None:
        """Put texts into their spans, and return what to write for the next one."""
        work, number = self.work, self.work.num_done
        work.take(chosen(engine, texts))
        for alternative, version in enumerate(work.versions if self.is_stream else ()):
            start, end = version.spans[-1]
            told = {"event": "span", "alternative": alternative, "span": number}
            told |= {"start": start, "end": end, "text": version.text[start:end]}
            self.ticket.mailbox.put(News(0, message(told)))
        return work.asked(work.num_done) if work.num_done < len(work.passages) else None


def read_rewrite(body: Mapping[str, Any], served: Served) -> Rewritten:
    """Return what a body asks for, or raise a ValueError or ApiError."""
    refuse_unknown(body, OWN_FIELDS, WORDS_OF_SPANS)
    text, limits = field(body, "text", TEXT), served.limits
    if text is None:
        raise ValueError("there is no text; give one")
    limits.check_characters("text", text)
    limits.check_tokens("text", served.num_tokens(text))
    limits.check_values("spans", body.get("spans"))
    spans = spans_in(text, body.get("spans"))
    changes = {name: value for name, value in body.items() if name not in OWN_FIELDS}
    # Spans have lengths of their own, whatever the model's is.
    options = served.options([""] * len(spans), changes, {"length": 1}, called="spans")
    length = "equal" if body.get("length") is None else body["length"]
    choose("length", length, get_args(SpanLength))
    count = whole(body, "alternatives", 1, limits.max_rows) or 1
    engine = served.model.engine
    work = Rewriting(
        engine,
        text,
        spans,
        options,
        length=length,
        alternatives=count,
    )
    asked = [passage.options for passage in work.passages]
    for span, _, one, _ in work.passages:
        if one.length > limits.max_length:
            raise ValueError(
                f"span {span} takes {one.length} tokens, and this server writes "
                f"{limits.max_length}; give a shorter one"
            )
        limits.check_options(one)
    num_rows = count * sum(one.num_rows * max(1, one.particles) for one in asked)
    limits.check_rows(num_rows, texts_at_once(engine.device.type), "spans, alternatives, ")
    ticket = Ticket(*work.asked(0), close=lambda engine, texts: work.results())
    watch(ticket, body, served, lambda request: whose(work, request))
    rewritten = Rewritten(ticket, flag(body, "stream"), served.name, work)
    ticket.go_on = rewritten.go_on
    return rewritten


def whose(work: Rewriting, request: Request) -> dict[str, Any]:
    """Return of which alternative and span a draft is."""
    own = {"alternative": request.number, "span": work.num_done}
    return own | {"gap": request.options.length, "candidate": request.sample}

"""`POST /v1/responses` as OpenAI defines it: text in, text out, and what happens as named events.

chat -> [responses] -> tickets. Nothing is kept of a response: who goes on sends all that was said.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ssdlm.serve.chat import CHAT_NEUTRAL, MOST_TOP, Chat, prompt_of
from ssdlm.serve.completions import UNUSED, take
from ssdlm.serve.errors import ApiError
from ssdlm.serve.fields import Served, refuse_unknown, whole
from ssdlm.serve.fields import field as field_in
from ssdlm.serve.formats import FORMATS, TEXT_FORMAT
from ssdlm.serve.native import message
from ssdlm.serve.tickets import Event
from ssdlm.values import TEXT, quote

RATED = "message.output_text.logprobs"
RESPONSE_NEUTRAL: dict[str, Sequence[Any]] = {
    **{name: values for name, values in CHAT_NEUTRAL.items() if name != "metadata"},
    "background": (False,),
    "reasoning": ({},),
    "truncation": ("disabled",),
    "max_tool_calls": (None,),
}
KEPT = ("previous_response_id", "conversation")
OWN_FIELDS = (
    "input",
    "instructions",
    "max_output_tokens",
    "top_logprobs",
    "include",
    "metadata",
    "text",
)
OWN_FIELDS += ("model", "temperature", "best_of", "stream", "stream_options")
OWN_FIELDS += (*UNUSED, *FORMATS[1:], *KEPT, *RESPONSE_NEUTRAL)
ELSEWHERE = {"messages": "use input", "prompt": "use input", "response_format": "use text.format"}
ELSEWHERE |= dict.fromkeys(("max_tokens", "max_completion_tokens"), "use max_output_tokens")
ELSEWHERE["n"] = "ask several times"
PLACE = {"output_index": 0, "content_index": 0}


@dataclass
class Answered(Chat):
    """A request for one answer, as an object of which a stream tells the parts."""

    own_fields: ClassVar[Sequence[str]] = (*OWN_FIELDS, TEXT_FORMAT)
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = RESPONSE_NEUTRAL
    prefix: ClassVar[str] = "resp_"
    length_field: ClassVar[str] = "max_output_tokens"

    about: Mapping[str, Any] = field(default_factory=dict)
    """Those of its fields that an answer repeats."""
    item_id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    count: int = 0
    """Events that were told."""
    written: dict[str, Any] | None = None
    """The choice that the text has become."""

    def answer(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the body of the whole answer."""
        (choice,) = choices
        return self.response(choice, choice["message"]["content"])

    def response(
        self, choice: Mapping[str, Any] | None = None, text: str = "", status: str = "in_progress"
    ) -> dict[str, Any]:
        """Return the response as it is now: with its text, when that is whole."""
        status = self.status(choice) if choice else status
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.served.name,
            "output": [self.item(choice, text)] if choice else [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "usage": self.counts() if choice else None,
            "written": choice["written"] if choice else None,
            **self.about,
        }

    def status(self, choice: Mapping[str, Any]) -> str:
        """Return whether a text is whole."""
        return "incomplete" if choice["finish_reason"] == "length" else "completed"

    def item(self, choice: Mapping[str, Any] | None = None, text: str = "") -> dict[str, Any]:
        """Return the message that an answer has: nothing at first."""
        about: dict[str, Any] = {"id": self.item_id, "type": "message", "role": "assistant"}
        if choice is None:
            return about | {"status": "in_progress", "content": []}
        content = [self.part(text, choice["logprobs"])]
        return about | {"status": self.status(choice), "content": content}

    def part(self, text: str = "", logprobs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the text as a part of its message."""
        rated = logprobs["content"] if logprobs else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": rated}

    def counts(self) -> dict[str, Any]:
        """Return how many tokens were read and written, as a response names them."""
        usage = self.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }

    def event(self, name: str, **facts: Any) -> bytes:
        """Return an event of the stream, numbered."""
        self.count += 1
        return message({"type": f"response.{name}", "sequence_number": self.count - 1} | facts)

    def chunks(self, event: Event) -> Iterator[bytes]:
        """Yield what a client that streams is told about an event."""
        if self.count == 0:
            yield self.event("created", response=self.response())
            yield self.event("in_progress", response=self.response())
        yield from super().chunks(event)

    def opening(self, row: int) -> Iterator[bytes]:
        """Yield what a stream tells before a text: where it will stand."""
        del row
        yield self.event("output_item.added", output_index=0, item=self.item())
        yield self.event("content_part.added", item_id=self.item_id, **PLACE, part=self.part())

    def chunk(self, *choices: dict[str, Any], **more: Any) -> bytes:
        """Return what is new of the text, and after its last part all that is whole."""
        del more
        (choice,) = choices
        new, here = choice["delta"]["content"], {"item_id": self.item_id, **PLACE}
        said = self.event("output_text.delta", **here, delta=new, logprobs=[]) if new else b""
        if choice["finish_reason"] is None:
            return said
        self.written, self.told[0] = choice, self.told[0] + new
        part = self.part(self.told[0], choice["logprobs"])
        rated = {"text": part["text"], "logprobs": part["logprobs"]}
        said += self.event("output_text.done", **here, **rated)
        said += self.event("content_part.done", **here, part=part)
        item = self.item(choice, self.told[0])
        return said + self.event("output_item.done", output_index=0, item=item)

    def ending(self) -> bytes:
        """Return what follows the text: all of the response."""
        found = self.response(self.written, self.told[0])
        return self.event(found["status"], response=found)

    def failure(self, error: ApiError) -> bytes:
        """Return the last thing that a client is told whose text will not be whole."""
        found = self.response(status="failed")
        found["error"] = {"code": "server_error", "message": str(error)}
        return self.event("failed", response=found)


def read_response(body: Mapping[str, Any], served: Served) -> Answered:
    """Return what a body asks for, or raise a ValueError or ApiError."""
    refuse_unknown(body, OWN_FIELDS, ELSEWHERE)
    for name in (name for name in KEPT if body.get(name) is not None):
        said = f"{name}={quote(body[name])} means what a server has kept, and this one keeps none"
        raise ValueError(f"{said}; send all that was said as input")
    instructions, given = field_in(body, "instructions", TEXT), body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    prompt = prompt_of(served, "input", given, instructions)
    form = text_format(body.get("text"))
    length = whole(body, "max_output_tokens", 1, served.limits.max_length)
    asked = Answered(served, logprobs=rated_in(body))
    asked.about = {
        "instructions": instructions,
        "max_output_tokens": length,
        "metadata": metadata_in(body),
        "temperature": body.get("temperature"),
        "text": {"format": form or {"type": "text"}},
        "top_p": body.get("top_p"),
    }
    take(asked, {**body, TEXT_FORMAT: form}, [prompt], length, called="input")
    return asked


def text_format(text: Any) -> Any:
    """Return what a text is to be, as the field `text` says it."""
    if text is None:
        return None
    if not isinstance(text, dict) or set(text) - {"format", "verbosity"}:
        raise ValueError(f'text={quote(text)} is not {{"format": ...}}; give that')
    if text.get("verbosity") not in (None, "medium"):
        raise ValueError(
            f"text.verbosity={quote(text['verbosity'])} is not supported; leave it out"
        )
    return text.get("format")


def rated_in(body: Mapping[str, Any]) -> int | None:
    """Return how many likely tokens to tell beside each one, None where none is rated."""
    top, include = whole(body, "top_logprobs", 0, MOST_TOP), body.get("include")
    if include not in (None, [], [RATED]):
        raise ValueError(f"include={quote(include)} is not supported; give [{RATED!r}] or nothing")
    if top is not None and not include:
        raise ValueError(f"top_logprobs are beside logprobs; set include to [{RATED!r}]")
    return (top or 0) if include else None


def metadata_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client wants to find in its answer again."""
    found = body.get("metadata")
    if not isinstance(found, dict | None):
        raise ValueError(f"metadata={quote(found)} is no object; give one")
    return found or {}

"""`POST /v1/completions` as OpenAI defines it, with the options of this library beside its own.

fields -> [completions] -> tickets, chat. `best_of` is OpenAI's: so many texts in all, of which the
likeliest n are returned; the library's writes so many candidates for each of its texts.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ssdlm.engine.chains import check_stream
from ssdlm.engine.choosing import kept
from ssdlm.engine.plain import Engine, Prompt
from ssdlm.engine.requests import Generation, Request
from ssdlm.serve.errors import ApiError
from ssdlm.serve.fields import Served, flag, prompts_in, refuse_unknown, whole
from ssdlm.serve.fields import field as field_in
from ssdlm.serve.formats import FORMATS, grammar_in
from ssdlm.serve.logprobs import logprobs_of
from ssdlm.serve.looks import DecidedText, WholeDraft, gap_of
from ssdlm.serve.tickets import Event, News, Position, Texts, Ticket, Written
from ssdlm.values import SWITCH, TEXT, About, check, quote

MOST_LOGPROBS = 5
UNUSED = ("user", "safety_identifier", "prompt_cache_key")
"""Texts about whoever asks."""
SHARED_FIELDS = ("model", "max_tokens", "temperature", "n", "best_of", "logprobs")
SHARED_FIELDS += ("stream", "stream_options", "diffusing", *UNUSED, *FORMATS)
"""Fields of a chat, too."""
OWN_FIELDS = ("prompt", "echo", *SHARED_FIELDS)
ELSEWHERE = {"messages": "use /v1/chat/completions", "prompt_logprobs": "use echo and logprobs"}
ELSEWHERE |= dict.fromkeys(("max_completion_tokens", "max_output_tokens"), "use max_tokens")
USUAL = ("temperature", "top_p", "top_k", "min_p")
"""Options that clients send with every request; 0 of the last two asks for nothing."""
COUNTS = {"num_samples": "n", "num_return_sequences": "n"}
"""Options of the library for which OpenAI has a name."""


@dataclass
class Completion:
    """A request for completions, and what its answer needs to know."""

    own_fields: ClassVar[Sequence[str]] = OWN_FIELDS
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Fields of OpenAI's that this model does not have, and the values that ask for nothing."""
    prefix: ClassVar[str] = "cmpl-"
    """What its ids begin with."""
    length_field: ClassVar[str] = "max_tokens"

    served: Served
    n: int = 1
    best_of: int = 1
    has_echo: bool = False
    logprobs: int | None = None
    is_stream: bool = False
    is_diffusing: bool = False
    has_usage: bool = False
    ticket: Ticket = field(init=False)
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    told: dict[int, str] = field(default_factory=dict)
    """What a stream has told of each text."""

    def __post_init__(self) -> None:
        self.id = self.prefix + uuid.uuid4().hex

    @property
    def kind(self) -> str:
        """What OpenAI calls an answer, or a chunk of one."""
        return "text_completion"

    def close(self, engine: Engine, texts: Texts) -> list[dict[str, Any]]:
        """Return the choices: of each prompt the likeliest n, if there are more."""
        texts = list(kept(engine.rate, texts))
        choices: list[dict[str, Any]] = []
        for start in range(0, len(texts), self.best_of):
            group = texts[start : start + self.best_of]
            if self.best_of > self.n:
                rated = zip(engine.rate(group), range(len(group)), strict=True)
                group = [group[place] for _, place in sorted(rated)[: self.n]]
            for request, text in group:
                index = len(choices)
                shown, reason = self.shown(request, text), reason_of(request, text)
                choices.append(self.choice(index, shown, reason))
                choices[-1]["logprobs"] = self.rated(engine, request, text)
                choices[-1]["written"] = asdict(text.written)
        return choices

    def shown(self, request: Request, text: Generation) -> str:
        """Return a text as the client wants it."""
        return (request.prompt if self.has_echo else "") + gap_of(request, text)

    def rated(self, engine: Engine, request: Request, text: Generation) -> dict[str, Any] | None:
        """Return the log-probabilities of a text's tokens, if they were asked for."""
        if self.logprobs is None:
            return None
        tokens = text.tokens[: request.options.length]
        context, top = request.context, self.logprobs
        return logprobs_of(engine, context, tokens, top=top, has_echo=self.has_echo)

    def choice(self, index: int, text: str, reason: str | None = None) -> dict[str, Any]:
        """Return one choice of an answer or a chunk."""
        return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return an answer, or a chunk of one."""
        about = {"id": self.id, "object": self.kind, "created": self.created}
        return about | {"model": self.served.name, "choices": choices}

    def usage(self) -> dict[str, int]:
        """Return how many tokens were read and written, those of candidates included."""
        contexts = {row.request.number: row.request.context for row in self.ticket.rows}
        read = sum(len(contexts[number]) for number in range(0, len(contexts), self.best_of))
        written = self.ticket.num_tokens
        counts = {"prompt_tokens": read, "completion_tokens": written}
        return counts | {"total_tokens": read + written}

    def answer(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the body of the whole answer."""
        return self.whole(choices) | {"usage": self.usage()}

    def chunks(self, event: Event) -> Iterator[bytes]:
        """Yield what a client that streams is told about an event."""
        if isinstance(event, Position):
            yield f": {event.ahead} before this one\n\n".encode()
        elif isinstance(event, News | Written):
            if event.row not in self.told:
                self.told[event.row] = ""
                yield from self.opening(event.row)
            if isinstance(event, Written):
                yield self.chunk(self.last(event))
            elif self.is_diffusing:
                yield self.chunk(self.choice(event.row, self.echoed(event.row) + event.item))
            else:
                self.told[event.row] += event.item
                yield self.chunk(self.choice(event.row, event.item))

    def echoed(self, row: int) -> str:
        """Return the prompt of a text, if it is to be repeated."""
        return self.ticket.rows[row].request.prompt if self.has_echo else ""

    def opening(self, row: int) -> Iterator[bytes]:
        """Yield what a stream tells before a text."""
        if not self.is_diffusing and (prompt := self.echoed(row)):
            yield self.chunk(self.choice(row, prompt))

    def last(self, event: Written) -> dict[str, Any]:
        """Return the choice that ends a text: what is not told yet, or all of a draft."""
        request = self.ticket.rows[event.row].request
        if self.is_diffusing:
            text = self.shown(request, event.text)
        else:
            text = gap_of(request, event.text)[len(self.told[event.row]) :]
        more = {"logprobs": event.extra, "written": asdict(event.text.written)}
        return self.choice(event.row, text, reason_of(request, event.text)) | more

    def chunk(self, *choices: dict[str, Any], **more: Any) -> bytes:
        """Return a message of the stream."""
        body = self.whole(list(choices)) | more
        if self.has_usage:
            body.setdefault("usage", None)
        return f"data: {json.dumps(body)}\n\n".encode()

    def failure(self, error: ApiError) -> bytes:
        """Return the last thing that a client is told whose text will not be whole."""
        return f"data: {json.dumps(error.to_json())}\n\n".encode()

    def ending(self) -> bytes:
        """Return what follows the last text."""
        usage = self.chunk(usage=self.usage()) if self.has_usage else b""
        return usage + b"data: [DONE]\n\n"


def reason_of(request: Request, text: Generation) -> str:
    """Return why a text ends; one that a grammar makes whole is never cut."""
    return "stop" if request.options.has_grammar else text.finish_reason


def read_completion(body: Mapping[str, Any], served: Served) -> Completion:
    """Return what a body asks for, or raise a ValueError or ApiError."""
    refuse_unknown(body, OWN_FIELDS, ELSEWHERE)
    asked = Completion(
        served, has_echo=flag(body, "echo"), logprobs=whole(body, "logprobs", 0, MOST_LOGPROBS)
    )
    prompts: list[Prompt] = [""] if body.get("prompt") is None else prompts_in(body["prompt"])
    take(asked, body, prompts, whole(body, "max_tokens", 0, served.limits.max_length))
    return asked


def take(
    asked: Completion,
    body: Mapping[str, Any],
    prompts: list[Prompt],
    length: int | None,
    called: str = "prompt",
) -> None:
    """Let a request be as the fields say that all of OpenAI's forms have, with its ticket."""
    refuse_foreign(body, asked.neutral)
    served, most = asked.served, asked.served.limits.max_rows
    asked.n = whole(body, "n", 1, most) or 1
    asked.best_of = whole(body, "best_of", 1, most) or asked.n
    asked.is_stream, asked.is_diffusing = flag(body, "stream"), flag(body, "diffusing")
    asked.has_usage = wants_usage(body)
    check_together(body, asked)
    changes = changes_in(body, asked, length) | grammar_in(body)
    usual = {name: changes.pop(name, None) for name in USUAL}
    says_how = any(usual.values()) or usual["top_p"] == 0
    if says_how and not (changes.get("projection") or changes.get("do_sample") is not None):
        # An answer of which nobody says how it is drawn may be greedy.
        changes["projection"] = served.model.options.projection
    options = served.options(prompts, changes, usual, called)
    if asked.logprobs is not None:
        read = sum(map(served.num_tokens, prompts)) if asked.has_echo else 0
        count = asked.n * (read + sum(one.length for one in options))
        served.limits.check_rated(count * (1 + asked.logprobs))
    if asked.is_stream and any(one.num_candidates > 1 for one in options):
        raise ValueError("gap does not go with stream; leave one of them out")
    look = WholeDraft if asked.is_diffusing else DecidedText
    asked.ticket = Ticket(
        prompts,
        options,
        close=None if asked.is_stream else asked.close,
        look=look if asked.is_stream else None,
        finish=asked.rated if asked.is_stream else None,
        is_watched=asked.is_diffusing,
        wants_position=asked.is_stream,
        is_written=length != 0,
    )


def refuse_foreign(body: Mapping[str, Any], foreign: Mapping[str, Sequence[Any]]) -> None:
    """Raise on fields that this model cannot follow, unless they ask for nothing."""
    for name, neutral in foreign.items():
        value = body.get(name)
        if value is not None and not any(is_same(value, one) for one in neutral):
            raise ValueError(f"{name}={quote(value)} is not supported; leave it out")
    for name, own in COUNTS.items():
        if body.get(name) is not None:
            raise ValueError(f"{name}={quote(body[name])}: use {own}, as OpenAI does")
    for name in UNUSED:
        field_in(body, name, TEXT)


def is_same(value: Any, other: Any) -> bool:
    """Tell whether two values are the same in JSON, where true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def check_together(body: Mapping[str, Any], asked: Completion) -> None:
    """Raise on fields that do not go with each other, or with the model."""
    if asked.best_of < asked.n:
        raise ValueError(
            f"best_of={asked.best_of} is less than n={asked.n}; use at least {asked.n}"
        )
    if asked.is_stream and asked.best_of > asked.n:
        raise ValueError(f"best_of={asked.best_of} does not go with stream; leave one of them out")
    if asked.is_diffusing and not asked.is_stream:
        raise ValueError("diffusing=true is about drafts; set stream to true")
    if asked.has_usage and not asked.is_stream:
        raise ValueError("stream_options are for streams; set stream to true")
    for name, is_asked in (
        ("logprobs", asked.logprobs is not None),
        ("best_of", asked.best_of > asked.n),
    ):
        if is_asked:
            given = f"{name}={quote(body.get(name, True))}"
            check_stream(asked.served.model.denoiser, given, "rates tokens; leave it out")


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Return whether a stream is to end with its usage."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not set(options) <= {
        "include_usage",
        "include_obfuscation",
    }:
        raise ValueError(f'stream_options={quote(options)} is not {{"include_usage": true}}')
    for name, value in options.items():
        check(f"stream_options.{name}", value, About(SWITCH, "", ""))
    return options.get("include_usage", False)


def changes_in(body: Mapping[str, Any], asked: Completion, length: int | None) -> dict[str, Any]:
    """Return the generation options that a body sets; temperature 0 is greedy."""
    changes = {name: value for name, value in body.items() if name not in asked.own_fields}
    given = next((n for n in ("length", "max_new_tokens") if body.get(n) is not None), None)
    if given and length is not None:
        name = asked.length_field
        raise ValueError(f"{given} and {name} are two names for one setting; give {name}")
    if body.get("gap") is not None and length is not None:
        name = asked.length_field
        raise ValueError(f"gap and {name} both say how long a gap is; give one of them")
    changes["num_samples"] = asked.best_of
    if length is not None:
        changes["length"] = max(1, length)
    temperature = body.get("temperature")
    if temperature == 0 and not isinstance(temperature, bool):
        if (projection := body.get("projection")) not in (None, "greedy"):
            raise ValueError(
                f"temperature=0 is greedy, and projection={quote(projection)} is not; give one"
            )
        changes["projection"] = "greedy"
    else:
        changes["temperature"] = temperature
    return changes

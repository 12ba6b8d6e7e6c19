"""`POST /v1/chat/completions` as OpenAI defines it: messages, by a template, and their completions.

completions, engine.chat -> [chat] -> tickets. A model without a template has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ssdlm.engine.chat import ChatText, chat_text, said
from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import Generation, Request
from ssdlm.serve.completions import SHARED_FIELDS, Completion, take
from ssdlm.serve.errors import ApiError
from ssdlm.serve.fields import Served, flag, refuse_unknown, whole
from ssdlm.values import quote

MOST_TOP = 20
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""What templates call those who speak, by OpenAI's words for them."""
TEXTS = ("text", "input_text", "output_text")
"""Kinds of the parts of a message that are text."""
CHAT_NEUTRAL: dict[str, Sequence[Any]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    **dict.fromkeys(("audio", "prediction", "web_search_options"), (None,)),
}
OWN_FIELDS = ("messages", "max_completion_tokens", "top_logprobs", *SHARED_FIELDS, *CHAT_NEUTRAL)
ELSEWHERE = {"prompt": "use messages, or /v1/completions"}
ELSEWHERE |= {"max_output_tokens": "use max_completion_tokens"}


@dataclass
class Chat(Completion):
    """A request for answers to messages."""

    own_fields: ClassVar[Sequence[str]] = OWN_FIELDS
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = CHAT_NEUTRAL
    prefix: ClassVar[str] = "chatcmpl-"
    length_field: ClassVar[str] = "max_completion_tokens"

    @property
    def kind(self) -> str:
        return "chat.completion.chunk" if self.is_stream else "chat.completion"

    def choice(self, index: int, text: str, reason: str | None = None) -> dict[str, Any]:
        """Return one choice of an answer or a chunk."""
        if self.is_stream:
            spoken: dict[str, Any] = {"delta": {"content": text}}
        else:
            spoken = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": index, **spoken, "logprobs": None, "finish_reason": reason}

    def opening(self, row: int) -> Iterator[bytes]:
        """Yield what a stream tells before a text: who speaks."""
        first = self.choice(row, "")
        first["delta"] = {"role": "assistant", **first["delta"]}
        yield self.chunk(first)

    def rated(self, engine: Engine, request: Request, text: Generation) -> dict[str, Any] | None:
        """Return the log-probabilities of a text's tokens as a chat has them."""
        found = super().rated(engine, request, text)
        if found is None:
            return None
        tops = found["top_logprobs"] or [{}] * len(found["tokens"])
        content = [
            rating(token, log) | {"top_logprobs": [rating(*pair) for pair in (top or {}).items()]}
            for token, log, top in zip(found["tokens"], found["token_logprobs"], tops, strict=True)
        ]
        return {"content": content, "refusal": None}


def rating(token: str, logprob: float) -> dict[str, Any]:
    """Return the log-probability of a token as a chat has it."""
    return {"token": token, "logprob": logprob, "bytes": list(token.encode(errors="replace"))}


def read_chat(body: Mapping[str, Any], served: Served) -> Chat:
    """Return what a body asks for, or raise a ValueError or ApiError."""
    refuse_unknown(body, OWN_FIELDS, ELSEWHERE)
    prompt = prompt_of(served, "messages", body.get("messages"))
    asked = Chat(served)
    if flag(body, "logprobs"):
        asked.logprobs = whole(body, "top_logprobs", 0, MOST_TOP) or 0
    elif body.get("top_logprobs") is not None:
        raise ValueError("top_logprobs are beside logprobs; set logprobs to true")
    names = [n for n in ("max_completion_tokens", "max_tokens") if body.get(n) is not None]
    if len(names) > 1:
        raise ValueError("max_tokens is the old name of max_completion_tokens; give one of them")
    length = whole(body, names[0], 1, served.limits.max_length) if names else None
    take(asked, body, [prompt], length, called="messages")
    return asked


def prompt_of(served: Served, name: str, messages: Any, system: str | None = None) -> ChatText:
    """Return messages as the model reads them; `system` is what it is told before."""
    if not served.can_chat:
        about = f"{quote(served.name)} has no chat template, it continues texts"
        raise ApiError(400, f"{about}; use /v1/completions", code="no_chat")
    if not isinstance(messages, list) or not messages:
        given = f"{name}={quote(messages)} is no list of messages"
        raise ValueError(f'{given}; give [{{"role": "user", "content": "..."}}]')
    served.limits.check_values(name, messages)
    spoken = [message_in(f"{name}[{index}]", one) for index, one in enumerate(messages)]
    return chat_text(served.model.tokenizer, said(spoken, system))


def message_in(where: str, value: Any) -> dict[str, str]:
    """Return who speaks in a message and what is said, as a template has them."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}={quote(value)} is no message; give it a role and a content")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"{where} has the role {quote(role)}; use one of {', '.join(ROLES)}")
    if value.get("type") not in (None, "message"):
        raise ValueError(
            f"{where} has the type {quote(value['type'])}, and is no message; give one"
        )
    for field in ("name", "id", "status"):
        if not isinstance(value.get(field), str | None):
            raise ValueError(f"{where} has the {field} {quote(value[field])}; give a text")
    for field in set(value) - {"role", "content", "name", "type", "id", "status"}:
        if value[field] not in (None, [], {}):
            raise ValueError(f"{where} has {quote(field)}, and this model reads text alone")
    return {"role": ROLES[role], "content": text_in(where, value.get("content"))}


def text_in(where: str, content: Any) -> str:
    """Return what a message says: a text, or the lines that its parts are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"{where} has the content {quote(content)}; give a text")
    for part in content:
        is_text = isinstance(part, dict) and part.get("type") in TEXTS
        if not is_text or not isinstance(part.get("text"), str):
            raise ValueError(f"{where} has {quote(part)}, and this model reads text alone")
    return "\n".join(part["text"] for part in content)

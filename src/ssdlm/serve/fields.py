"""Fields that both forms of a request share: prompts, the model, generation options.

completions, native -> [fields] -> tickets
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as field_of
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from ssdlm.api import SSDLM
from ssdlm.engine.plain import Prompt
from ssdlm.guidance.grammar import split_labels
from ssdlm.needs import GRAMMARS
from ssdlm.options import FOREIGN_NAMES, FORMER_NAMES, GenerateOptions, all_names
from ssdlm.serve.formats import FORMATS
from ssdlm.serve.guides import Guides
from ssdlm.serve.limits import Limits, texts_at_once
from ssdlm.storage.builtin import builtin_guides
from ssdlm.values import SWITCH, WHOLE, About, Kind, check, quote

LONGEST_NAME = 100
"""Characters of a word for which a like one is sought."""


@dataclass(frozen=True)
class Served:
    """One model of a server, under a name, with guides and within limits."""

    model: SSDLM
    name: str
    guides: Guides
    limits: Limits
    source: str = ""
    """Where the model was opened from, if its name does not say it."""
    began: int = field_of(default_factory=lambda: int(time.time()))

    @property
    def can_chat(self) -> bool:
        """Whether the model has a template for messages."""
        tokenizer = self.model.tokenizer
        return tokenizer is not None and bool(tokenizer.settings.get("chat_template"))

    def options(
        self,
        prompts: list[Prompt],
        changes: Mapping[str, Any],
        usual: Mapping[str, Any] | None = None,
        called: str = "prompt",
    ) -> list[GenerateOptions]:
        """Return the options for each prompt: the model's own, some of them changed.

        `usual` are those that clients send with every request, as if they were the model's own:
        where they have no effect nobody is told. `called` is the field of the prompts.
        """
        # How many go together is the server's; it changes no text.
        at_once = texts_at_once(self.model.device.type)
        self.limits.check_rows(len(prompts), at_once)
        usual = usual or {}
        for name, value in {**changes, **usual}.items():
            self.limits.check_values(name, value)
        if changes.get("streamer") is not None:
            raise ValueError("streamer is an object of Python; leave it out")
        own = self.model.options.change(**usual).as_own()
        own.change(batch_size=changes.get("batch_size"))  # checked like others, it changes nothing
        several = called if called.endswith("s") else f"{called}s"
        each = {**changes, "batch_size": at_once}
        found = own.per_prompt(len(prompts), of=several, **each)
        for one in {id(one): one for one in found}.values():
            self.limits.check_options(one)
            self.guides.check(one.control)
        num_rows = sum(one.num_rows * max(1, one.particles) for one in found)
        self.limits.check_rows(num_rows, at_once)
        for prompt, one in zip(prompts, found, strict=True):
            texts = {called: prompt, "suffix": one.suffix, "control_by": one.control_by or ""}
            for name, text in texts.items():
                self.limits.check_characters(name, text)
                self.limits.check_tokens(name, self.num_tokens(text))
        return found

    def num_tokens(self, text: Prompt) -> int:
        """Return how many tokens a text has."""
        if not isinstance(text, str):
            return len(text)
        # What cannot be encoded is refused later, with the reason.
        return len(self.model.context(text)) if text and self.model.tokenizer else 0

    @cached_property
    def readers(self) -> set[str]:
        """The guides that read drafts; others weigh particles, of which there is no draft."""
        binder, folders = self.model.engine.controls.binder, self.guides.folders.items()
        return {name for name, folder in folders if binder is None or binder.knows(folder)}

    def about(self) -> dict[str, Any]:
        """Return the model as OpenAI lists it, and what it can do."""
        denoiser = self.model.denoiser
        return {
            "id": self.name,
            "object": "model",
            "created": self.began,
            "owned_by": "ssdlm",
            "chat": self.can_chat,
            "gaps": denoiser.most_open != 1,
            "guides": list(self.guides.labels),
            "context_length": denoiser.max_len,
        }

    def info(self, *, is_local: bool) -> dict[str, Any]:
        """Return what a client may want to know before it asks.

        `sources` are what a command line calls the model and the guides.
        """
        limits = ("max_length", "max_prompt", "max_rows", "max_body")
        folders = self.guides.folders.items()
        guides = {name: shown_source(folder, is_local=is_local) for name, folder in folders}
        return {
            "model": self.name,
            "most_open": self.model.denoiser.most_open,
            "guides": self.guides.labels,
            "readers": [name for name in self.guides.labels if name in self.readers],
            "sources": {
                "model": shown_source(self.source or self.name, is_local=is_local),
                "guides": guides,
            },
            "lam": self.guides.usual_lams(self.model.options.gradient),
            "defaults": self.model.options.to_json(),
            "limits": {name: getattr(self.limits, name) for name in limits},
        }


def shown_source(source: str, *, is_local: bool) -> str:
    """Return what opens a model or guide again; other machines are not told the way to a folder."""
    home = split_labels(source)[0]
    if home in builtin_guides() or not Path(home).is_dir():
        return source
    folder = Path(home).resolve()
    return source.replace(home, str(folder) if is_local else f"path/to/{folder.name}", 1)


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a switch of a body; without it, or null, false."""
    return bool(field(body, name, SWITCH))


def whole(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """Return a whole number of a body, None without it."""
    return field(body, name, WHOLE, low=low, high=high, remedy=f"use {low} to {high}")


def field(body: Mapping[str, Any], name: str, kind: Kind, **facts: Any) -> Any:
    """Return a field of a body in its normal form, None without it."""
    value = body.get(name)
    return None if value is None else check(name, value, About(kind, "", "", **facts))


def prompts_in(value: Any) -> list[Prompt]:
    """Return prompts: one text, the ids of one, or a list of such."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(one, str | list) for one in value):
            return value
        if not any(isinstance(one, str | list) for one in value):
            return [value]
    raise ValueError(
        f"prompt={quote(value)} is neither a text nor a list of token ids, nor a list of such"
    )


def refuse_unknown(
    body: Mapping[str, Any], own: Collection[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raise on a field that a form has not; what to use is told `elsewhere`, or is the nearest."""
    known = {*own, *all_names(), *FORMER_NAMES}
    words = {n: use for n, use in (FOREIGN_NAMES | dict(elsewhere or {})).items() if n not in known}
    for name in (name for name, value in body.items() if value is not None and name not in known):
        near = name if name in words else nearest(name.lower(), [*known, *words])
        remedy = words.get(near) or (f"the nearest is {near}" if near else "see /docs")
        raise ValueError(f"there is no option {quote(name)}; {remedy}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the one of some words that is most like another, nothing where none is."""
    return next(iter(get_close_matches(word[:LONGEST_NAME], sorted(known), 1)), "")


def field_at_fault(error: Exception, fields: Collection[str]) -> str | None:
    """Return the field of a body that a message begins with, or says is no option."""
    found = re.match(r"(?:there is no option ')?(\w+)", str(error))
    if found and found[1] in GRAMMARS:  # what it was called
        return next((name for name in (found[1], *FORMATS, "text") if name in fields), None)
    return found[1] if found and found[1] in fields else None

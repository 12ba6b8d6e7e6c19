"""Who continues the lines of a file of prompts: a model, and how it is to write.

plain -> [writers] -> prompt_files, sharing
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from ssdlm.engine.chat import Messages, chat_text
from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import Generation, Requests, in_order
from ssdlm.options import GenerateOptions


@dataclass(frozen=True)
class PromptLine:
    """One line of a file of prompts."""

    prompt: str
    changes: dict[str, Any]
    """The generation options that the line sets for itself, by name."""
    values: dict[str, Any]
    """All of its fields, which go with its texts."""
    where: str
    """The file and the line's number from 1, for errors about it."""
    messages: Messages = ()
    """What is said so far, in place of a prompt."""


class Writer(ABC):
    """A model together with how it is to write: it continues the lines of a file of prompts."""

    num_processes: int = 1
    """How many processes write."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def num_texts(self, line: PromptLine) -> int:
        """Return how many texts a line gets."""

    @abstractmethod
    def check(self, lines: Sequence[PromptLine]) -> None:
        """Raise a ValueError on lines that cannot be continued."""

    def guides(self, lines: Sequence[PromptLine]) -> Mapping[str, str]:
        """Return the digests of the guides that steer the lines; they must have been checked."""
        del lines
        return {}

    @abstractmethod
    def write(self, lines: Sequence[PromptLine]) -> Iterable[Generation]:
        """Give the texts of the lines, line by line."""


@dataclass(frozen=True)
class OptionsWriter(Writer):
    """An engine and the options of all lines that set no others."""

    engine: Engine
    options: GenerateOptions
    num_processes: int = 1

    @property
    def device(self) -> torch.device:
        return self.engine.device

    def num_texts(self, line: PromptLine) -> int:
        return self.options.change(**line.changes).num_samples

    def check(self, lines: Sequence[PromptLine]) -> None:
        self.requests(lines)

    def guides(self, lines: Sequence[PromptLine]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for options in self.options_of(lines):
            for control in options.control:
                if isinstance(control, str) and control not in found:
                    found[control] = self.engine.controls.digest(control, options)
        return found

    def write(self, lines: Sequence[PromptLine]) -> Iterator[Generation]:
        return in_order(self.engine.write(self.requests(lines)))

    def requests(self, lines: Sequence[PromptLine]) -> Requests:
        """Return a request for each text of each line."""
        return self.engine.prepare([*map(self.prompt_of, lines)], self.options_of(lines))

    def prompt_of(self, line: PromptLine) -> str:
        """Return the text that a line's texts continue."""
        return chat_text(self.engine.tokenizer, line.messages) if line.messages else line.prompt

    def options_of(self, lines: Sequence[PromptLine]) -> list[GenerateOptions]:
        """Return each line's options; lines without changes share one value, checked once."""
        return [
            self.options.change(**line.changes) if line.changes else self.options for line in lines
        ]


@runtime_checkable
class KeywordModel(Protocol):
    """A model of another kind, which continues prompts under keywords of its own."""

    @property
    def device(self) -> torch.device: ...

    def check(self, prompts: Sequence[str], **options: Any) -> object:
        """Raise a ValueError on options or prompts that it cannot follow."""
        ...

    def generate(
        self, prompts: Sequence[str], *, num_samples: int, batch_size: int, **options: Any
    ) -> list[Generation]:
        """Return `num_samples` texts of each prompt, prompt by prompt."""
        ...


@dataclass(frozen=True)
class KeywordWriter(Writer):
    """A model of another kind and the keywords that it writes with."""

    model: KeywordModel
    options: Mapping[str, Any]
    num_samples: int = 1
    batch_size: int = 32

    @property
    def device(self) -> torch.device:
        return self.model.device

    def num_texts(self, line: PromptLine) -> int:
        del line
        return self.num_samples

    def check(self, lines: Sequence[PromptLine]) -> None:
        for line in lines:
            if line.messages:
                raise ValueError("messages are answered by a model of SSDLM; give a prompt")
            if line.changes:
                name = next(iter(line.changes))
                raise ValueError(f"{name}={line.changes[name]!r} cannot be set by a line here")
        prompts = [line.prompt for line in lines]
        self.model.check(prompts, num_samples=self.num_samples, **self.options)

    def write(self, lines: Sequence[PromptLine]) -> list[Generation]:
        return self.model.generate(
            [line.prompt for line in lines],
            num_samples=self.num_samples,
            batch_size=self.batch_size,
            **self.options,
        )

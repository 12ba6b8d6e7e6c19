"""What is new about a text that is being written: its decided part, or its whole draft.

worker -> [looks] -> completions. Both run in the engine's thread, after a turn of their job.
"""

from __future__ import annotations

from ssdlm.engine.ending import end, num_certain, text_of
from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import Generation, Request
from ssdlm.engine.schedule import Job
from ssdlm.tokenizer import HALF


def gap_of(request: Request, text: Generation) -> str:
    """Return a text without what follows a gap, which the client has already."""
    return text.text.removesuffix(request.options.suffix)


class DecidedText:
    """Tells the text as it is decided, each character once.

    Nothing is told that could still be part of a stop string, or of a character that is not whole.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self.tokenizer, self.request = engine.tokenizer, request
        self.count = -1
        self.told = ""

    def __call__(self, job: Job) -> list[str]:
        """Return what the text has got since the last look."""
        # Behind a gap is what the client sent.
        decided = job.decided()[: self.request.options.length]
        if len(decided) == self.count:
            return []
        self.count = len(decided)
        sure = decided[: num_certain(self.tokenizer, self.request, decided)]
        text = text_of(self.tokenizer, sure, self.request.context).rstrip(HALF)
        new = text[len(self.told) :]
        if not new or not text.startswith(self.told):
            return []
        self.told = text
        return [new]


class WholeDraft:
    """Tells the whole text as it would end now, whenever it has changed."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.tokenizer, self.request = engine.tokenizer, request
        self.told: str | None = None

    def __call__(self, job: Job) -> list[str]:
        """Return the draft, if it is another than the one before."""
        tokens = job.tokens
        if job.step is not None and not job.step.is_last:
            tokens = tokens + job.step.tokens[job.row].tolist()
        tokens = tokens[: self.request.options.length]
        text = end(self.tokenizer, self.request, tokens).text
        if text == self.told:
            return []
        self.told = text
        return [text]

"""Texts as clients ask a server for them, and as Python does.  [asking] -> serve.py load"""

from __future__ import annotations

import json
import random
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hostile import CHAT, RESPONSES, REWRITE, request

from ssdlm import SSDLM
from ssdlm.engine.chat import chat_text, said
from ssdlm.engine.requests import Generation, in_order

COMPLETIONS = "/v1/completions"
LENGTHS = {COMPLETIONS: "max_tokens", CHAT: "max_completion_tokens", RESPONSES: "max_output_tokens"}
"""What a path calls the length."""
NAMES = {COMPLETIONS: "prompt", CHAT: "messages", RESPONSES: "input", REWRITE: "text"}
PROMPTS = ("The movie was", "The river had", "In the year 1920", "She opened the door and", "He")
WORDS = [{"must": ["time"]}, {"must_not": ["the", "movie"], "end_at_sentence": True}]
"""Required and forbidden words: what a GPU looks at between passes."""
SCHEMA = {
    "type": "object",
    "properties": {"year": {"type": "integer", "maximum": 3000}, "good": {"type": "boolean"}},
    "required": ["year", "good"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= " " item (", " item)*\nitem ::= [a-z]+'
FORMAT = {"name": "facts", "schema": SCHEMA}
FACTS = {"json_schema": SCHEMA, "length": 40}
"""A grammar, with tokens enough for any of its texts."""
PLAIN: tuple[str, dict[str, Any], dict[str, Any]] = (COMPLETIONS, {}, {})
API: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (COMPLETIONS, {}, {"top_k": 40, "min_p": 0.01}),
    (COMPLETIONS, {}, {"presence_penalty": 0.5, "logit_bias": {"300": 2.0}}),
    (COMPLETIONS, {"guided_choice": [" yes", " no"]}, {"regex": " yes| no"}),
    (COMPLETIONS, {"structured_outputs": {"grammar": GRAMMAR}}, {"grammar": GRAMMAR}),
    (CHAT, {}, {}),
    (CHAT, {}, {"frequency_penalty": 0.5, "stop": ["."]}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": FORMAT}}, FACTS),
    (RESPONSES, {}, {}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", **FORMAT}}}, FACTS),
    (REWRITE, {}, {}),
]
"""Ways to ask: the path, options by the words of others if there are such, and by ours."""


@dataclass(frozen=True)
class Asked:
    """A text that a client asks for."""

    path: str
    said: str
    """The prompt, what a user says, or the text of which the second word is written anew."""
    theirs: dict[str, Any]
    ours: dict[str, Any]
    is_stream: bool = True

    @property
    def span(self) -> list[int]:
        """Where the second word is."""
        start = self.said.index(" ")
        return [start, (self.said + " ").index(" ", start + 1)]

    def request(self) -> bytes:
        """Return what goes over the connection."""
        body: dict[str, Any] = {
            NAMES[self.path]: said(self.said) if self.path == CHAT else self.said
        }
        if self.path == REWRITE:
            body["spans"] = [self.span]
        options = dict(self.ours)
        if (length := options.pop("length", None)) and self.path != REWRITE:
            body[LENGTHS[self.path]] = length
        if self.theirs:
            body |= {"seed": options["seed"], **self.theirs}
        else:
            body |= options
        return request("POST", self.path, json.dumps(body | {"stream": self.is_stream}).encode())

    def prompt(self, model: SSDLM) -> str:
        """Return what the text continues."""
        is_chat = self.path in (CHAT, RESPONSES)
        return chat_text(model.tokenizer, said(self.said)) if is_chat else self.said

    def alone(self, model: SSDLM) -> str:
        """Return the text, written alone."""
        if self.path == REWRITE:
            return model.rewrite(self.said, [self.span], seed=self.ours["seed"])[0].text
        return model.generate([self.prompt(model)], **self.ours)[0].text

    def told(self, answer: bytes) -> tuple[str, bool]:
        """Return the text of an answer as far as it was told, and whether it is whole."""
        if not self.is_stream:
            return text_of(json.loads(answer.partition(b"\r\n\r\n")[2])), True
        lines = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
        pieces = [json.loads(line) for line in lines]
        ends = ("response.completed", "response.incomplete", "done")
        is_whole = b"data: [DONE]" in answer
        is_whole |= any(one.get("type", one.get("event")) in ends for one in pieces)
        return "".join(map(piece_of, pieces)), is_whole


def text_of(answer: dict[str, Any]) -> str:
    """Return the text of a whole answer."""
    if "rewrites" in answer:
        return answer["rewrites"][0]["text"]
    if "output" in answer:
        return answer["output"][0]["content"][0]["text"]
    (choice,) = answer["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def piece_of(event: dict[str, Any]) -> str:
    """Return what an event of a stream adds to its text."""
    if "choices" in event:
        (choice,) = event["choices"]
        return choice["text"] if "text" in choice else choice["delta"]["content"]
    if event.get("event") == "done":
        return event["text"]
    return event["delta"] if event.get("type") == "response.output_text.delta" else ""


def kinds_of(args: Namespace, model: SSDLM) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the ways to ask that take turns, of those that the model has."""
    more: list[dict[str, Any]] = []
    if args.kinds != "default":
        more += [{"mode": "autoregressive"}, {"mode": "speculative"}, {"stop": ["."]}]
        more += WORDS if args.kinds in ("all", "api") else []
        more += [{"regex": r"( [a-z]+){1,9}\.?"}]
        more += [{"control": f"{name}=positive"} for name in args.guides.split(",") if name]
    first = API if args.kinds == "api" else [PLAIN] * 7
    kinds = [*first, PLAIN, *((COMPLETIONS, {}, one) for one in more)]
    if model.denoiser.most_open == 1:  # a causal language model writes in one way
        kinds = [one for one in kinds if one[0] != REWRITE and not {"mode", "must"} & one[2].keys()]
    return kinds


def plan(args: Namespace, model: SSDLM, count: int, seed: int = 0) -> list[Asked]:
    """Return texts of mixed lengths, modes, constraints and controls."""
    rng, length, kinds = random.Random(seed), args.length, kinds_of(args, model)
    asked: list[Asked] = []
    for number in range(count):
        path, theirs, ours = kinds[number % len(kinds)]
        text = f"{rng.choice(PROMPTS)} {rng.choice(PROMPTS).lower()}"
        own = {"seed": number, "length": rng.choice([length // 4, length // 2, length])}
        is_stream = args.kinds != "api" or number % 3 > 0
        asked.append(Asked(path, text, theirs, own | ours, is_stream))
    return asked


class Offline(NamedTuple):
    """Texts as Python writes them together; spans are among the texts and in no other figure."""

    texts: list[str]
    tokens: int
    passes: float
    seconds: float


def offline(model: SSDLM, asked: Sequence[Asked]) -> Offline:
    """Write the same texts as `ssdlm generate --input` does."""
    together = [one for one in asked if one.path != REWRITE]
    start = time.perf_counter()
    options = [model.options.change(**one.ours) for one in together]
    requests = model.engine.prepare([one.prompt(model) for one in together], options)
    texts: list[Generation] = list(in_order(model.engine.write(requests)))
    seconds = time.perf_counter() - start
    passes = sum(text.passes_per_token * max(1, len(text.tokens)) for text in texts)
    found = iter(text.text for text in texts)
    own = [one.alone(model) if one.path == REWRITE else next(found) for one in asked]
    return Offline(own, sum(len(text.tokens) for text in texts), passes, seconds)

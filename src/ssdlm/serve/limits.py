"""What a server takes on, and for how long: every bound once.  [limits] -> all of serve"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ssdlm.engine.runners import CPU_SLOTS
from ssdlm.engine.wanted import names_file
from ssdlm.options import GenerateOptions
from ssdlm.values import quote

MOST_OF_A_GRAMMAR = 10_000
"""Characters of a pattern, a schema or a grammar."""
MOST_CHARACTERS = 1000
"""Of all words that a text must or must not contain: a table has a row for each."""
ACCEPTED_AT_ONCE = 8
"""Connections that are accepted before any of them is looked at."""
OWN_DESCRIPTORS = 64 + 8 * ACCEPTED_AT_ONCE
"""File descriptors that a server needs beside those of its connections, some of them for those that
are being accepted or closed."""
PASSES_PER_TOKEN = 100
"""The paper's slowest path: T = 2500 for blocks of 25."""

MOST_VALUES = 1000
"""Of an option that is a list or an object: each is checked, and some with every text."""
MOST_RATED = 100_000
"""Log-probabilities in an answer: nobody else is answered while it is made JSON."""
CHARACTERS_PER_TOKEN = 32
"""Of a prompt, on average; texts have four or five."""


def texts_at_once(device: str) -> int:
    """Return how many texts are written at a time."""
    return CPU_SLOTS if device == "cpu" else 256


@dataclass(frozen=True)
class Limits:
    """The bounds of one server."""

    max_queue: int = 256
    """Texts that wait; a request beyond them is answered 429."""
    max_length: int = 512
    """Tokens of a text."""
    max_prompt: int = 2048
    """Tokens of a prompt, or of what follows a gap."""
    max_rows: int = 64
    """Texts of one request: prompts times samples, candidates and particles."""
    max_controls: int = 8
    """Controls of a text: while guides are fitted, no other text is written."""
    max_body: int = 1 << 20
    """Bytes of a request."""
    max_connections: int = 1024
    max_unread: int = 4096
    """Events that wait for a client who does not read; then its request is given up."""
    max_unread_bytes: int = 16 << 20
    """Of the same, the least that they may have: a draft with many candidates has megabytes."""
    header_seconds: float = 10.0
    """For all headers of a request, and for a connection without any."""
    idle_seconds: int = 10
    """Between two requests of a connection."""
    body_seconds: float = 30.0
    """For the whole body of a request."""
    send_seconds: float = 60.0
    """For a client to take what it is sent."""
    compile_seconds: float = 10.0
    """Of a processor, for the constraints of a request to be compiled."""
    grace: float = 30.0
    """Seconds that running requests have after SIGTERM."""

    def within_descriptors(self) -> Limits:
        """Return the limits with as many connections as may be open, after raising that number."""
        import resource  # Unix has it

        needed = self.max_connections + OWN_DESCRIPTORS
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        infinite = resource.RLIM_INFINITY
        if soft == infinite or soft >= needed:
            return self
        most = needed if hard == infinite else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        if soft <= OWN_DESCRIPTORS:
            raise ValueError(
                f"ulimit -n is {soft}, and a server needs {OWN_DESCRIPTORS} open files beside its "
                f"connections; raise it to {needed}"
            )
        return replace(self, max_connections=min(self.max_connections, soft - OWN_DESCRIPTORS))

    def check_rows(self, num_rows: int, at_once: int, more: str = "") -> None:
        """Raise on a request for more texts than one may have, or than could ever wait."""
        most = min(self.max_rows, self.max_queue + at_once)
        if num_rows > most:
            raise ValueError(
                f"{num_rows} texts are more than the {most} that a request may have; ask for fewer "
                f"{more or 'prompts, samples, '}candidates or particles at a time"
            )

    def check_options(self, options: GenerateOptions) -> None:
        """Raise on settings that would keep the server from its other clients."""
        if options.length > self.max_length:
            raise ValueError(
                f"length={options.length} is more than the {self.max_length} tokens that this "
                "server writes; ask for fewer"
            )
        for name in ("control", "lam", "particle_weight"):
            if (count := len(getattr(options, name))) > self.max_controls:
                raise ValueError(
                    f"{name} has {count} values, and this server takes {self.max_controls}; give "
                    "fewer"
                )
        passes = options.T * len(options.blocks())
        most = PASSES_PER_TOKEN * self.max_length
        if options.mode == "diffusion" and passes > most:
            raise ValueError(
                f"T={options.T} for {len(options.blocks())} blocks are {passes} passes, and this "
                f"server does {most} for a text; use a lower T"
            )
        pins = (text for _, text in options.pin)
        words = [*options.stop, *options.must, *options.must_not, *pins]
        size = sum(map(len, words))
        if size > MOST_CHARACTERS:
            raise ValueError(
                f"stop, must, must_not and pin have {size} characters, and this server takes "
                f"{MOST_CHARACTERS}; use fewer words"
            )
        size = len(options.regex or options.json_schema or options.grammar or "")
        if size > MOST_OF_A_GRAMMAR:
            raise ValueError(
                f"regex, json_schema or grammar has {size} characters, and this server takes "
                f"{MOST_OF_A_GRAMMAR}; make it shorter"
            )
        for name in ("json_schema", "grammar"):
            value = getattr(options, name)
            if value is not None and names_file(name, value):
                raise ValueError(
                    f"{name}={quote(value)} names a file, and a server opens none; send what is in "
                    "it"
                )
        if options.reduction != "sum":
            raise ValueError(
                f"reduction={options.reduction} lets a text depend on the others of its batch, "
                "which are other clients' here; leave it out"
            )

    def check_values(self, name: str, value: Any) -> None:
        """Raise on a list or an object that is too long even to check its values."""
        if isinstance(value, list | dict) and len(value) > MOST_VALUES:
            raise ValueError(
                f"{name} has {len(value)} values, and this server takes {MOST_VALUES}; give fewer"
            )

    def check_rated(self, count: int) -> None:
        """Raise on an answer of too many log-probabilities, those of likely tokens included."""
        if count > MOST_RATED:
            raise ValueError(
                f"logprobs would be {count}, and this server tells {MOST_RATED}; ask for fewer "
                "texts, tokens or likely tokens"
            )

    def check_characters(self, name: str, text: str | Sequence[int]) -> None:
        """Raise on a text that is too long even to count its tokens."""
        most = self.max_prompt * CHARACTERS_PER_TOKEN
        if isinstance(text, str) and len(text) > most:
            raise ValueError(
                f"{name} has {len(text)} characters, and this server reads {most}; shorten it"
            )

    def check_tokens(self, name: str, count: int) -> None:
        """Raise on a prompt or a suffix of too many tokens."""
        if count > self.max_prompt:
            raise ValueError(
                f"{name} has {count} tokens, and this server reads {self.max_prompt}; shorten it"
            )

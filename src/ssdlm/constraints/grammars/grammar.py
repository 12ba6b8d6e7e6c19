"""A grammar as an automaton of tokens.  pattern, schema -> expression -> [grammar] -> words

Compiled ones are kept on disk: they depend on the grammar, the tokenizer and the characters that
Python knows, and on nothing else.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssdlm.constraints.automaton import Automaton, boundaries
from ssdlm.constraints.grammars.expression import Expression
from ssdlm.constraints.grammars.kinds import KindTable, read_tokens
from ssdlm.constraints.grammars.machine import TooLarge
from ssdlm.constraints.grammars.pattern import read_pattern
from ssdlm.constraints.grammars.schema import read_schema
from ssdlm.constraints.grammars.utf8 import ByteMachine, byte_machine, intersection
from ssdlm.storage.arrays import ArrayCache, Arrays
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import quote

FORMAT = 2
"""Of the arrays on disk, and of what grammars mean; another number makes them anew."""


@dataclass(frozen=True)
class Grammar:
    """What a whole text has to match."""

    regex: str | None = None
    json_schema: str | None = None
    """The text of a JSON schema."""

    def __str__(self) -> str:
        name = "regex" if self.regex is not None else "json_schema"
        return f"{name}={quote(getattr(self, name))}"

    def expression(self, *, is_narrow: bool) -> Expression:
        """Return what it is made of; narrow, without the rarer characters of classes."""
        if self.json_schema is not None:
            return read_schema(self.json_schema, is_narrow=is_narrow)
        return read_pattern(self.regex or "", is_narrow=is_narrow)

    def compile(
        self,
        tokenizer: Tokenizer,
        spellings: Sequence[bytes],
        cache: ArrayCache,
        also: ByteMachine | None = None,
    ) -> Automaton:
        """Return the automaton of the texts that match, and that `also` accepts if it is given."""

        def compute() -> Arrays:
            try:
                return self.arrays(tokenizer, spellings, also, is_narrow=False)
            except TooLarge:
                pass
            try:
                return self.arrays(tokenizer, spellings, also, is_narrow=True)
            except TooLarge as error:
                raise ValueError(
                    f"{self} needs more than {error}; make it simpler, with fewer or lower repeats"
                ) from None

        if also is not None:  # the words after a prompt are nobody else's
            arrays = compute()
        else:
            size, known = len(spellings), unicodedata.unidata_version
            key = [FORMAT, known, self.regex, self.json_schema, tokenizer.digest, size]
            arrays = cache.get("grammar", json.dumps(key), compute)
        kind_of, first = arrays["kind_of"], arrays["first"]
        table = KindTable(kind_of, first, arrays["kinds"], arrays["targets"])
        return Automaton(
            table,
            arrays["accepts"],
            np.zeros(table.num_states, dtype=bool),
            np.arange(table.num_states),
            boundaries(spellings),
            tokenizer.end_of_text,
            start=1,
            sentences=None,
        )

    def arrays(
        self,
        tokenizer: Tokenizer,
        spellings: Sequence[bytes],
        also: ByteMachine | None,
        *,
        is_narrow: bool,
    ) -> Arrays:
        """Return the table of tokens as arrays, or raise if no text matches at all."""
        machine = byte_machine(self.expression(is_narrow=is_narrow))
        if not machine.accepts.any():
            raise ValueError(f"{self} matches no text at all; correct it")
        machine = machine if also is None else intersection(machine, also)
        never = frozenset(tokenizer.special_ids())
        table, accepts = read_tokens(
            machine, spellings, never=never, end_of_text=tokenizer.end_of_text
        )
        return {
            "kind_of": table.kind_of,
            "first": table.first,
            "kinds": table.kinds,
            "targets": table.targets,
            "accepts": accepts,
        }

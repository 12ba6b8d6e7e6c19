"""A grammar as an automaton of tokens.  pattern, schema, unfolding -> [grammar] -> words

Compiled ones are kept on disk: they depend on the grammar, the tokenizer and the characters that
Python knows, and on nothing else.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ssdlm.constraints.automaton import Automaton, boundaries
from ssdlm.constraints.grammars.kinds import KindTable, read_tokens
from ssdlm.constraints.grammars.machine import TooLarge
from ssdlm.constraints.grammars.notation import read_grammar
from ssdlm.constraints.grammars.pattern import read_pattern
from ssdlm.constraints.grammars.schema import read_schema
from ssdlm.constraints.grammars.unfolding import Unfolding
from ssdlm.constraints.grammars.utf8 import ByteMachine, byte_machine, in_bytes, intersection
from ssdlm.storage.arrays import ArrayCache, Arrays
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import quote

FORMAT = 3
"""Of the arrays on disk, and of what grammars mean; another number makes them anew."""


class Size(NamedTuple):
    """How large a machine may become."""

    is_narrow: bool
    """Whether classes are without their rarer characters."""
    most_states: int
    """Of a context-free grammar's machines, from which on they get no further level."""


SIZES = (Size(False, 2048), Size(True, 512), Size(True, 32))
"""Those that are tried, one after another."""


@dataclass(frozen=True)
class Grammar:
    """What a whole text has to match."""

    regex: str | None = None
    json_schema: str | None = None
    """The text of a JSON schema."""
    grammar: str | None = None
    """The text of a context-free grammar."""

    def __str__(self) -> str:
        (name,) = (name for name, value in vars(self).items() if value is not None)
        return f"{name}={quote(getattr(self, name))}"

    def machine(self, size: Size) -> ByteMachine:
        """Return the machine of its texts, or of some where they are told to be fewer."""
        if self.grammar is not None:
            rules = read_grammar(self.grammar, is_narrow=size.is_narrow)
            return in_bytes(*Unfolding(rules, size.most_states).run())
        if self.json_schema is not None:
            return byte_machine(read_schema(self.json_schema, is_narrow=size.is_narrow))
        return byte_machine(read_pattern(self.regex or "", is_narrow=size.is_narrow))

    def compile(
        self,
        tokenizer: Tokenizer,
        spellings: Sequence[bytes],
        cache: ArrayCache,
        also: ByteMachine | None = None,
    ) -> Automaton:
        """Return the automaton of the texts that match, and that `also` accepts if it is given."""

        def compute() -> Arrays:
            reason = ""
            for size in SIZES if self.grammar is not None else SIZES[:2]:
                try:
                    return self.arrays(tokenizer, spellings, also, size)
                except TooLarge as error:
                    reason = str(error)
            raise ValueError(
                f"{self} needs more than {reason}; make it simpler, with fewer or lower repeats"
            )

        if also is not None:  # the words after a prompt are nobody else's
            arrays = compute()
        else:
            size, known = len(spellings), unicodedata.unidata_version
            key = [FORMAT, known, *vars(self).values(), tokenizer.digest, size]
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
        size: Size,
    ) -> Arrays:
        """Return the table of tokens as arrays, or raise if no text matches at all."""
        machine = self.machine(size)
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

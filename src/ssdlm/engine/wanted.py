"""What a request asks of its text beside a continuation: words, a gap, a grammar.

options -> [wanted] -> plain. What the model or its tokenizer cannot do is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from ssdlm.constraints.placement import Placement
from ssdlm.constraints.words import TextConstraint, Wanted
from ssdlm.denoiser import Denoiser
from ssdlm.diffusion.projection import untruncated
from ssdlm.engine.requests import Request
from ssdlm.engine.strategy import strategy_of
from ssdlm.storage.files import MOST_BY_HAND, named_path, parse_object, read_whole
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import shorten

PLACED = ("must", "suffix", "pin")
"""Constraints that have places in the text."""

Compile = Callable[[list[Wanted]], Sequence[Placement]]
"""Finds a placement for each, or raises."""


def placed(
    groups: Sequence[Sequence[Request]], wanted: Sequence[Wanted | None], compile: Compile
) -> list[list[Request]]:
    """Return the requests, in their groups, with placements for those of which something is wanted.

    All are compiled together, so that they can share their automata.
    """
    asked = [one for one in wanted if one is not None]
    if not asked:
        return [list(group) for group in groups]
    found = iter(compile(asked))
    placements = iter([None if one is None else next(found) for one in wanted])
    return [[replace(one, placement=next(placements)) for one in group] for group in groups]


def wanted_of(request: Request, denoiser: Denoiser, tokenizer: Tokenizer | None) -> Wanted | None:
    """Return what a text must and must not contain, None if it is free."""
    options = request.options
    if not options.constraints and request.opening is None:
        return None
    asked = dict(options.constraints)
    if tokenizer is None:
        raise ValueError(f"{', '.join(asked)}: words need a tokenizer, and this model has none")
    if options.has_grammar:
        check_joins(tokenizer, request, next(reversed(asked)))
    if options.json_schema is not None:
        asked["json_schema"] = schema_text(options.json_schema)
    if options.grammar is not None:
        asked["grammar"] = grammar_text(options.grammar)
    if (
        options.mode == "diffusion"
        and options.returns == "logits"
        and strategy_of(options, denoiser).truncate is not untruncated
    ):
        drawn = "returns=w_0, or " if options.projection != "mean" else ""
        raise ValueError(
            f"{', '.join(asked) or 'rewriting'}: with nucleus=network or a temperature, words are "
            f"certain only as they are drawn; use {drawn}nucleus=logits and temperature=1"
        )
    constraint = TextConstraint(**asked, opening=request.opening)
    return Wanted(constraint, request.context, options.length, options.stop_at_end)


def schema_text(given: str) -> str:
    """Return a JSON schema's text: what was given, or what the file of this name has in it."""
    raw = read_given("json_schema", given)
    return json.dumps(parse_object(raw, where=f"json_schema={shorten(given)}", remedy="correct it"))


def grammar_text(given: str) -> str:
    """Return a grammar's text: what was given, or what the file of this name has in it."""
    try:
        return read_given("grammar", given).decode()
    except UnicodeDecodeError:
        raise ValueError(f"grammar={shorten(given)} is not UTF-8; save it as UTF-8") from None


def names_file(option: str, given: str) -> bool:
    """Tell whether json_schema or grammar is the name of a file, and not what could be in it."""
    return ":" not in given if option == "grammar" else not given.lstrip().startswith("{")


def read_given(option: str, given: str) -> bytes:
    """Return what was given for an option, or what the file of this name has in it."""
    if not names_file(option, given):
        return given.encode(errors="surrogatepass")
    try:
        return read_whole(named_path(given, option), most=MOST_BY_HAND)
    except OSError as error:
        raise ValueError(
            f"{option}={shorten(given)} cannot be read ({error.strerror}); give a file"
        ) from None


def check_joins(tokenizer: Tokenizer, request: Request, name: str) -> None:
    """Raise where a text is not the bytes of its tokens, which is what a grammar reads."""
    if tokenizer.joining == "never":
        raise ValueError(
            f"{name} needs a tokenizer whose text is what its tokens spell, one after another, as "
            "a byte-level BPE; this one's decoder rewrites it"
        )
    if tokenizer.joining == "after a text" and not request.context:
        raise ValueError(
            f"{name} needs a prompt, since this tokenizer drops the first space of a text; give one"
        )

"""What a text must hold and must not, from words to tokens.  tokenizer -> [demands] -> plan

All that cannot be done is refused here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from ssdlm.constraints.automaton import SENTENCE_END, Automaton, Matcher, automaton, continues_word
from ssdlm.constraints.placement import Demand, Plan, Word, first_plan
from ssdlm.tokenizer import Tokenizer, is_utf8

T = TypeVar("T")


@dataclass(frozen=True)
class Wish:
    """What is asked of one prompt's text."""

    must: tuple[str, ...] = ()
    """Words it has to hold."""
    must_not: tuple[str, ...] = ()
    """Words it may not hold, in any case."""
    suffix: str = ""
    """What it ends with, after a gap of `length` tokens."""
    pin: tuple[tuple[int, str], ...] = ()
    """What stands at a position, counted in tokens."""
    end_at_sentence: bool = False
    """Whether it is cut at the last end of a sentence; there will be one."""

    def __post_init__(self) -> None:
        for name in ("must", "must_not"):
            for word in getattr(self, name):
                if not isinstance(word, str) or not word:
                    raise ValueError(f"{name}={word!r} is not a word; write one")
        if any("\ufffd" in word for word in self.must_not):
            raise ValueError(
                "must_not='\\ufffd' is how broken bytes are shown, not a character; leave it out"
            )
        if not isinstance(self.suffix, str):
            raise ValueError(f"suffix={self.suffix!r} is not a text; give the text after the gap")
        for text in (*self.must, *self.must_not, self.suffix, *(text for _, text in self.pin)):
            if not is_utf8(text):
                raise ValueError(f"{text!r} is not UTF-8; save or type it as UTF-8")


def wishes(
    count: int,
    *,
    must: str | Sequence[Any] = (),
    must_not: str | Sequence[Any] = (),
    suffix: str | Sequence[Any] = "",
    pin: Mapping[Any, Any] | Sequence[Any] = (),
    end_at_sentence: bool | Sequence[Any] = False,
) -> list[Wish]:
    """Return a wish for each prompt; every option is for all of them, or a list with one each."""
    musts = each("must", must, count, is_words, as_words)
    bans = each("must_not", must_not, count, is_words, as_words)
    ends = each("suffix", suffix, count, lambda value: isinstance(value, str), lambda text: text)
    pins = each("pin", pin or {}, count, lambda value: isinstance(value, Mapping), as_pins)
    whole = each("end_at_sentence", end_at_sentence, count, is_yes_or_no, as_yes_or_no)
    return [Wish(*parts) for parts in zip(musts, bans, ends, pins, whole, strict=True)]


def each(
    name: str, value: Any, count: int, is_one: Callable[[Any], bool], read: Callable[[Any], T]
) -> list[T]:
    """Return a value for each prompt, given one for all or a list."""
    if is_one(value):
        return [read(value)] * count
    if not isinstance(value, Sequence) or len(value) != count:
        raise ValueError(f"{name}={value!r} is not one for each of {count} prompts; give one each")
    return [read(item) for item in value]


def is_words(value: Any) -> bool:
    """Tell whether a value is a word or a list of words, rather than a list for each prompt."""
    return isinstance(value, str) or (
        isinstance(value, Sequence) and all(isinstance(word, str) for word in value)
    )


def is_yes_or_no(value: Any) -> bool:
    """Tell whether a value is a truth value, rather than a list of them."""
    return isinstance(value, bool)


def as_yes_or_no(value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise ValueError(f"end_at_sentence={value!r} is neither True nor False; give one of them")
    return value


def as_words(value: Any) -> tuple[str, ...]:
    """Return the words of a word or a list of them."""
    if not isinstance(value, Sequence):
        raise ValueError(f"{value!r} is not a word or a list of words; write one")
    return (value,) if isinstance(value, str) else tuple(value)


def as_pins(value: Any) -> tuple[tuple[int, str], ...]:
    """Return positions and texts, in order."""
    if not isinstance(value, Mapping):
        raise ValueError(f"pin={value!r} is not a dictionary; write {{position: text}}")
    for place, text in value.items():
        if type(place) is not int or not isinstance(text, str):
            raise ValueError(f"pin={value!r} does not lead from a whole number to a text")
    return tuple(sorted(value.items()))


class Planner:
    """Turns wishes into plans for one tokenizer; machines that several rows need are made once."""

    def __init__(
        self, tokenizer: Tokenizer, *, V: int, max_len: int | None, length: int, stop_at_end: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.V, self.max_len, self.length = V, max_len, length
        self.end_of_text = tokenizer.end_of_text if stop_at_end else None
        self.machines: dict[Any, Automaton] = {}

    @cached_property
    def spellings(self) -> list[bytes]:
        """The bytes of each token; ids beyond the tokenizer's have none."""
        spellings = self.tokenizer.token_bytes()
        return spellings + [b""] * (self.V - len(spellings))

    def plans(self, contexts: Sequence[Sequence[int]], **asked: Any) -> list[Plan]:
        """Return a plan for the text after each context, from the options of `wishes`."""
        asked_of_each = wishes(len(contexts), **asked)
        return [self.plan(*both) for both in zip(asked_of_each, contexts, strict=True)]

    def plan(self, wish: Wish, context: Sequence[int]) -> Plan:
        """Return a legal plan for a text of `length` tokens and the suffix."""
        suffix = self.suffix(wish)
        words = tuple(self.word(word, wish.must_not) for word in wish.must)
        pins = self.pins(wish) | dict(enumerate(suffix, start=self.length))
        total = self.length + len(suffix)
        needed, room = sum(len(word.tokens) for word in words), total - len(pins)
        if needed > room:
            raise ValueError(
                f"must={list(wish.must)} takes {needed} tokens and there is room for {room}; "
                "raise length or drop a word"
            )
        made = first_plan(Demand(self.machine(wish, context), total, pins, words))
        if made is None:
            raise ValueError(f"no text of {total} tokens has {describe(wish)}; drop or change one")
        return made

    def suffix(self, wish: Wish) -> tuple[int, ...]:
        """Return the tokens after the gap; they share its block, so that it is written to them."""
        if not wish.suffix:
            return ()
        tokens = self.spell("suffix", wish.suffix)
        total = self.length + len(tokens)
        if self.max_len is not None and total > self.max_len:
            raise ValueError(
                f"length={self.length} and suffix={wish.suffix!r} make a block of {total} tokens, "
                f"and the model has {self.max_len} positions; shorten either"
            )
        if wish.end_at_sentence and not SENTENCE_END.search(wish.suffix):
            raise ValueError(
                f"suffix={wish.suffix!r} does not end a sentence; end it with . ! or ?, or leave "
                "out end_at_sentence"
            )
        return tokens

    def machine(self, wish: Wish, context: Sequence[int]) -> Automaton:
        """Return the automaton for a wish after a prompt."""
        prompt = b"".join(self.spellings[token] for token in context) if wish.must_not else b""
        # A suffix has been seen to end a sentence, and stays whole.
        is_sentence = wish.end_at_sentence and not wish.suffix
        key = wish.must_not, is_sentence, Matcher(wish.must_not).after(prompt)
        if key not in self.machines:
            self.machines[key] = automaton(
                wish.must_not,
                self.spellings,
                prompt=prompt,
                end_of_text=self.end_of_text,
                is_sentence=is_sentence,
            )
        return self.machines[key]

    def word(self, word: str, must_not: tuple[str, ...]) -> Word:
        """Return the tokens of a word, a space before it if it begins with a letter."""
        text = f" {word}" if continues_word(word[0]) else word
        # It is held whatever follows the word, if it is held before a space and a full stop.
        matcher = Matcher(must_not)
        banned = matcher.find(word.encode() + b" ")
        if banned is not None and matcher.find(word.encode() + b".") is not None:
            raise ValueError(f"must={word!r} holds must_not={banned!r}; drop one of them")
        return Word(self.spell("must", text), needs_break=continues_word(word[-1]))

    def pins(self, wish: Wish) -> dict[int, int]:
        """Return the pinned tokens by position."""
        pins: dict[int, int] = {}
        for place, text in wish.pin:
            tokens = self.spell("pin", text)
            if not 0 <= place <= self.length - len(tokens):
                raise ValueError(
                    f"pin={text!r} takes {len(tokens)} tokens from {place} on, and "
                    f"length={self.length}; raise length or pin it elsewhere"
                )
            new = dict(enumerate(tokens, start=place))
            if pins.keys() & new.keys():
                raise ValueError(f"pin={text!r} at {place} stands on another; move one of them")
            pins |= new
        return pins

    def spell(self, name: str, text: str) -> tuple[int, ...]:
        """Return the tokens of a text that must stand exactly as it is."""
        tokens = tuple(self.tokenizer.encode_plain([text])[0])
        spelled = b"".join(self.spellings[token] for token in tokens)
        if spelled != text.encode():
            raise ValueError(
                f"{name}={text!r} cannot be written with this tokenizer, which makes it "
                f"{spelled.decode(errors='replace')!r}; use other characters"
            )
        return tokens


def describe(wish: Wish) -> str:
    """Return a wish in words, for an error."""
    parts = {"must": list(wish.must), "must_not": list(wish.must_not), "suffix": wish.suffix}
    parts |= {"pin": dict(wish.pin), "end_at_sentence": wish.end_at_sentence}
    return " and ".join(f"{name}={value!r}" for name, value in parts.items() if value)

"""Values as users give them: checked, brought into one form, read from a command line, described.

A `Kind` is a type of value, an `About` all that is known of one setting. No value is repaired: what
does not fit is refused with its name, the value and the remedy.  [values] -> options, command line
"""

from __future__ import annotations

import json
import math
import operator
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")
DEEPEST = 100
"""Lists and objects within each other that are read; our own files have five."""
MOST_BIAS = 100
"""A logit's bias that no network outweighs."""
NESTING = (Mapping, list, tuple, set, frozenset)


@dataclass(frozen=True)
class Kind:
    """A type of value: how one is checked, how it is written on a command line and in JSON."""

    noun: str
    """What a value is, for error messages: "a whole number"."""
    check: Callable[[Any], Any]
    """Returns the value in its normal form; raises TypeError or ValueError for any other."""
    hint: str
    """The type of an argument, as the generated signature writes it."""
    schema: Mapping[str, Any]
    """The type in JSON schema."""
    parse: Callable[[str], Any] = str
    """From one word of a command line to a value; raises ValueError."""
    is_repeatable: bool = False
    """Whether a flag may be given several times, once per item."""
    to_json: Callable[[Any], Any] = lambda value: value
    """From the normal form to what JSON holds."""


def plain(value: Any) -> Any:
    """Return scalars and arrays of NumPy and torch as Python's own, anything else as it is."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def check_whole(value: Any) -> int:
    """Return a whole number, NumPy's too; True is none."""
    value = plain(value)
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def check_real(value: Any) -> float:
    """Return a number, NumPy's too; neither True nor "0.9" is one."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return float(value)


def check_switch(value: Any) -> bool:
    """Return a truth value, NumPy's too; "false" is none."""
    value = plain(value)
    if not isinstance(value, bool):
        raise TypeError
    return value


def check_text(value: Any) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def check_text_or_none(value: Any) -> str | None:
    """Return a string, the empty one too, or None where nothing was given."""
    return None if value is None else check_text(value)


def check_schema(value: Any) -> str | None:
    """Return a JSON object as its text, or the name of a file as it is."""
    if isinstance(value, Mapping):
        if is_too_deep(value):
            raise ValueError
        return json.dumps(dict(value))
    return check_named(value)


def check_filled(value: Any) -> str | None:
    """Return a text that is not blank, or None where nothing was given."""
    text = check_text_or_none(value)
    if text is not None and not text.strip():
        raise ValueError
    return text


def check_named(value: Any) -> str | None:
    """Return a text, or the name of a file as it is; a blank one is refused."""
    return check_filled(os.fspath(value) if isinstance(value, os.PathLike) else value)


def check_words(value: Any) -> tuple[str, ...]:
    """Return the strings of one string or a list of them; empty ones are refused."""
    words = one_or_several(value)
    if not all(isinstance(word, str) and word for word in words):
        raise TypeError
    return tuple(map(str, words))


class EntryError(ValueError):
    """What is wrong with one entry of a value; the setting is named before it."""


def check_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Return what is added to the logits of tokens, from {id: bias}; JSON has ids as text."""
    pairs = list(value.items()) if isinstance(value, Mapping) else check_sequence(value)
    is_empty = isinstance(value, list) and not value  # the command line's has pairs
    if is_empty or not all(isinstance(pair, tuple) for pair in pairs):
        raise TypeError
    found: dict[int, float] = {}
    for token, bias in pairs:
        try:
            key, number = check_key(token), check_real(bias)
        except (TypeError, ValueError, OverflowError):
            key, number = -1, 0.0
        if key < 0 or not abs(number) <= MOST_BIAS:
            raise EntryError(
                f"has the entry {quote({token: bias})}; give token ids from 0 on, each with a bias "
                f"from -{MOST_BIAS} to {MOST_BIAS}"
            )
        if key in found:
            raise EntryError(f"has token {key} twice; give it once")
        found[key] = number
    return tuple(sorted((token, bias) for token, bias in found.items() if bias))


def check_key(value: Any) -> int:
    """Return a whole number, which may be a text of digits as JSON's keys are."""
    return int(value) if isinstance(value, str) and is_digits(value) else check_whole(value)


def is_digits(text: str) -> bool:
    """Tell whether a text is digits from 0 to 9 alone."""
    return text.isascii() and text.isdecimal()


def check_sequence(value: Any) -> Sequence[Any]:
    """Return a list or tuple; a set has no order, and the keys of a dictionary are not meant."""
    value = plain(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise TypeError
    return value


def one_or_several(value: Any) -> tuple[Any, ...]:
    """Return the items of a list or an array, or the one value; a string is one."""
    value = plain(value)
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return tuple(value) if is_list else (value,)


def check_lengths(value: Any) -> tuple[int, ...]:
    """Return block lengths, given one or a list of them."""
    return tuple(map(check_whole, one_or_several(value)))


def check_levels(value: Any) -> tuple[float, ...]:
    """Return two noise levels."""
    low, high = (check_real(item) for item in check_sequence(value))
    return low, high


def check_weights(value: Any) -> tuple[float, ...]:
    """Return weights, given one or a list of them."""
    return tuple(map(check_real, one_or_several(value)))


def check_pins(value: Any) -> tuple[tuple[int, str], ...]:
    """Return positions and texts in order, from {position: text}; JSON has positions as text."""
    pairs = list(value.items()) if isinstance(value, Mapping) else check_sequence(value)
    if not all(isinstance(pair, tuple | list) for pair in pairs):
        raise TypeError
    pins = {}
    for place, text in pairs:
        pins[check_key(place)] = check_text(text)
    if len(pins) < len(pairs) or not all(pins.values()):
        raise ValueError
    return tuple(sorted(pins.items()))


class Gap(NamedTuple):
    """The lengths that a gap may have, in tokens."""

    shortest: int
    longest: int

    def __str__(self) -> str:
        return f"{self.shortest}-{self.longest}"

    def lengths(self) -> range:
        """Return every length from the shortest to the longest."""
        return range(self.shortest, self.longest + 1)


def check_gap(value: Any) -> Gap | None:
    """Return the lengths of a gap, given as "8-16" or as two numbers, or None without one."""
    if value is None:
        return None
    if isinstance(value, str):
        first, _, last = value.partition("-")
        shortest, longest = int(first), int(last)
    else:
        shortest, longest = map(check_whole, check_sequence(value))
    if shortest > longest:
        raise ValueError
    return Gap(shortest, longest)


def check_controls(value: Any) -> tuple[Any, ...]:
    """Return controls, given one or a list: texts, guides or functions."""
    controls = one_or_several(value)
    if not all(isinstance(one, str) or callable(one) or hasattr(one, "fit") for one in controls):
        raise TypeError
    return controls


def check_streamer(value: Any) -> Any:
    """Return an object with the methods of a streamer, or None."""
    if value is not None and not (
        callable(getattr(value, "put", None)) and callable(getattr(value, "end", None))
    ):
        raise TypeError
    return value


def parse_pin(text: str) -> tuple[str, str]:
    """Return position and text from `3=word`."""
    place, equals, word = text.partition("=")
    if not equals or not is_digits(place):
        raise ValueError
    return place, word


def parse_bias(text: str) -> tuple[int, float]:
    """Return token id and bias from `42=-100`."""
    token, _, bias = text.partition("=")
    if not is_digits(token):
        raise ValueError
    return int(token), float(bias)


def parse_list(convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a reader of items with commas between them."""
    return lambda text: [convert(part) for part in text.split(",")]


STRING = {"type": "string", "minLength": 1}
STRINGS = {"type": "array", "items": STRING}
NUMBERS = {"type": "array", "items": {"type": "number"}}
STRING_OR_STRINGS = {"anyOf": [STRING, STRINGS]}

WHOLE = Kind("a whole number", check_whole, "int", {"type": "integer"}, int)
REAL = Kind("a number", check_real, "float", {"type": "number"}, float)
SWITCH = Kind("true or false", check_switch, "bool", {"type": "boolean"})
TEXT = Kind("a text", check_text, "str", {"type": "string"})
PATTERN = Kind("a text", check_text_or_none, "str", {"type": "string"})
SCHEMA = Kind(
    "a JSON schema: a dictionary, or the name of a file with one",
    check_schema,
    "Mapping[str, Any] | str | os.PathLike[str]",
    {"anyOf": [{"type": "object"}, STRING]},
)
GRAMMAR = Kind(
    "a grammar, or the name of a file with one", check_named, "str | os.PathLike[str]", STRING
)
DESCRIPTION = Kind('a description such as "a formal letter"', check_filled, "str", STRING)
WORDS = Kind(
    "a word or a list of words",
    check_words,
    "str | Sequence[str]",
    STRING_OR_STRINGS,
    is_repeatable=True,
    to_json=list,
)
LENGTHS = Kind(
    "a block length such as 25, or several as 5,10,25",
    check_lengths,
    "int | Sequence[int]",
    {
        "anyOf": [
            {"type": "integer"},
            {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        ]
    },
    parse_list(int),
    to_json=list,
)
LEVELS = Kind(
    "two numbers such as 0.15,1",
    check_levels,
    "Sequence[float]",
    NUMBERS | {"minItems": 2, "maxItems": 2},
    parse_list(float),
    to_json=list,
)
WEIGHTS = Kind(
    "a number, or one per control",
    check_weights,
    "float | Sequence[float]",
    {"anyOf": [{"type": "number"}, NUMBERS]},
    parse_list(float),
    to_json=list,
)
PINS = Kind(
    "a dictionary {position: text}, with one text at a position, not empty",
    check_pins,
    "Mapping[int, str]",
    {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": STRING},
    parse_pin,
    is_repeatable=True,
    to_json=lambda pins: {str(place): text for place, text in pins},
)
BIAS = Kind(
    f"a dictionary {{token id: bias}}, with each bias from -{MOST_BIAS} to {MOST_BIAS}",
    check_bias,
    "Mapping[int, float]",
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number", "minimum": -MOST_BIAS, "maximum": MOST_BIAS},
    },
    parse_bias,
    is_repeatable=True,
    to_json=lambda biases: {str(token): bias for token, bias in biases},
)
GAP = Kind(
    "two lengths such as 8-16, the shorter one first",
    check_gap,
    "str | Sequence[int]",
    {
        "anyOf": [
            {"type": "string", "pattern": "^[0-9]+-[0-9]+$"},
            {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        ]
    },
    to_json=lambda gap: None if gap is None else list(gap),
)
CONTROLS = Kind(
    "a control such as sentiment=positive, a guide or a function",
    check_controls,
    "Control | Sequence[Control]",
    STRING_OR_STRINGS,
    is_repeatable=True,
    to_json=lambda controls: [str(one) for one in controls],
)
OBJECT = Kind("an object with put() and end()", check_streamer, "Any", {})
"""What only Python can give: it has no flag and no place in JSON."""


@dataclass(frozen=True)
class About:
    """What is known of an option besides its name and default."""

    kind: Kind
    help: str
    group: str
    choices: tuple[str, ...] = ()
    low: float | int = -math.inf
    high: float | int = math.inf
    is_open: bool = False
    """Whether `low` itself is out of range."""
    remedy: str = ""
    """What to write instead of a value out of range."""
    is_stored: bool = False
    """Whether a model brings a default of its own, in generation_config.json."""
    is_per_prompt: bool = False
    """Whether a list may give each prompt its own."""
    metavar: str = ""
    """What stands for a value in the help of a command line."""

    @property
    def wanted(self) -> str:
        """What a value is, and what to do about one that is something else."""
        return f"{self.kind.noun}; {self.remedy or 'give one'}"

    def allows(self, value: Any) -> bool:
        """Tell whether a number is in range; each of several must be, and None always is."""
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        return all(
            (self.low < item if self.is_open else self.low <= item) and item <= self.high
            for item in values
        )


def check(name: str, value: Any, option: About) -> Any:
    """Return an option's value in its normal form, or raise a ValueError that names it."""
    try:
        value = option.kind.check(value)
    except EntryError as error:
        raise ValueError(f"{name} {error}") from None
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={quote(value)} is not {option.wanted}") from None
    if option.choices and value not in option.choices:
        choices = ", ".join(option.choices)
        raise ValueError(f"{name}={quote(value)} is unknown; choose one of {choices}")
    has_range = option.low > -math.inf or option.high < math.inf
    if has_range and not option.allows(value):
        raise ValueError(f"{name}={shorten(show(value))} is out of range; {option.remedy}")
    return value


def require(is_valid: bool, name: str, value: Any, remedy: str) -> None:
    """Raise a ValueError that names the setting, its value and the remedy, unless it is valid."""
    if not is_valid:
        raise ValueError(f"{name}={value} is out of range; {remedy}")


def choose(name: str, value: Any, choices: Sequence[Any]) -> Any:
    """Return the value, or raise a ValueError that names it and lists the choices."""
    if value not in choices:
        raise ValueError(f"{name}={quote(value)} is unknown; choose one of {', '.join(choices)}")
    return value


def quote(value: Any) -> str:
    """Return a value as an error message shows it: at most 200 characters."""
    return "what is nested too deep" if is_too_deep(value) else shorten(repr(value))


def is_too_deep(value: Any) -> bool:
    """Tell whether lists and objects lie within each other more than DEEPEST deep.

    No recursion, whose limit is the interpreter's.
    """
    level = [value] if isinstance(value, NESTING) else []
    for _ in range(DEEPEST):
        items = [v for one in level for v in (one.values() if isinstance(one, Mapping) else one)]
        # One that stands twice is read once, lest one that contains itself fill the memory.
        level = list({id(v): v for v in items if isinstance(v, NESTING)}.values())
    return bool(level)


def shorten(text: str) -> str:
    """Return at most 200 characters of a text, in one line."""
    return escape(text if len(text) <= 200 else f"{text[:197]}...")


def escape(text: str) -> str:
    """Return a text in one line, in which no character drives a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, shortened; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return shorten(lines[0].strip() if lines else type(error).__name__)


def show(value: Any) -> str:
    """Return a value as it is written on a command line."""
    return ",".join(map(str, value)) if type(value) is tuple else str(value)


def renamed(what: str, old: str, new: str, *, until: str) -> str:
    """Return the name that something has now, and warn of the old one, which works until then."""
    warnings.warn(
        f"{what} {old} is now {new}; the old name works until {until}", FutureWarning, stacklevel=3
    )
    return new


def ignored(what: str, old: str, why: str, *, until: str) -> None:
    """Warn of something that is gone: until then it is taken, and has no effect."""
    warnings.warn(
        f"{what} {old} has no effect: {why}; leave it out, from {until} on it is an error",
        FutureWarning,
        stacklevel=2,
    )


class Recent(Generic[Key, Made]):
    """What was made last, so many of them, by key."""

    def __init__(self, most: int) -> None:
        self.most, self.made = most, OrderedDict[Key, Made]()

    def get(self, key: Key, make: Callable[[], Made]) -> Made:
        """Return what was made for a key, or make it."""
        if key not in self.made:
            self.made[key] = make()
        self.made.move_to_end(key)
        while len(self.made) > self.most:
            self.made.popitem(last=False)
        return self.made[key]

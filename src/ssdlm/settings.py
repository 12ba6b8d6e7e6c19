"""Settings as text: JSON in a folder, KEY=VALUE on a command line.

config -> [settings] -> checkpoint, train, scales
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import SequenceMatcher
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ssdlm.config import RETIRED, AdapterConfig, BlockConfig, Config, EncoderConfig
from ssdlm.values import quote, shorten

C = TypeVar("C")

DENOISERS: dict[str, type] = {
    "encoder": EncoderConfig,
    "block": BlockConfig,
    "adapter": AdapterConfig,
}
"""The name each kind of model goes by in JSON."""
LARGEST_FLOAT = sys.float_info.max


def to_json(config: Any) -> dict[str, Any]:
    """Return a config as plain JSON values; a model carries its kind as `denoiser`."""
    values: dict[str, Any] = {"denoiser": kind_of(config)} if kind_of(config) else {}
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            value = to_json(value)
        values[item.name] = list(value) if isinstance(value, tuple) else value
    return values


def kind_of(model: Any) -> str:
    """Return the name a model's config goes by; empty for any other config."""
    return next((name for name, cls in DENOISERS.items() if isinstance(model, cls)), "")


def from_json(cls: type[C], values: Any, where: str = "") -> C:
    """Return the config that `to_json` wrote; absent fields keep their defaults.

    A field of an earlier version is accepted at the one value that is still possible. A class with
    `later_fields` describes a file that later versions may add to: a field it has not is ignored.
    `where` comes before the names of fields in errors.
    """
    hints, retired = get_type_hints(cls), RETIRED.get(cls.__name__, {})
    if not isinstance(values, dict):
        raise ValueError(f"{where.rstrip('.') or cls.__name__}={quote(values)} is not an object")
    known = {}
    for name, value in values.items():
        if name in hints:
            known[name] = value
        elif name in retired and value != retired[name]:
            raise ValueError(
                f"{name}={quote(value)} is a setting of an earlier version; this one knows "
                f"{retired[name]!r} only, so use the version that wrote it"
            )
        elif name not in retired and name != "denoiser" and not hasattr(cls, "later_fields"):
            near = nearest(name, list(hints))
            raise ValueError(f"{cls.__name__} has no field {quote(name)}; {near}")
    for item in fields(cast(Any, cls)):
        has_default = item.default is not MISSING or item.default_factory is not MISSING
        if item.name not in known and not has_default:
            raise ValueError(f"{where}{item.name} is missing")
    return cls(**{name: read(hints[name], value, where + name) for name, value in known.items()})


def read(hint: Any, value: Any, name: str) -> Any:
    """Return a JSON value as the type a field declares, or raise a ValueError."""
    if get_origin(hint) is UnionType and isinstance(value, dict) and "denoiser" in value:
        kind = value["denoiser"]
        if not isinstance(kind, str) or kind not in DENOISERS:
            raise ValueError(f"denoiser={quote(kind)} is not one of {', '.join(DENOISERS)}")
        return from_json(DENOISERS[kind], value)
    if is_dataclass(hint):
        return from_json(cast("type[Any]", hint), value, f"{name}.")
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        return None if value is None and len(inner) < len(args) else read(inner[0], value, name)
    if origin is Literal and value in args:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(read(args[0], item, name) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: read(args[1], item, f"{name}.{key}") for key, item in value.items()}
    if hint is float and type(value) is int and abs(value) <= LARGEST_FLOAT:
        return float(value)
    if type(value) is hint or hint is Any:
        return value
    raise ValueError(f"{name}={quote(value)} is not {describe(hint)}")


def parse(hint: Any, text: str, name: str) -> Any:
    """Return the value that `name=text` gives a field of this type, or raise a ValueError."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is str or (origin is Literal and text in args):
        return text
    if origin is tuple:
        return tuple(parse(args[0], part, name) for part in text.split(",") if part)
    if hint is float:
        text = text.replace("_", "")
    try:
        value = float(text) if hint is float else json.loads(text.lower() if hint is bool else text)
    except ValueError:
        raise ValueError(f"{name}={shorten(text)} is not {describe(hint)}") from None
    return read(hint, value, name)


def describe(hint: Any) -> str:
    """Return a type in words, for an error message."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    words |= {tuple: "a list", dict: "an object"}
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    return words.get(get_origin(hint) or hint, str(hint))


def override(config: Config, assignments: Sequence[str]) -> Config:
    """Return a config with `section.field=value`, or `field=value`, applied in order."""
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"override {quote(assignment)} has no value; write key=value")
        section, name = locate(config, key)
        part = getattr(config, section)
        value = parse(get_type_hints(type(part))[name], text, f"{section}.{name}")
        config = replace(config, **{section: replace(part, **{name: value})})
    return config


def locate(config: Config, key: str) -> tuple[str, str]:
    """Return the section and the field a dotted or bare key means."""
    dotted = [f"{s.name}.{f.name}" for s in fields(config) for f in fields(getattr(config, s.name))]
    found = [path for path in dotted if key in (path, path.partition(".")[2])]
    if len(found) > 1:
        raise ValueError(f"{quote(key)} is ambiguous; write " + " or ".join(found))
    if not found:
        raise ValueError(f"the config has no field {quote(key)}; {nearest(key, dotted)}")
    section, _, name = found[0].partition(".")
    return section, name


def nearest(name: str, names: list[str]) -> str:
    """Return advice: the existing name closest to a mistaken one, or to its initials."""
    *section, last = name.split(".")
    wanted = {last, "".join(word[:1] for word in last.split("_"))}

    def likeness(candidate: str) -> float:
        *home, bare = candidate.split(".")
        alike = max(SequenceMatcher(None, want, bare).ratio() for want in wanted)
        return alike + (bool(section) and section == home)

    return f"the nearest is {max(names, key=likeness)!r}" if names else "it has no fields"


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Return `field: old -> new` for every field in which two JSON configs differ."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [f"{prefix}: {quote(old)} -> {quote(new)}"]
    names = [*old, *(name for name in new if name not in old)]
    join = f"{prefix}." if prefix else ""
    return [d for n in names for d in differences(old.get(n), new.get(n), join + n)]

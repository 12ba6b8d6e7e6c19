"""Generation options as flags of a command line, built from options.py; and flags of several."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

from ssdlm.options import (
    DO_SAMPLE,
    FORMER_NAMES,
    GROUPS,
    OTHER_NAMES,
    GenerateOptions,
    checked,
    known_options,
    resolve,
)
from ssdlm.storage.builtin import DEFAULT_MODEL, generation_config
from ssdlm.storage.parts import Shard
from ssdlm.values import OBJECT, SWITCH, About, show


@cache
def own_settings() -> GenerateOptions:
    """Return the options of the model that writes where none is named."""
    return GenerateOptions().change(**generation_config(DEFAULT_MODEL))


def default_of(name: str) -> Any:
    """Return what users get who leave an option out, and name no model."""
    return getattr(own_settings(), name)


def add_options(
    command: argparse.ArgumentParser,
    *,
    is_stored: bool = False,
    groups: Sequence[str] = GROUPS,
    without: Collection[str] = (),
) -> None:
    """Add a flag for every option, by group; only for those that a model keeps, if asked."""
    others = {home: name for name, home in OTHER_NAMES.items()}
    for group in groups:
        listed = command.add_argument_group(group)
        for name, option in known_options().items():
            is_hidden = option.kind is OBJECT or (is_stored and not option.is_stored)
            if option.group != group or is_hidden or name in without:
                continue
            add_flag(listed, name, option, option.help + shown_default(name, is_stored))
            if name in others:
                add_flag(listed, others[name], option, f"another name of {flag_of(name)}")
            if name == "projection":
                add_flag(listed, "do_sample", DO_SAMPLE, DO_SAMPLE.help)
    for name in () if is_stored else FORMER_NAMES:
        command.add_argument(flag_of(name), help=argparse.SUPPRESS)


def add_flag(group: Any, name: str, option: About, text: str) -> None:
    """Add one flag to a group of a parser."""
    text = text.replace("%", "%%")
    if option.kind is SWITCH:
        action = argparse.BooleanOptionalAction
        group.add_argument(flag_of(name), action=action, default=None, help=text)
        return
    group.add_argument(
        flag_of(name),
        type=reader(name, option),
        action="append" if option.kind.is_repeatable else "store",
        metavar=option.metavar or "|".join(option.choices) or None,
        help=text + ("; may be repeated" if option.kind.is_repeatable else ""),
    )


def flag_of(name: str) -> str:
    """Return an option's flag: `top_p` is `--top-p`."""
    return "--" + name.replace("_", "-")


def shown_default(name: str, is_stored: bool) -> str:
    """Return the default in brackets; none where options are stored, since others are kept."""
    default = default_of(name)
    if is_stored or default in ((), "", None) or isinstance(default, bool):
        return "" if is_stored or default is not True else " (default on)"
    return f" (default {show(default)})"


def reader(name: str, option: About) -> Callable[[str], Any]:
    """Return what turns one word of the command line into a value."""

    def read(text: str) -> Any:
        try:
            return option.kind.parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{name}={text} is not {option.wanted}") from None

    return read


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, by the names that were used."""
    names = [*known_options(), *OTHER_NAMES, "do_sample", *FORMER_NAMES]
    values = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def refuse_bad_values(arguments: argparse.Namespace) -> None:
    """Raise on a value that no model takes, before anything is imported that takes seconds."""
    checked(resolve(given_options(arguments)))
    if arguments.control:
        from ssdlm.guidance.grammar import check_control

        for control in arguments.control:
            check_control(control)


def add_shard(command: argparse.ArgumentParser, what: str) -> None:
    """Add `--shard i/n`, with which several processes do a part each."""
    command.add_argument(
        "--shard",
        type=read_shard,
        metavar="I/N",
        help=f"{what}, I from 0 to N - 1; `ssdlm merge` puts the parts together",
    )


def read_shard(text: str) -> Shard:
    """Return which part of how many a word of the command line means."""
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_ray(command: argparse.ArgumentParser, what: str) -> None:
    """Add `--ray [ADDRESS]`, with which a cluster does the parts."""
    command.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help=f"{what} on a Ray cluster: HOST:PORT, auto for the one that runs here, N for so many "
        "workers of this machine, nothing for all of it",
    )

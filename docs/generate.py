"""Write what is generated from the code: python docs/generate.py (or `make generate`)

    src/ssdlm/engine/signature.py    arguments of SSDLM.generate and .stream, from options.py
    docs/reference/options.md        the same as a page
    docs/reference/cli.md            the command line, from its parser

Tests compare these files with what this makes, so a changed option needs a run of this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ssdlm.cli import parser, subcommands
from ssdlm.cli.flags import default_of
from ssdlm.needs import NEEDS
from ssdlm.options import DO_SAMPLE, GROUPS, OTHER_NAMES, GenerateOptions, known_options
from ssdlm.values import OBJECT, About

ROOT = Path(__file__).resolve().parents[1]
CLI_PAGE = ROOT / "docs" / "reference" / "cli.md"
OPTIONS_PAGE = ROOT / "docs" / "reference" / "options.md"
SIGNATURE = ROOT / "src" / "ssdlm" / "engine" / "signature.py"

SEEN = {
    "candidates": "how many of the likeliest tokens `draft.candidates` has for each open position "
    "[0]",
    "guides": "classifiers (built in, folder, Hub id, or NAME=FOLDER) whose label probabilities on "
    "each draft `draft.guides` has, by name",
    "states": "whether `draft.step` has logits, estimate and noisy state too, which takes longer "
    "[False]",
}
"""Arguments of `stream` alone: what a draft tells beside its text."""
KEPT = {
    "keep_steps": "whether a text keeps how it settled, in `steps`; a notebook shows them move "
    "[False]"
}
"""The argument of `generate` alone."""
WHOLE = {
    "options": "a whole set of options in place of the model's own; arguments beside it win",
}

CLI_HEAD = """# Command line

Made by `make generate`; do not edit. Bad input ends in one line on stderr and exit code 2.
`python -m ssdlm` is the same as `ssdlm`.
"""

OPTIONS_HEAD = """# Generation options

Made by `make generate`; do not edit. Each option is an argument of `SSDLM.generate` and
`SSDLM.stream`, a flag of `ssdlm generate` (`top_p` is `--top-p`), and a field that a line of a file
of prompts may set. A default marked with a star is the built-in model's own, from its
generation_config.json; without one, a model's default is the second value.
"""

NEEDS_HEAD = """## Which option needs which

An option that could have no effect beside the others is refused by name, on the command line, in
Python, in a line of a file and over HTTP. Only a value that was given and is not what it would be
without: the model's own, or the default. OpenAI's `temperature` and `top_p`, and
`top_k` and `min_p` beside them, are never refused.

| option | needs |
|---|---|"""

SIGNATURE_HEAD = '''"""Arguments of `SSDLM.generate` and `.stream`: generated from options.py.

`make generate` writes this page anew. An argument that is left at None keeps the model's own
setting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

from ssdlm.engine.controls import Control
from ssdlm.engine.plain import Prompt
from ssdlm.engine.requests import Draft, Generation
from ssdlm.options import GenerateOptions, P, R, explained


class Changes(TypedDict, total=False):
    """The options that a call may set, by any of their names."""

'''
SIGNATURE_TAIL = '''

def by_option(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method that shows an argument for each option, and answers an unknown one."""
    kinds = {{name: one.__forward_arg__ for name, one in Changes.__annotations__.items()}}
    return explained(method, listed=kinds)


class Signature:
    """What `SSDLM` offers, argument by argument."""

    def run(
        self,
        prompts: str | Sequence[Prompt],
        changes: Mapping[str, Any],
        options: GenerateOptions | None,
        keep_steps: bool = False,
    ) -> Generation | list[Generation]:
        """Continue prompts with some options changed."""
        raise NotImplementedError

    def run_stream(
        self,
        prompt: Prompt,
        changes: Mapping[str, Any],
        options: GenerateOptions | None,
        candidates: int = 0,
        guides: str | Sequence[str] = (),
        states: bool = False,
    ) -> Iterator[Draft]:
        """Continue one prompt, step by step, with some options changed."""
        raise NotImplementedError

    @overload
    def generate(  # pyright: ignore[reportOverlappingOverload]
        self,
        prompts: str,
        *,
        keep_steps: bool = False,
        options: GenerateOptions | None = None,
        **changes: Unpack[Changes],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        keep_steps: bool = False,
        options: GenerateOptions | None = None,
        **changes: Unpack[Changes],
    ) -> list[Generation]: ...

    @by_option
    def generate(
        self,
        prompts: str | Sequence[Prompt],
        *,
        keep_steps: bool = False,
        options: GenerateOptions | None = None,
        **changes: Unpack[Changes],
    ) -> Generation | list[Generation]:
{generate}        return self.run(prompts, changes, options, keep_steps)

    @by_option
    def stream(
        self,
        prompt: Prompt,
        *,
        candidates: int = 0,
        guides: str | Sequence[str] = (),
        states: bool = False,
        options: GenerateOptions | None = None,
        **changes: Unpack[Changes],
    ) -> Iterator[Draft]:
{stream}        seen = candidates, guides, states
        return self.run_stream(prompt, changes, options, *seen)
'''


def arguments() -> Iterator[tuple[str, str, About, str]]:
    """Yield the name, type, facts and help of every argument, other names after their options."""
    others = {home: name for name, home in OTHER_NAMES.items()}
    for name, option in known_options().items():
        yield name, hint(option), option, option.help
        if name in others:
            yield others[name], hint(option), option, f"another name of {name}"
        if name == "projection":
            yield "do_sample", "bool", DO_SAMPLE, DO_SAMPLE.help


def hint(option: About) -> str:
    """Return the type of an argument."""
    if option.choices:
        return f"Literal[{', '.join(repr(choice) for choice in option.choices)}]"
    if option.is_per_prompt:
        return f"{option.kind.hint} | Sequence[{option.kind.hint}]"
    return option.kind.hint


def signature() -> str:
    """Return the source of engine/signature.py, formatted."""
    listed = "".join(f"    {name}: {kind} | None\n" for name, kind, *_ in arguments())
    generate = docstring(
        "Continue one prompt, or several; `num_samples` texts of each, prompt by prompt.",
        "One prompt and one sample give a Generation, else a list. A text depends on its own "
        "prompt, seed, sample number and options alone, not on the texts beside it. What is left "
        "out keeps the model's own setting; in brackets is that of builtin:mini.",
        KEPT,
    )
    stream = docstring(
        "Yield every step of one text as a Draft, so that one can watch it settle.",
        "The last draft's text is what `generate` returns for the same prompt and options. What is "
        "left out keeps the model's own setting; in brackets is that of builtin:mini.",
        SEEN,
    )
    tail = SIGNATURE_TAIL.format(generate=generate, stream=stream)
    source = SIGNATURE_HEAD + listed.replace("Any | None", "Any") + tail
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(SIGNATURE), "-"]
    return subprocess.run(
        command, input=source, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def docstring(first: str, second: str, more: dict[str, str]) -> str:
    """Return the docstring of a method, with a line for every option, by group, and some more."""
    lines = [f'        """{first}', "", *wrap(second, "        ")]
    for group in GROUPS:
        lines += ["", f"        {group[:1].upper()}{group[1:]}:"]
        for name, _, option, text in arguments():
            if option.group == group:
                lines += wrap(f"{name}: {text}{described(name, option)}", "            ", "    ")
    lines.append("")
    for name, text in (more | WHOLE).items():
        lines += wrap(f"{name}: {text}", "        ", "    ")
    return "\n".join([*lines, '        """']) + "\n"


def wrap(text: str, indent: str, more: str = "") -> list[str]:
    """Return a text as lines of at most 100 characters."""
    return textwrap.wrap(
        text, 100, initial_indent=indent, subsequent_indent=indent + more, break_on_hyphens=False
    )


def described(name: str, option: About) -> str:
    """Return an option's choices and default, for its line of help."""
    if name not in known_options() or option.kind is OBJECT:
        return ""
    choices = f"; one of {', '.join(option.choices)}" if option.choices else ""
    own, usual = default_of(name), getattr(GenerateOptions(), name)
    if own != usual:
        return f"{choices} [{plain(own)}; {plain(usual)} where a model says nothing]"
    return choices + ("" if usual in ((), "") else f" [{plain(usual)}]")


def plain(value: object) -> str:
    """Return a default as one would write it."""
    if isinstance(value, tuple):
        return ",".join(plain(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def options_page() -> str:
    """Return docs/reference/options.md."""
    parts = [OPTIONS_HEAD]
    for group in GROUPS:
        parts.append(f"## {group[:1].upper()}{group[1:]}\n")
        parts.append("| option | type | default | what it does |\n|---|---|---|---|")
        for name, _, option, text in arguments():
            if option.group == group:
                several = ", or one per prompt" if option.is_per_prompt else ""
                kind = ", ".join(option.choices) or option.kind.noun + several
                default = page_default(name, option)
                parts.append(f"| `{name}` | {kind} | {default} | {text} |".replace("||", "|"))
        parts.append("")
    parts.append(NEEDS_HEAD)
    for name in known_options():
        needed = dict.fromkeys(need.what for need in NEEDS if name in need.names)
        if needed:
            parts.append(f"| `{name}` | {'; '.join(needed)} |")
    return "\n".join([*parts, ""])


def page_default(name: str, option: About) -> str:
    """Return an option's default: the built-in model's own, and what other models begin with."""
    if name not in known_options() or option.kind is OBJECT:
        return ""
    own, usual = default_of(name), getattr(GenerateOptions(), name)
    if own == usual:
        return plain(usual)
    return f"{plain(own)}*, {plain(usual)}"


def cli_page() -> str:
    """Return the reference of all commands, as Markdown."""
    return "\n".join([CLI_HEAD, *(section(*command) for command in subcommands(parser()))])


def section(command: argparse.ArgumentParser, about: str) -> str:
    """Return one command: its name, what it does, its arguments by group."""
    lines = [f"## {command.prog}", "", f"{about[:1].upper()}{about[1:]}.", ""]
    for group in command._action_groups:
        actions = [action for action in group._group_actions if action.dest != "help"]
        actions = [action for action in actions if action.help != argparse.SUPPRESS]
        if not actions:
            continue
        if group.title in GROUPS:
            lines += [f"**{group.title}**", ""]
        lines += ["| argument | needed | what it is |", "|---|---|---|"]
        lines += [*(row(action) for action in actions), ""]
    return "\n".join(lines)


def row(action: argparse.Action) -> str:
    """Return one argument as a row of the table."""
    names = action.option_strings or [str(action.metavar or action.dest)]
    takes_value = bool(action.option_strings) and action.nargs != 0
    value = f" {action.metavar or action.dest.upper()}" if takes_value else ""
    several = " ..." if action.nargs in ("*", "+") else ""
    shown = ", ".join(f"{name}{value}{several}" for name in names)
    is_needed = action.required and action.nargs != "*"
    help_text = (action.help or "").replace("|", "\\|").replace("%%", "%")
    return f"| `{shown}` | {'yes' if is_needed else ''} | {help_text} |"


def generated() -> dict[Path, str]:
    """Return the text of every generated file, by path."""
    return {SIGNATURE: signature(), OPTIONS_PAGE: options_page(), CLI_PAGE: cli_page()}


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")

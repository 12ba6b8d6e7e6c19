"""Write docs/reference/cli.md from the parser itself: python docs/generate_cli.py

A test compares the page with what this makes, so a changed option needs a run of this.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ssdlm.cli import parser

PAGE = Path(__file__).parent / "reference" / "cli.md"
HEAD = """# Command line

Made by `python docs/generate_cli.py`; do not edit. Bad input ends in a line on stderr and exit
code 2. `python -m ssdlm` is the same as `ssdlm`.
"""


def page() -> str:
    """Return the reference of all commands, as Markdown."""
    return "\n".join([HEAD, *(section(*command) for command in commands(parser()))])


def commands(
    top: argparse.ArgumentParser, about: str = ""
) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield every parser that takes arguments of its own, with its line of help."""
    kinds = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    if not kinds:
        yield top, about
    for kind in kinds:
        lines = {choice.dest: choice.help or "" for choice in kind._choices_actions}
        for name, command in kind.choices.items():
            yield from commands(command, lines.get(name, ""))


def section(command: argparse.ArgumentParser, about: str) -> str:
    """Return one command: its name, what it does, its arguments."""
    rows = [row(action) for action in command._actions if action.dest != "help"]
    table = ["| argument | needed | what it is |", "|---|---|---|", *rows]
    return "\n".join([f"## {command.prog}", "", f"{about[:1].upper()}{about[1:]}.", "", *table, ""])


def row(action: argparse.Action) -> str:
    """Return one argument as a row of the table."""
    name = (
        action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
    )
    takes_value = bool(action.option_strings) and action.nargs != 0
    value = f" {action.metavar or action.dest.upper()}" if takes_value else ""
    is_needed = action.required and action.nargs != "*"
    several = " ..." if action.nargs in ("*", "+") else ""
    help_text = (action.help or "").replace("|", "\\|")
    return f"| `{name}{value}{several}` | {'yes' if is_needed else ''} | {help_text} |"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")

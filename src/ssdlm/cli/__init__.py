"""The command line: arguments in, one call of the library, a result or a one-line error out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ssdlm import __version__
from ssdlm.cli import generating, measuring, training


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; bad input ends in a line on stderr and exit code 2."""
    arguments = parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def parser() -> Parser:
    """Return the parser of all commands."""
    top = Parser(
        prog="ssdlm", description="Simplex diffusion language models: write, steer, train, measure."
    )
    top.add_argument("--version", action="version", version=f"ssdlm {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        generating.add_generate,
        generating.add_models,
        generating.add_convert,
        training.add_tokenizer,
        training.add_prepare,
        training.add_train,
        training.add_train_guide,
        training.add_plot,
        measuring.add_evaluate,
        measuring.add_prompts,
        measuring.add_reproduce,
    ):
        add(commands)
    return top

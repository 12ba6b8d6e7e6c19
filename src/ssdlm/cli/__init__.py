"""The command line: arguments in, one call of the library, a result or a one-line error out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ssdlm import __version__
from ssdlm.cli import generate, measure, train


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
        generate.add_generate,
        generate.add_models,
        generate.add_convert,
        train.add_tokenizer,
        train.add_prepare,
        train.add_train,
        train.add_train_guide,
        train.add_plot,
        measure.add_evaluate,
        measure.add_prompts,
        measure.add_reproduce,
    ):
        add(commands)
    return top

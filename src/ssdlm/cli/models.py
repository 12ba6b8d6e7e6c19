"""Commands about checkpoints: models, convert."""

from __future__ import annotations

import argparse
from typing import Any

from ssdlm.cli.flags import add_options, given_options


def add_models(commands: Any) -> None:
    command = commands.add_parser("models", help="list the models and guides that are here")
    command.set_defaults(run=run_models)


def run_models(arguments: argparse.Namespace) -> None:
    """List what is built in."""
    from ssdlm.storage.builtin import about_smollm2, list_builtin

    print(*list_builtin(), about_smollm2(), sep="\n")


def add_convert(commands: Any) -> None:
    command = commands.add_parser(
        "convert",
        help="write a checkpoint anew: a run's, the authors', smaller, with options to store",
    )
    command.set_defaults(run=run_convert)
    command.add_argument("source", metavar="SRC", help="folder or Hub id")
    command.add_argument("destination", metavar="DST", help="new folder")
    command.add_argument(
        "--quantise", default="none", help="int8: weights in a quarter of the space"
    )
    add_options(command, is_stored=True)


def run_convert(arguments: argparse.Namespace) -> None:
    """Write a checkpoint anew in our layout."""
    from pathlib import Path

    from ssdlm.api import SSDLM
    from ssdlm.storage.files import new_folder

    model = SSDLM.from_pretrained(arguments.source, device="cpu")
    model.options = model.options.change(**given_options(arguments))
    target = Path(arguments.destination)
    was_there = target.exists()
    with new_folder(target, may_exist=True) as folder:
        model.save_pretrained(folder, quantise=arguments.quantise)
    print(f"{target} is already complete" if was_there else f"wrote {target}")

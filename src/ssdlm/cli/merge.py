"""`ssdlm merge`: the parts of a job put together, as one process would have written them."""

from __future__ import annotations

import argparse
from typing import Any


def add_merge(commands: Any) -> None:
    command = commands.add_parser("merge", help="put together what --shard wrote in parts")
    command.set_defaults(run=run_merge)
    command.add_argument(
        "parts",
        nargs="+",
        metavar="PART",
        help="all parts, in any order: files of generate --shard, or folders of prepare --shard",
    )
    command.add_argument("--output", required=True, metavar="OUT", help="file or folder to write")


def run_merge(arguments: argparse.Namespace) -> None:
    """Put parts together: token stores where they are folders, else files of texts."""
    from ssdlm.storage.remote import place_of

    parts = [place_of(name, "a part") for name in arguments.parts]
    if all(path.is_dir() for path in parts):
        from ssdlm.data.merging import merge_stores

        print(merge_stores(parts, arguments.output, is_shown=True))
        return
    from ssdlm.engine.merging import merge_texts

    report = merge_texts(parts, place_of(arguments.output, "output"))
    if report.was_there:
        print(f"{arguments.output} is already there, as these parts make it")
    elif arguments.output != "-":
        print(f"wrote {arguments.output}: {report.texts} texts of {len(parts)} parts")

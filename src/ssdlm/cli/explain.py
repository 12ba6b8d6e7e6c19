"""The command that tells how controls would steer: explain."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ssdlm.cli.flags import add_options, given_options, refuse_bad_values
from ssdlm.options import CONTROL
from ssdlm.storage.builtin import DEFAULT_MODEL


def add_explain(commands: Any) -> None:
    command = commands.add_parser(
        "explain", help="tell how each control would steer, by gradient or particles, and why"
    )
    command.set_defaults(run=run_explain)
    command.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help=f"folder or Hub id of a checkpoint (default {DEFAULT_MODEL})",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object per control")
    add_options(command, groups=(CONTROL,))


def run_explain(arguments: argparse.Namespace) -> None:
    """Print a line for each control."""
    refuse_bad_values(arguments)
    from ssdlm.api import SSDLM
    from ssdlm.engine.ways import explained

    model = SSDLM.from_pretrained(arguments.model, device="cpu")
    options = model.options.change(**given_options(arguments))
    if not options.control:
        raise ValueError("there is no control to explain; give --control CLASSIFIER=LABEL")
    model.engine.check(options)
    controls = model.engine.controls
    count = controls.num_particles(options)
    for way in controls.ways(options):
        line = way.json(options, count)
        print(json.dumps(line) if arguments.json else explained(way, options, count))

"""The command that writes spans of a text anew: rewrite."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any, get_args

from ssdlm.cli.flags import add_options, given_options, refuse_bad_values
from ssdlm.cli.generate import add_model, open_model, tell_of_particles, tell_of_scorers
from ssdlm.cli.starting import choose_threads
from ssdlm.needs import NOT_OF_SPANS
from ssdlm.options import SpanLength
from ssdlm.storage.files import named_path
from ssdlm.storage.lines import read_text


def add_rewrite(commands: Any) -> None:
    command = commands.add_parser(
        "rewrite", help="write spans of a text anew, in view of both sides"
    )
    command.set_defaults(run=run_rewrite)
    command.add_argument("source", metavar="FILE", help="a text; - is standard input")
    command.add_argument(
        "--span",
        dest="spans",
        action="append",
        required=True,
        metavar="A-B",
        help="what is written anew: from character A, counted from 0, up to B; may be repeated",
    )
    command.add_argument(
        "--length",
        dest="span_length",
        default="equal",
        choices=get_args(SpanLength),
        help="as many tokens as a span had, or the likeliest of several lengths (default equal)",
    )
    command.add_argument(
        "--alternatives", type=int, default=1, metavar="N", help="texts to print (default 1)"
    )
    add_model(command)
    command.add_argument("--json", action="store_true", help="print one JSON object per text")
    add_options(command, without=NOT_OF_SPANS)


def read_span(text: str) -> tuple[int, int]:
    """Return the span that a word of the command line means."""
    try:
        start, end = map(int, text.split("-"))
    except ValueError:
        raise ValueError(f"--span {text} is not two places such as 4-9") from None
    return start, end


def run_rewrite(arguments: argparse.Namespace) -> None:
    """Print the text with spans written anew, and nothing else: not even a line end of its own."""
    refuse_bad_values(arguments)
    spans = [read_span(word) for word in arguments.spans]
    text = read_text(named_path(arguments.source, "FILE"))
    model, changes = open_model(arguments), given_options(arguments)
    choose_threads(model.denoiser, model.options)
    tell_of_particles(model.engine, model.options.change(**changes))
    how = {"length": arguments.span_length, "alternatives": arguments.alternatives}
    rewrites = model.rewrite(text, spans, **how, **changes)
    for one in rewrites:
        if arguments.json:
            print(json.dumps(asdict(one)), flush=True)
        else:
            has_end = len(rewrites) == 1 or one.text.endswith("\n")
            sys.stdout.write(one.text if has_end else one.text + "\n")
    tell_of_scorers(model.engine)

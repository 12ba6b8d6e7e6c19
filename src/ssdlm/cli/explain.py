"""The command that tells how a text would be written: explain."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ssdlm.cli.flags import add_options, given_options, refuse_bad_values
from ssdlm.cli.generate import add_chat, add_model, open_model, refuse_lone_system


def add_explain(commands: Any) -> None:
    command = commands.add_parser(
        "explain",
        help="tell how `generate` would write a text: the program, captured or why not, passes, "
        "controls",
    )
    command.set_defaults(run=run_explain)
    command.add_argument(
        "prompt", nargs="?", default="", metavar="PROMPT", help="a text to continue"
    )
    add_chat(command, "of PROMPT as a user's message, by the model's chat template")
    add_model(command)
    command.add_argument(
        "--stream",
        action="store_true",
        help="of a text that is watched, as by --json --drafts or the live view of `generate`",
    )
    command.add_argument(
        "--states",
        action="store_true",
        help="of one whose drafts tell more than tokens, as with --candidates or --guides",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(command)


def run_explain(arguments: argparse.Namespace) -> None:
    """Print how a text would be written."""
    refuse_lone_system(arguments)
    refuse_bad_values(arguments)
    model, changes, prompt = open_model(arguments), given_options(arguments), arguments.prompt
    if arguments.chat:
        from ssdlm.engine.chat import chat_text, said

        prompt = chat_text(model.tokenizer, said(prompt, arguments.system))
    watched = {"stream": arguments.stream, "states": arguments.states}
    found = model.explain(prompt, **watched, **changes)
    print(json.dumps(found.json()) if arguments.json else found)

"""The command that rates texts: score."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from ssdlm.cli.generate import add_model, open_model
from ssdlm.cli.starting import choose_threads


def add_score(commands: Any) -> None:
    command = commands.add_parser(
        "score", help="tell how likely texts are to the model, token by token"
    )
    command.set_defaults(run=run_score)
    command.add_argument("texts", nargs="+", metavar="TEXT", help="- is standard input, as a whole")
    command.add_argument("--prompt", default="", metavar="TEXT", help="what the texts follow")
    add_model(command)
    command.add_argument(
        "--json", action="store_true", help="print one JSON object per text, with its tokens"
    )


def run_score(arguments: argparse.Namespace) -> None:
    """Print a line for each text: its perplexity, log-probability and number of tokens."""
    texts = [sys.stdin.read() if text == "-" else text for text in arguments.texts]
    model = open_model(arguments)
    choose_threads(model.denoiser, model.options)
    for one in model.score(texts, prompt=arguments.prompt):
        if arguments.json:
            perplexity = one.perplexity if one.known else None
            told = {"perplexity": perplexity, "logprob": one.logprob}
            print(json.dumps(told | asdict(one)), flush=True)
        else:
            rated = f"perplexity {one.perplexity:.2f}, log p {one.logprob:.2f}"
            about = rated if one.known else "nothing to score"
            print(f"{about}, {len(one.tokens)} tokens: {' '.join(one.text.split())}", flush=True)

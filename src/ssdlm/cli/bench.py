"""Commands that time: bench decode.  [timing]"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def add_bench(commands: Any) -> None:
    command = commands.add_parser("bench", help="time this machine")
    kinds = command.add_subparsers(title="kinds", metavar="KIND", required=True)
    decode = kinds.add_parser(
        "decode", help="time decoding: a table, and one JSON line with all figures"
    )
    decode.set_defaults(run=run_decode)
    add_subject(decode)
    add_path(decode)
    add_machine(decode)
    add_others(decode)


def add_subject(decode: argparse.ArgumentParser) -> None:
    """Add which model is timed, and what it writes."""
    decode.add_argument(
        "--size",
        default="mini",
        help="mini (default: the built-in model), or random weights of the shape of "
        "roberta-large, roberta-base, tiny",
    )
    decode.add_argument(
        "--model", metavar="M", help="time this model, whatever --size says: smollm2, a folder"
    )
    decode.add_argument(
        "--drafter",
        metavar="DIR",
        help="what guesses for --mode speculative (default: the model's own)",
    )
    for name, default, what in (
        ("batch", 1, "texts at a time"),
        ("context", 50, "tokens per prompt"),
        ("length", 50, "tokens per text"),
        ("repeats", 5, "runs, of which the median is reported"),
    ):
        text = f"{what} (default {default})"
        decode.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)


def add_path(decode: argparse.ArgumentParser) -> None:
    """Add how texts are written."""
    decode.add_argument(
        "--block", "--B", type=int, metavar="N", help="tokens per block (default: the model's, 25)"
    )
    decode.add_argument(
        "--steps",
        "--T",
        type=int,
        metavar="N",
        help="diffusion steps per block (default: the model's own; 50 for an encoder)",
    )
    decode.add_argument(
        "--grid", help="uniform, warped, tilted, staggered or sliding (default: the model's own)"
    )
    decode.add_argument(
        "--width",
        type=float,
        metavar="X",
        help="tilted, staggered, sliding: positions in the window (default: the model's own)",
    )
    decode.add_argument("--mode", help="diffusion (default), autoregressive or speculative")
    decode.add_argument(
        "--denoiser", help="encoder or block (default: block for mini, else encoder)"
    )


def add_machine(decode: argparse.ArgumentParser) -> None:
    """Add on what it is timed."""
    decode.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    decode.add_argument(
        "--dtype", default="auto", help="default auto: bfloat16 on a GPU, float32 on a CPU"
    )
    decode.add_argument(
        "--deterministic",
        action="store_true",
        help="on a GPU, too, write the same text whatever else is being written",
    )


def add_others(decode: argparse.ArgumentParser) -> None:
    """Add what more is timed."""
    decode.add_argument(
        "--control",
        action="append",
        default=[],
        metavar="NAME=LABEL",
        help="steer while timing a trained model; may be repeated",
    )
    decode.add_argument(
        "--original", action="store_true", help="time the authors' loop over an encoder too"
    )
    decode.add_argument(
        "--twin",
        action="store_true",
        help="time the context stream, token by token: under transformers, and under this engine",
    )


def run_decode(arguments: argparse.Namespace) -> None:
    """Time decoding; print a table and, as the last line, JSON."""
    from dataclasses import fields

    from ssdlm.bench.decode import DecodeBench, bench_decode, table

    given: dict[str, Any] = {
        item.name: getattr(arguments, item.name) for item in fields(DecodeBench)
    }
    given["control"] = tuple(arguments.control)
    asked = DecodeBench(**given)
    found = bench_decode(asked, lambda line: print(line, file=sys.stderr, flush=True))
    print(table(found))
    print(json.dumps(found))

"""Commands that write: generate, models, convert.  [generating]"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from typing import Any

MODEL = "builtin:mini"
DECODING = ("length", "B", "T", "grid", "width", "projection", "top_p")
DECODING += ("nucleus", "temperature", "rule", "rho", "returns")
"""Options that a model's own settings stand in for."""
CONSTRAINTS = ("must", "must_not", "suffix")
CONTROL = ("gradient", "threshold", "band")


def add_generate(commands: Any) -> None:
    command = commands.add_parser("generate", help="continue prompts")
    command.set_defaults(run=run_generate)
    command.add_argument("prompts", nargs="*", metavar="PROMPT", help="texts to continue")
    command.add_argument("--input", metavar="PROMPTS.jsonl", help='a {"prompt": ...} on each line')
    command.add_argument("--output", metavar="OUT.jsonl", help="with --input: where the texts go")
    command.add_argument(
        "--model", default=MODEL, help=f"folder or Hub id of a checkpoint (default {MODEL})"
    )
    add_decoding(command)
    command.add_argument("--early-exit", action="store_true", help="leave settled blocks early")
    command.add_argument("--stop-at-end", action="store_true", help="end at the end-of-text token")
    command.add_argument(
        "--must", action="append", metavar="WORD", help="a word to hold; may be repeated"
    )
    command.add_argument(
        "--must-not", action="append", metavar="WORD", help="a word not to hold; may be repeated"
    )
    command.add_argument(
        "--suffix", metavar="TEXT", help="infill: what stands after a gap of LENGTH tokens"
    )
    command.add_argument(
        "--end-at-sentence", action="store_true", help="cut at the last end of a sentence"
    )
    command.add_argument("--seed", type=int, default=0, help="same seed, same text (default 0)")
    command.add_argument("--num-samples", type=int, default=1, help="texts a prompt (default 1)")
    command.add_argument(
        "--best-of", type=int, default=1, help="write so many for each, keep the likeliest"
    )
    command.add_argument(
        "--batch-size", type=int, default=32, help="texts at a time on a GPU (default 32)"
    )
    command.add_argument(
        "--control",
        action="append",
        default=[],
        metavar="CLASSIFIER=LABEL[:LAMBDA]",
        help="steer towards a label of a classifier (built in, folder or Hub id), or away from "
        "it with !=; may be repeated",
    )
    command.add_argument(
        "--sees", default="context", help="what a classifier reads: context (and block), or block"
    )
    command.add_argument("--gradient", help="control by: logits (the paper), simplex or words")
    command.add_argument("--threshold", type=float, help="words: deviations that stand out")
    command.add_argument("--band", type=numbers, help="control between these levels t/T: 0.15,1")
    command.add_argument(
        "--reduction",
        default="sum",
        choices=("sum", "mean"),
        help="add control over rows, or average it (the authors' code)",
    )
    command.add_argument(
        "--no-special-tokens",
        action="store_true",
        help="do not frame what a classifier reads (the authors' code)",
    )
    command.add_argument("--device", default="auto", help="auto, cpu or cuda")
    command.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    command.add_argument("--json", action="store_true", help="print one JSON object a text")
    command.add_argument("--no-live", action="store_true", help="do not show the text settling")


def add_decoding(command: Any) -> None:
    """Add the options that a model's own settings stand in for."""
    command.add_argument("--length", type=int, help="tokens to write")
    command.add_argument("--B", type=lengths, help="block length, or several: 5,10,25")
    command.add_argument("--T", type=int, help="diffusion steps a block")
    command.add_argument("--grid", help="uniform, warped, or staggered: left to right")
    command.add_argument("--width", type=float, help="staggered: positions in the window")
    command.add_argument("--projection", help="greedy, sampling, multi_hot or mean")
    command.add_argument("--top-p", type=float, help="mass of the nucleus, 0 (greedy) to 1")
    command.add_argument("--nucleus", help="of the logits (the paper), or of the network alone")
    command.add_argument("--temperature", type=float, help="of the network's share; 1 leaves it")
    command.add_argument("--rule", help="renoise (the paper), adaptive, ddpm or ddpm_simplified")
    command.add_argument("--rho", type=float, help="renoise: share of the evidence kept, 0 to 1")
    command.add_argument("--returns", help="logits (the authors' code) or w_0 (the paper)")


def numbers(text: str) -> tuple[float, ...]:
    """Return noise levels from `0.15,1`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no band; write two as 0.15,1") from None


def lengths(text: str) -> tuple[int, ...]:
    """Return block lengths from `25` or `5,10,25`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a block length; write 25, or several as 5,10,25"
        ) from None


def run_generate(arguments: argparse.Namespace) -> None:
    """Continue the prompts and print the texts."""
    from ssdlm.api import SSDLM

    model = SSDLM.from_pretrained(arguments.model, device=arguments.device, dtype=arguments.dtype)
    options = decoding_options(arguments) | control_options(arguments, model.denoiser.device.type)
    if arguments.input or arguments.output:
        run_generate_file(arguments, model, options)
        return
    prompts = arguments.prompts or [""]
    is_wanted = not arguments.json and not arguments.no_live
    is_watched = is_wanted and sys.stderr.isatty() and find_spec("rich") is not None
    if is_watched and len(prompts) == 1 and arguments.num_samples == arguments.best_of == 1:
        from ssdlm.cli.live import watch

        drafts = model.stream(prompts[0], seed=arguments.seed, **options)
        print(prompts[0] + watch(prompts[0], drafts, model.spellings()))
        return
    written = model.generate_each(
        prompts,
        seed=arguments.seed,
        num_samples=arguments.num_samples,
        best_of=arguments.best_of,
        batch_size=arguments.batch_size,
        **options,
    )
    show_in_order(written, as_json=arguments.json)


def run_generate_file(arguments: argparse.Namespace, model: Any, options: dict[str, Any]) -> None:
    """Continue a file of prompts into a file of texts."""
    from pathlib import Path

    from ssdlm.engine.prompt_files import generate_file

    if not (arguments.input and arguments.output) or arguments.prompts:
        raise ValueError("--input and --output go together, without other prompts; give both")
    # Where it runs and how it is watched do not change what is written.
    aside = ("run", "device", "no_live", "json", "input", "output", "num_samples", "batch_size")
    settings = {name: value for name, value in vars(arguments).items() if name not in aside}
    count = generate_file(
        model,
        Path(arguments.input),
        Path(arguments.output),
        num_samples=arguments.num_samples,
        batch_size=arguments.batch_size,
        settings=settings,
        is_shown=True,
        seed=arguments.seed,
        best_of=arguments.best_of,
        **options,
    )
    print(f"wrote {arguments.output}: {count} texts")


def show_in_order(written: Any, *, as_json: bool) -> None:
    """Print texts in the order of their rows, each as soon as all before it are there."""
    waiting: dict[int, Any] = {}
    shown = 0
    for index, generation in written:
        waiting[index] = generation
        while shown in waiting:
            done = waiting.pop(shown)
            print(json.dumps(vars(done)) if as_json else done.prompt + done.text, flush=True)
            shown += 1


def decoding_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the decoding settings that were given."""
    given = {name: getattr(arguments, name) for name in DECODING + CONSTRAINTS + CONTROL}
    options = {name: value for name, value in given.items() if value is not None}
    for switch in ("early_exit", "stop_at_end", "end_at_sentence"):
        options |= {switch: True} if getattr(arguments, switch) else {}
    return options


def control_options(arguments: argparse.Namespace, device: str) -> dict[str, Any]:
    """Return the guides that `--control` names."""
    from ssdlm.config import choose
    from ssdlm.guidance import load_guide
    from ssdlm.guidance.grammar import SEES

    choose("sees", arguments.sees, SEES)
    if not arguments.control:
        return {}
    guides = [
        load_guide(
            text,
            sees=arguments.sees,
            has_special_tokens=not arguments.no_special_tokens,
            device=device,
        )
        for text in arguments.control
    ]
    return {"control": guides, "reduction": arguments.reduction}


def add_models(commands: Any) -> None:
    command = commands.add_parser("models", help="list the models and guides that are built in")
    command.set_defaults(run=run_models)


def run_models(arguments: argparse.Namespace) -> None:
    """List what is built in."""
    from ssdlm.storage.builtin import list_builtin

    print(*list_builtin(), sep="\n")


def add_convert(commands: Any) -> None:
    command = commands.add_parser(
        "convert", help="write a checkpoint anew: a run's, the authors', smaller, with settings"
    )
    command.set_defaults(run=run_convert)
    command.add_argument("source", metavar="SRC", help="folder or Hub id")
    command.add_argument("target", metavar="DST", help="new folder")
    command.add_argument(
        "--quantise", default="none", help="int8: weights in a quarter of the space"
    )
    settings = command.add_argument_group("decoding settings to store; others are kept")
    add_decoding(settings)


def run_convert(arguments: argparse.Namespace) -> None:
    """Write a checkpoint anew in our layout."""
    from pathlib import Path

    from ssdlm.api import SSDLM
    from ssdlm.engine.strategy import decode_config
    from ssdlm.storage.files import new_folder

    model = SSDLM.from_pretrained(arguments.source, device="cpu")
    given = {name: getattr(arguments, name) for name in DECODING}
    settings = {name: value for name, value in given.items() if value is not None}
    model.decoding = decode_config(model.decoding, **settings)
    with new_folder(Path(arguments.target)) as folder:
        model.save_pretrained(folder, quantise=arguments.quantise)
    print(f"wrote {arguments.target}")

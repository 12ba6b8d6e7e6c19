"""The command line: arguments in, one call of the library, a result or a one-line error out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

from ssdlm import __version__

MODEL = "builtin:mini"
DECODING = ("length", "B", "T", "grid", "width", "projection", "top_p")
DECODING += ("nucleus", "temperature", "rule", "rho", "returns")
"""Options that a model's own settings stand in for."""
CONSTRAINTS = ("must", "must_not", "suffix")
CONTROL = ("gradient", "threshold", "band")


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
        add_generate,
        add_models,
        add_convert,
        add_tokenizer,
        add_prepare,
        add_train,
        add_train_guide,
        add_plot,
        add_evaluate,
        add_prompts,
        add_reproduce,
    ):
        add(commands)
    return top


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


def add_models(commands: Any) -> None:
    command = commands.add_parser("models", help="list the models and guides that are built in")
    command.set_defaults(run=run_models)


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


def add_tokenizer(commands: Any) -> None:
    command = commands.add_parser("tokenizer", help="make a tokenizer")
    kinds = command.add_subparsers(title="kinds", metavar="KIND", required=True)
    nested = kinds.add_parser("nested", help="the first merges of GPT-2's or RoBERTa's vocabulary")
    nested.set_defaults(run=run_nested)
    nested.add_argument("--from", dest="source", required=True, help="folder or Hub id of it")
    nested.add_argument("--size", type=int, default=8192, help="tokens (default 8192)")
    nested.add_argument("--out", required=True, help="new folder")


def add_prepare(commands: Any) -> None:
    command = commands.add_parser("prepare", help="turn text into token shards to train on")
    command.set_defaults(run=run_prepare)
    command.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help=".txt .jsonl .csv .parquet (also .gz .xz .zst), folders, globs, or a Hub data set",
    )
    command.add_argument("--tokenizer", required=True, help="folder or Hub id of a tokenizer")
    command.add_argument("--out", required=True, help="folder for the shards")
    command.add_argument(
        "--holdout", type=float, default=0.01, help="share of documents held out (default 0.01)"
    )
    command.add_argument("--workers", type=int, default=1, help="threads (default 1)")


def add_train(commands: Any) -> None:
    command = commands.add_parser("train", help="train a model, or go on with a run")
    command.set_defaults(run=run_train)
    command.add_argument(
        "--recipe", required=True, help="paper_large, paper_rocstories, mini, twin, tiny"
    )
    command.add_argument("--data", nargs="+", required=True, help="folders that prepare wrote")
    command.add_argument("--out", required=True, help="folder of the run; resumed if it is there")
    command.add_argument("--fresh", action="store_true", help="discard what is in --out")
    command.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings, such as lr=3e-5 or model.D=256"
    )


def add_train_guide(commands: Any) -> None:
    command = commands.add_parser("train-guide", help="make a classifier to steer with")
    command.set_defaults(run=run_train_guide)
    command.add_argument(
        "data",
        nargs="+",
        metavar="DATA",
        help=".jsonl .csv .tsv with text and label (also .gz .xz .zst); then KEY=VALUE if wanted",
    )
    command.add_argument("--out", required=True, help="new folder")
    command.add_argument("--tokenizer", help="of the model to steer: a new small classifier")
    command.add_argument("--from", dest="start", help="or a model to go on from: folder or Hub id")
    command.add_argument("--words", help="model whose word embeddings a new one begins with")
    command.add_argument("--test", help="labelled file to measure on, never trained on")


def add_plot(commands: Any) -> None:
    command = commands.add_parser("plot", help="draw a run's loss curve and profile")
    command.set_defaults(run=run_plot)
    command.add_argument("out", metavar="OUT", help="folder of a run")


def add_evaluate(commands: Any) -> None:
    command = commands.add_parser("evaluate", help="measure generated texts")
    command.set_defaults(run=run_evaluate)
    command.add_argument("generations", metavar="GENERATIONS.jsonl", help="what generate wrote")
    command.add_argument("--reference", metavar="GOLD.jsonl", help="gold continuations, by prompt")
    command.add_argument("--metrics", help="of mauve,ppl,dist,zipf,rep,self_bleu,entropy")
    command.add_argument("--judge", help="causal LM for perplexity (default SmolLM2: make judge)")
    command.add_argument("--features", help="models for MAUVE, by comma (default judge,minilm)")
    for kind, what in (("guide", "that steered"), ("judge", "that had no part in it")):
        command.add_argument(
            f"--control-{kind}",
            action="append",
            default=[],
            metavar="CLASSIFIER=LABEL",
            help=f"accuracy under a classifier {what}; may be repeated",
        )
    command.add_argument(
        "--mixed-lengths", action="store_true", help="allow texts of different lengths"
    )
    command.add_argument("--out", required=True, metavar="REPORT.json", help="where to write")


def add_prompts(commands: Any) -> None:
    command = commands.add_parser("prompts", help="make prompts, with gold where it is known")
    command.set_defaults(run=run_prompts)
    command.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="folders that prepare wrote (their hold-outs), or .jsonl with prompt, context_string",
    )
    command.add_argument("--count", type=int, default=1000, help="prompts in all (default 1000)")
    command.add_argument("--prompt-length", type=int, default=50, help="tokens (default 50)")
    command.add_argument("--length", type=int, default=50, help="tokens of gold (default 50)")
    command.add_argument("--out", required=True, metavar="PROMPTS.jsonl", help="new file")


def add_reproduce(commands: Any) -> None:
    command = commands.add_parser("reproduce", help="run an experiment of the paper")
    command.set_defaults(run=run_reproduce)
    command.add_argument("table", help="table1, table2, table3 or figures")
    command.add_argument("--scale", default="mini", help="mini (default) or paper")
    command.add_argument("--out", required=True, help="folder; what is done in it is kept")
    command.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="ROLE=MODEL",
        help="folder or Hub id of ours, twin, paper or another; may be repeated",
    )
    command.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="prompts of a length (50=FILE, owt-50=FILE) or for all (FILE); may be repeated",
    )
    command.add_argument(
        "--stage",
        default="both",
        help="generate (needs the models), evaluate, both (default), or page (measures nothing)",
    )
    command.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="cells by name: 50/ours/*"
    )
    command.add_argument("--device", default="auto", help="auto, cpu or cuda")
    command.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    command.add_argument("--batch-size", type=int, default=32, help="rows at a time (default 32)")
    command.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change the scale: T=200 seeds=1,2; may be repeated",
    )


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
        from ssdlm.live import watch

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

    from ssdlm.batch import generate_file

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
    """Return the guides that `--control` wishes for."""
    if not arguments.control:
        return {}
    from ssdlm.guides import guide_from

    guides = [
        guide_from(
            text,
            sees=arguments.sees,
            has_special_tokens=not arguments.no_special_tokens,
            device=device,
        )
        for text in arguments.control
    ]
    return {"control": guides, "reduction": arguments.reduction}


def run_models(arguments: argparse.Namespace) -> None:
    """List what is built in."""
    from ssdlm.shelf import listing

    print(*listing(), sep="\n")


def run_convert(arguments: argparse.Namespace) -> None:
    """Write a checkpoint anew in our layout."""
    from pathlib import Path

    from ssdlm.api import SSDLM
    from ssdlm.checkpoint import new_folder
    from ssdlm.decoding import decode_config

    model = SSDLM.from_pretrained(arguments.source, device="cpu")
    given = {name: getattr(arguments, name) for name in DECODING}
    settings = {name: value for name, value in given.items() if value is not None}
    model.decoding = decode_config(model.decoding, **settings)
    with new_folder(Path(arguments.target)) as folder:
        model.save_pretrained(folder, quantise=arguments.quantise)
    print(f"wrote {arguments.target}")


def run_nested(arguments: argparse.Namespace) -> None:
    """Write a nested vocabulary."""
    from pathlib import Path

    from ssdlm.checkpoint import new_folder
    from ssdlm.tokenizer import nested

    tokenizer = nested(arguments.source, arguments.size)
    with new_folder(Path(arguments.out)) as folder:
        tokenizer.save(folder)
    print(f"wrote {arguments.out}: {tokenizer.V} tokens")


def run_prepare(arguments: argparse.Namespace) -> None:
    """Tokenise text into a store."""
    from ssdlm.data.prepare import prepare

    report = prepare(
        arguments.inputs,
        tokenizer=arguments.tokenizer,
        out=arguments.out,
        holdout=arguments.holdout,
        workers=arguments.workers,
        show_progress=True,
    )
    print(report)


def run_train(arguments: argparse.Namespace) -> None:
    """Train, or resume."""
    from ssdlm.train import configure, train

    # `--data DIR key=value` reads as two folders; a setting is told by its equals sign.
    data = [name for name in arguments.data if "=" not in name or os.path.exists(name)]
    settings = [name for name in arguments.data if name not in data]
    config = configure(arguments.recipe, settings + arguments.overrides)
    report = train(config, data=data, out=arguments.out, fresh=arguments.fresh)
    if os.environ.get("RANK", "0") == "0":
        loss = "nothing left to do" if report.loss is None else f"loss {report.loss:.4f}"
        print(f"{report.out}: step {report.step}, {loss}, {report.seconds:.0f} s")


def run_train_guide(arguments: argparse.Namespace) -> None:
    """Train a classifier."""
    from ssdlm.guidetraining import configure, train_guide

    data = [name for name in arguments.data if "=" not in name or os.path.exists(name)]
    settings = [name for name in arguments.data if name not in data]
    report = train_guide(
        data,
        out=arguments.out,
        tokenizer=arguments.tokenizer,
        start=arguments.start,
        test=arguments.test,
        words=arguments.words,
        config=configure(settings),
        is_shown=True,
    )
    print(report)


def run_plot(arguments: argparse.Namespace) -> None:
    """Draw a run."""
    from ssdlm.plot import plot

    print(f"wrote {plot(arguments.out)}")


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Measure a file of generations."""
    from ssdlm.evaluate.report import progress_on_stderr, show
    from ssdlm.evaluate.run import evaluate

    given = {name: getattr(arguments, name) for name in ("metrics", "features")}
    options: dict[str, Any] = {k: v.split(",") for k, v in given.items() if v is not None}
    options |= {"judge": arguments.judge} if arguments.judge else {}
    report = evaluate(
        arguments.generations,
        reference=arguments.reference,
        out=arguments.out,
        mixed_lengths=arguments.mixed_lengths,
        control_guides=arguments.control_guide,
        control_judges=arguments.control_judge,
        observe=progress_on_stderr,
        **options,
    )
    show(report)


def run_prompts(arguments: argparse.Namespace) -> None:
    """Write a file of prompts."""
    from ssdlm.reproduce.prompts import make_prompts

    report = make_prompts(
        arguments.sources,
        out=arguments.out,
        count=arguments.count,
        prompt_length=arguments.prompt_length,
        length=arguments.length,
    )
    print(report)


def run_reproduce(arguments: argparse.Namespace) -> None:
    """Run an experiment, or one stage of it."""
    from ssdlm.reproduce.run import reproduce

    written = reproduce(
        arguments.table,
        out=arguments.out,
        scale=arguments.scale,
        stage=arguments.stage,
        models=arguments.model,
        prompts=arguments.prompts,
        overrides=arguments.set,
        only=tuple(arguments.only),
        device=arguments.device,
        dtype=arguments.dtype,
        batch_size=arguments.batch_size,
    )
    print(f"wrote {', '.join(map(str, written))}" if written else f"made {arguments.out}/cells")

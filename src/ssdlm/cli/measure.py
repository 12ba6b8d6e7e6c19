"""Commands that measure: evaluate, prompts, reproduce.  [measuring]"""

from __future__ import annotations

import argparse
from typing import Any


def add_evaluate(commands: Any) -> None:
    command = commands.add_parser("evaluate", help="measure generated texts")
    command.set_defaults(run=run_evaluate)
    command.add_argument(
        "generations",
        nargs="?",  # so that it may come after the metrics' names
        metavar="GENERATIONS.jsonl",
        help="texts written by generate (required)",
    )
    command.add_argument(
        "--reference", metavar="GOLD.jsonl", help="gold continuation of each prompt"
    )
    command.add_argument(
        "--metrics",
        nargs="+",
        action="extend",
        help="any of mauve,ppl,dist,zipf,rep,self_bleu,entropy (default: all)",
    )
    command.add_argument("--judge", help="causal LM for perplexity (default: SmolLM2)")
    command.add_argument("--features", help="models for MAUVE, with commas (default: judge,minilm)")
    for kind, what in (("guide", "that steered the texts"), ("judge", "that did not steer them")):
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
    command.add_argument("--out", required=True, metavar="REPORT.json", help="report to write")


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Measure a file of generations."""
    from ssdlm.guidance.grammar import check_control

    for control in (*arguments.control_guide, *arguments.control_judge):
        check_control(control, can_be_judge=True)
    from ssdlm.evaluate.report import progress_on_stderr, show
    from ssdlm.evaluate.run import METRICS, evaluate

    metrics, generations = arguments.metrics, arguments.generations
    if generations is None and metrics is not None and metrics[-1] not in METRICS:
        *metrics, generations = metrics
    if generations is None:
        raise ValueError(
            "there is no file to measure; give GENERATIONS.jsonl, as generate writes it"
        )
    options: dict[str, Any] = {}
    if metrics is not None:
        options["metrics"] = " ".join(metrics).replace(",", " ").split()
    if arguments.features is not None:
        options["features"] = arguments.features.split(",")
    options |= {"judge": arguments.judge} if arguments.judge is not None else {}
    report = evaluate(
        generations,
        reference=arguments.reference,
        out=arguments.out,
        mixed_lengths=arguments.mixed_lengths,
        control_guides=arguments.control_guide,
        control_judges=arguments.control_judge,
        observe=progress_on_stderr,
        **options,
    )
    show(report)


def add_prompts(commands: Any) -> None:
    command = commands.add_parser(
        "prompts", help="create a file of prompts, with gold continuations if known"
    )
    command.set_defaults(run=run_prompts)
    command.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="token stores (their hold-outs), or .jsonl files with prompt or context_string",
    )
    command.add_argument("--count", type=int, default=1000, help="number of prompts (default 1000)")
    command.add_argument(
        "--prompt-length", type=int, default=50, help="tokens per prompt (default 50)"
    )
    command.add_argument("--length", type=int, default=50, help="tokens per gold text (default 50)")
    command.add_argument("--out", required=True, metavar="PROMPTS.jsonl", help="file to create")


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


def add_reproduce(commands: Any) -> None:
    command = commands.add_parser("reproduce", help="run an experiment of the paper")
    command.set_defaults(run=run_reproduce)
    command.add_argument("table", help="table1, table2, table3, figures or control")
    command.add_argument("--scale", default="mini", help="mini (default) or paper")
    command.add_argument(
        "--out", required=True, help="folder of results; an existing one is continued"
    )
    command.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="ROLE=MODEL",
        help="folder or Hub id of ours, autoregressive, paper or another; may be repeated",
    )
    command.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="prompts of one length (50=FILE, owt-50=FILE) or for all (FILE); may be repeated",
    )
    command.add_argument(
        "--judge",
        action="append",
        default=[],
        metavar="ATTRIBUTE=FOLDER,FOLDER",
        help="control: classifiers that tell an attribute, one of them linear; may be repeated",
    )
    command.add_argument(
        "--human",
        action="append",
        default=[],
        metavar="ATTRIBUTE=FILE",
        help="control: labelled texts that trained neither guides nor judges; may be repeated",
    )
    command.add_argument(
        "--stage",
        default="both",
        help="generate (needs the models), read (needs the judges), evaluate, both (default: "
        "generate and evaluate), or page (measures nothing)",
    )
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="run matching settings: 50/ours/*",
    )
    command.add_argument("--device", default="auto", help="auto, cpu or cuda")
    command.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    command.add_argument("--batch-size", type=int, default=32, help="texts per batch (default 32)")
    command.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change fields of the scale: T=200 seeds=1,2; may be repeated",
    )


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
        judges=arguments.judge,
        human=arguments.human,
        overrides=arguments.set,
        only=tuple(arguments.only),
        device=arguments.device,
        dtype=arguments.dtype,
        batch_size=arguments.batch_size,
    )
    print(f"wrote {', '.join(map(str, written))}" if written else f"made {arguments.out}/cells")

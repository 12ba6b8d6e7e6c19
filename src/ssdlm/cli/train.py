"""From text to a model: tokenizer, prepare, train, estimate, train-guide and -judge, plot."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ssdlm.cli.flags import add_ray, add_shard
from ssdlm.train.recipes import recipe


def add_tokenizer(commands: Any) -> None:
    command = commands.add_parser("tokenizer", help="create a tokenizer")
    kinds = command.add_subparsers(title="kinds", metavar="KIND", required=True)
    nested = kinds.add_parser(
        "nested", help="a tokenizer from the first merges of GPT-2 or RoBERTa"
    )
    nested.set_defaults(run=run_nested)
    nested.add_argument(
        "--from", dest="source", required=True, help="folder or Hub id of the large tokenizer"
    )
    nested.add_argument("--size", type=int, default=8192, help="vocabulary size (default 8192)")
    nested.add_argument("--out", required=True, help="folder to create")


def run_nested(arguments: argparse.Namespace) -> None:
    """Write a nested vocabulary."""
    from pathlib import Path

    from ssdlm.storage.files import new_folder
    from ssdlm.tokenizer import nested

    tokenizer = nested(arguments.source, arguments.size)
    out = Path(arguments.out)
    said = f"{out} is already complete" if out.exists() else f"wrote {out}"
    with new_folder(out, may_exist=True) as folder:
        tokenizer.save(folder)
    print(f"{said}: {tokenizer.V} tokens")


def add_prepare(commands: Any) -> None:
    command = commands.add_parser("prepare", help="tokenise text for training")
    command.set_defaults(run=run_prepare)
    command.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help=".txt .jsonl .csv .parquet (also .gz .xz .zst), folders, globs, here or elsewhere "
        "(s3://, gs://, hf://), or a Hub data set",
    )
    command.add_argument("--tokenizer", required=True, help="folder or Hub id of a tokenizer")
    command.add_argument("--out", required=True, help="folder for the token store")
    command.add_argument(
        "--holdout",
        type=float,
        default=0.01,
        help="share of documents held out of training (default 0.01)",
    )
    command.add_argument(
        "--deduplicate",
        default="holdout",
        metavar="none|holdout|all",
        help="leave out of training what repeats a held-out text (holdout, the default), or keep "
        "each text once (all); case and white space do not count",
    )
    command.add_argument("--workers", type=int, default=1, help="number of threads (default 1)")
    add_shard(command, "tokenise one of N parts of the documents")
    add_ray(command, "tokenise")


def run_prepare(arguments: argparse.Namespace) -> None:
    """Tokenise text into a store, or into a part of one."""
    from functools import partial

    from ssdlm.data.parts import prepare_part
    from ssdlm.data.prepare import prepare
    from ssdlm.data.spreading import prepare_spread

    shard, address = arguments.shard, arguments.ray
    if shard is not None and address is not None:
        raise ValueError("--ray does all parts and --shard one of them; give one of the two")
    work = prepare if shard is None else partial(prepare_part, shard=shard)
    if address is not None:
        work = partial(prepare_spread, address=address)
    report = work(
        arguments.inputs,
        tokenizer=arguments.tokenizer,
        out=arguments.out,
        holdout=arguments.holdout,
        deduplicate=arguments.deduplicate,
        workers=arguments.workers,
        show_progress=True,
    )
    print(report)


def add_train(commands: Any) -> None:
    command = commands.add_parser("train", help="train a model, or resume a run")
    command.set_defaults(run=run_train, gathers="overrides")
    command.add_argument(
        "--recipe",
        required=True,
        help="paper_large, paper_rocstories, paper_mini, large, mini, autoregressive, adapt, tiny",
    )
    command.add_argument("--data", nargs="+", required=True, help="token stores written by prepare")
    command.add_argument("--out", required=True, help="folder of the run; an existing run resumes")
    command.add_argument(
        "--fresh", action="store_true", help="discard the run in --out and start again"
    )
    command.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings, such as lr=3e-5 or model.D=256"
    )


def run_train(arguments: argparse.Namespace) -> None:
    """Train, or resume."""
    recipe(arguments.recipe)  # an unknown one is refused before torch is imported
    from ssdlm.train import configure, train

    # `--data DIR key=value` reads as two folders; a setting is told by its equals sign.
    data = [name for name in arguments.data if "=" not in name or os.path.exists(name)]
    settings = [name for name in arguments.data if name not in data]
    config = configure(arguments.recipe, settings + arguments.overrides)
    report = train(config, data=data, out=arguments.out, fresh=arguments.fresh)
    if os.environ.get("RANK", "0") == "0":
        loss = "nothing left to do" if report.loss is None else f"loss {report.loss:.4f}"
        print(f"{report.out}: step {report.step}, {loss}, {report.seconds:.0f} s")


def add_estimate(commands: Any) -> None:
    command = commands.add_parser(
        "estimate", help="what a training run would take: memory, days, money"
    )
    command.set_defaults(run=run_estimate, gathers="overrides")
    command.add_argument("--recipe", required=True, help="as of train")
    command.add_argument("--gpus", type=int, default=1, metavar="N", help="how many (default 1)")
    command.add_argument("--gpu", metavar="NAME", help="such as h200; without it, what follows")
    command.add_argument("--gpu-memory", type=float, metavar="GB", help="of each GPU")
    command.add_argument(
        "--gpu-tflops", type=float, metavar="TFLOPS", help="of dense products in 16 bits"
    )
    command.add_argument(
        "--price-per-gpu-hour", type=float, metavar="X", help="in any currency; gives the cost"
    )
    command.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings, as of train; model.V too"
    )


def run_estimate(arguments: argparse.Namespace) -> None:
    """Print what a run would take."""
    recipe(arguments.recipe)
    from ssdlm.train.estimate import estimate, find_gpu
    from ssdlm.train.loop import configure

    gpu = find_gpu(arguments.gpu, arguments.gpu_memory, arguments.gpu_tflops)
    config = configure(arguments.recipe, arguments.overrides)
    price = arguments.price_per_gpu_hour
    print(estimate(config, num_gpus=arguments.gpus, gpu=gpu, price_per_gpu_hour=price))


def add_train_guide(commands: Any) -> None:
    command = commands.add_parser("train-guide", help="train a classifier to steer with")
    command.set_defaults(run=run_train_guide, gathers="data")
    command.add_argument(
        "data",
        nargs="+",
        metavar="DATA",
        help=".jsonl .csv .tsv with text and label (also .gz .xz .zst), then KEY=VALUE settings",
    )
    command.add_argument("--out", required=True, help="folder to create")
    command.add_argument(
        "--tokenizer", help="tokenizer of the model to steer: trains a new small classifier"
    )
    command.add_argument(
        "--from", dest="start", help="instead, fine-tune this model: folder or Hub id"
    )
    command.add_argument("--words", help="model whose word embeddings a new classifier uses")
    command.add_argument("--test", help="labelled file to measure on, not used in training")
    command.add_argument(
        "--slim",
        action="store_true",
        help="no copy of the tokenizer, which is named by its digest, and words in int8: for large "
        "vocabularies",
    )


def run_train_guide(arguments: argparse.Namespace) -> None:
    """Train a classifier."""
    from ssdlm.guidance.training import configure, train_guide

    data = [name for name in arguments.data if "=" not in name or os.path.exists(name)]
    settings = [name for name in arguments.data if name not in data]
    report = train_guide(
        data,
        out=arguments.out,
        tokenizer=arguments.tokenizer,
        start=arguments.start,
        test=arguments.test,
        words=arguments.words,
        is_slim=arguments.slim,
        config=configure(settings),
        is_shown=True,
    )
    print(report)


def add_train_judge(commands: Any) -> None:
    command = commands.add_parser("train-judge", help="train a classifier to measure with")
    command.set_defaults(run=run_train_judge, gathers="data")
    command.add_argument(
        "data",
        nargs="+",
        metavar="DATA",
        help=".jsonl .csv .tsv with text and label (also .gz .xz .zst), unseen by any guide",
    )
    command.add_argument("--out", required=True, help="folder to create")
    command.add_argument(
        "--test", help="labelled file to measure it on; without one, a tenth of the texts"
    )
    command.add_argument(
        "--without",
        nargs="+",
        default=[],
        metavar="WORD",
        help="words that it does not see, such as those that its labels were found by",
    )
    command.add_argument(
        "--linear",
        action="store_true",
        help="weights for words and pairs of words, in place of a network over words",
    )
    command.add_argument("--seed", type=int, default=0, help="same seed, same judge (default 0)")


def run_train_judge(arguments: argparse.Namespace) -> None:
    """Train a judge."""
    from ssdlm.guidance.training import train_judge

    report = train_judge(
        arguments.data,
        out=arguments.out,
        test=arguments.test,
        without=arguments.without,
        is_linear=arguments.linear,
        seed=arguments.seed,
        is_shown=True,
    )
    print(report)


def add_train_drafter(commands: Any) -> None:
    command = commands.add_parser(
        "train-drafter", help="train what guesses the next tokens for --mode speculative"
    )
    command.set_defaults(run=run_train_drafter, gathers="overrides")
    command.add_argument("--model", required=True, help="builtin:mini, smollm2, a folder or Hub id")
    command.add_argument("--data", nargs="+", required=True, help="token stores written by prepare")
    command.add_argument(
        "--out", required=True, help="folder of the drafter; an existing one goes on"
    )
    command.add_argument(
        "--prompts", help="JSON lines with prompts; the model goes on from them, and trains on that"
    )
    command.add_argument(
        "--from", dest="begin", metavar="DIR", help="begin with a drafter's weights"
    )
    command.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    command.add_argument(
        "--fresh", action="store_true", help="discard what is in --out and start again"
    )
    command.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings, such as seconds=300 or own=5000",
    )


def run_train_drafter(arguments: argparse.Namespace) -> None:
    """Train a drafter, or go on."""
    from ssdlm.train.drafting import configure, train_drafter

    data = [name for name in arguments.data if "=" not in name or os.path.exists(name)]
    settings = [name for name in arguments.data if name not in data]
    report = train_drafter(
        configure(settings + arguments.overrides),
        model=arguments.model,
        data=data,
        out=arguments.out,
        prompts=arguments.prompts,
        device=arguments.device,
        fresh=arguments.fresh,
        begin=arguments.begin,
    )
    print(report)


def add_plot(commands: Any) -> None:
    command = commands.add_parser("plot", help="draw a run's loss curve and profile")
    command.set_defaults(run=run_plot)
    command.add_argument("out", metavar="OUT", help="folder of a run")


def run_plot(arguments: argparse.Namespace) -> None:
    """Draw a run."""
    from ssdlm.train.plot import plot

    print(f"wrote {plot(arguments.out)}")

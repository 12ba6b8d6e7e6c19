"""What each part of our training buys, at equal wall time.

Every row trains one model from the same tokens for the same number of seconds (after compiling),
with the learning rate falling by the clock, and is then measured on the same held-out blocks of 25
with contexts of 25, 50, ... tokens: cross-entropy in nats per token at shared noise levels t, and
the likelihood bound along the path on which all positions share one level. A row that is done is a
file in --out and is not run again. Prints a table and, as its last line, JSON.

    python benchmarks/ablation.py --data reviews.u16.xz --seconds 60
    python benchmarks/ablation.py --data reviews-bert.u16.xz --V 30522 --init minilm \
        --rows random-init,encoder-init

--data: files of little-endian uint16, xz-compressed (.u16.xz) or not (.u16), or token stores.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from runs import (
    add_arguments,
    count_parameters,
    free,
    holdout_rows,
    kept_result,
    make_run,
    noise_after,
    store_of,
    train_for,
)

from ssdlm.config import BlockConfig, Config, EncoderConfig
from ssdlm.diffusion import likelihood
from ssdlm.settings import override
from ssdlm.shapes import Tokens
from ssdlm.train.recipes import mini, paper_large, paper_mini
from ssdlm.train.run import Run

LEVELS = (0.25, 0.325, 0.4, 0.475, 0.55, 0.7)
QUIET = ("validate_sequences=0", "tensorboard=false", "ema=0")
QUIET += ("own_share=0", "ramp_share=0", "block_lengths=", "context_share=0")
PAPER_IO = ("has_evidence=false", "is_shifted=false", "has_tied_simplex=false")
ONE_BLOCK = ("objective=one_block", "micro_batch=128", "share_c=128")
UNIFORM = ("levels=uniform", "stratify=false")
ENCODER_RATE = ("schedule=wsd", "cooldown=0.4", "warmup=100", "clip=1", "beta2=0.98", "lr=5e-4")
"""The paper's own rate is for batches of 6,144 and days; this one is for a minute."""


@dataclass(frozen=True)
class Row:
    """One model: what it is, and how it differs from recipe `mini`, or from `paper_large`."""

    name: str
    what: str
    settings: tuple[str, ...]
    kind: str = "block"


ROWS = {
    row.name: row
    for row in (
        Row(
            "encoder",
            "the paper's: encoder, softmax(w_t) in, one block, uniform t",
            ONE_BLOCK + ENCODER_RATE,
            "encoder",
        ),
        Row(
            "paper-one",
            "two streams, paper's in and out, one block, uniform t",
            PAPER_IO + ONE_BLOCK + UNIFORM,
        ),
        Row("paper-one-band", "the same, t from the band", PAPER_IO + ONE_BLOCK),
        Row("paper-all", "paper's in and out, all blocks, band", PAPER_IO),
        Row("evidence-one", "evidence in and out, one block, band", ONE_BLOCK),
        Row("evidence-all", "evidence in and out, all blocks, band (ours)", ()),
        Row("evidence-all-l2", "ours, L2 loss", ("loss=l2",)),
        Row(
            "paper-one-l2",
            "paper's in and out, one block, uniform t, L2 loss",
            PAPER_IO + ONE_BLOCK + UNIFORM + ("loss=l2",),
        ),
        Row("random-init", "the encoder of --init, random weights", ENCODER_RATE, "random"),
        Row("encoder-init", "the encoder of --init, its weights", ENCODER_RATE, "init"),
    )
}
MAIN = [name for name, row in ROWS.items() if row.kind in ("block", "encoder")]


def config_of(row: Row, args: argparse.Namespace) -> Config:
    """Return the whole config of a row."""
    is_gpu = torch.cuda.is_available()
    settings = [*QUIET, "batch=256", f"precision={'bf16' if is_gpu else 'fp32'}"]
    settings += [f"compile={str(is_gpu and not args.no_compile).lower()}"]
    if row.kind != "block":
        settings += ["init=", *ONE_BLOCK]
    settings += [*row.settings]
    if args.tiny:
        settings += ["max_len=40", "batch=4", "micro_batch=2", "share_c=2", "warmup=1"]
    if row.kind == "block":
        sizes = ["num_layers=2", "num_heads=2", "D=32"] if args.tiny else []
        return override(mini(), [*settings, *sizes, f"V={args.V}", f"B={10 if args.tiny else 25}"])
    config = override(paper_large(), settings)
    if row.kind == "init":
        config = override(config, [f"init={args.init}"])
    backbone = {} if row.kind == "init" else backbone_of(row, args)
    return Config(EncoderConfig(backbone, B=10 if args.tiny else 25), config.data, config.train)


def backbone_of(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """Return the encoder of `mini`'s size, or the one that --init has."""
    if row.kind == "random":
        return json.loads((Path(args.init) / "config.json").read_text(encoding="utf-8"))
    small = {"hidden_size": 32, "intermediate_size": 128}
    small |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    own = cast(EncoderConfig, paper_mini().model).backbone | {"vocab_size": args.V}
    return own | (small if args.tiny else {})


def evaluate(run: Run, rows: Tokens, *, points: int) -> dict[str, Any]:
    """Return the loss at each level and the bound, nats per token, over all blocks but the first.

    Compiled layers would be compiled anew for this; it is short, so they run as they are.
    """
    denoiser, B = run.denoiser.eval(), run.config.model.B
    rows = rows.to(denoiser.device)
    losses, bounds = [], []
    with torch.no_grad(), run.accelerator.autocast(), torch.compiler.set_stance("force_eager"):
        for c in range(B, rows.shape[1] - B + 1, B):
            draw = noise_after(c, len(rows), run)
            ask = likelihood.one_block(denoiser, rows[:, :c], rows[:, c : c + B], draw)
            found = [ask(torch.tensor([t]), 1000 + i).nll.mean() for i, t in enumerate(LEVELS)]
            losses.append(torch.stack(found))
            rule = likelihood.gauss_legendre(points)
            bounds.append(likelihood.bound(ask, likelihood.parallel(), rule).mean())
    mean = torch.stack(losses).double().mean(0).tolist()
    ce = {str(t): value for t, value in zip(LEVELS, mean, strict=True)}
    return {"ce": ce, "bound": float(torch.stack(bounds).mean())}


def run_row(row: Row, args: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Train and measure one row."""
    free()
    config = config_of(row, args)
    run = make_run(config, store)
    began = time.perf_counter()
    seconds = train_for(run, args.seconds)
    compiled = time.perf_counter() - began - seconds
    figures = evaluate(run, holdout_rows(store, config.data.max_len), points=4 if args.tiny else 16)
    sequences = run.step * config.train.batch
    is_all = isinstance(config.model, BlockConfig) and config.train.objective == "all_blocks"
    return {
        "name": row.name,
        "what": row.what,
        "parameters": count_parameters(run.denoiser),
        "seconds": seconds,
        "is_compiled": config.train.compile,
        "compile_s": compiled,
        "steps": run.step,
        "sequences": sequences,
        "supervised_tokens": sequences * (config.data.max_len if is_all else config.model.B),
        **figures,
    }


def show(found: dict[str, Any]) -> str:
    """Return one line of the table."""
    if "error" in found:
        return f"| {found['name']} | failed: {found['error']} |"
    ce = " | ".join(f"{value:.3f}" for value in found["ce"].values())
    tokens = found["supervised_tokens"] / 1e6
    return f"| {found['what']} | {found['steps']} | {tokens:.1f} | {ce} | {found['bound']:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, seconds=60.0, out="runs/ablation")
    parser.add_argument("--rows", default=",".join(MAIN), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--init", default="", help="folder of a masked LM, for the last two rows")
    parser.add_argument("--no-compile", action="store_true", help="train without torch.compile")
    args = parser.parse_args()
    results = []
    print("| row | steps | M tokens | " + " | ".join(f"ce@{t}" for t in LEVELS) + " | bound |")
    print("|" + "---|" * (len(LEVELS) + 4), flush=True)
    with store_of(args) as (store, num_tokens):
        for row in (ROWS[name] for name in args.rows.split(",")):
            path = Path(args.out) / f"{row.name}.json"
            results.append(kept_result(path, partial(attempt, row, args, store)))
            print(show(results[-1]), flush=True)
    print(json.dumps({"seconds": args.seconds, "tokens": num_tokens, "results": results}))


def attempt(row: Row, args: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Return a row's figures, or what went wrong; the other rows go on.

    Where compiling fails the row is trained without, and says so.
    """
    reason = ""
    for is_eager in sorted({args.no_compile, True}):
        chosen = argparse.Namespace(**(vars(args) | {"no_compile": is_eager}))
        try:
            return run_row(row, chosen, store)
        except Exception as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {str(error)[:200]}"
    return {"name": row.name, "error": reason}


if __name__ == "__main__":
    main()

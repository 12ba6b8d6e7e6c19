"""What each lever of training gives the text that is decoded, at equal wall time.

Every row trains with recipe `mini` and one change, for the same number of seconds after compiling,
from --init's weights or from none, and is then measured on the same held-out blocks of 25:

    AR        the context stream's exact loss
    step      the loss of a position of pure noise right of a clean side, noise on its right too
    bound@w   the likelihood bound as a window w positions wide moves through the block
    text@w    the loss, under --scorer's context stream, of 50 tokens decoded with such a window
              after 50 held-out ones (64 calls per block, nucleus 0.9 of the network's share)

A row that is done is a file in --out and is not run again. Prints a table and, at last, JSON.

    python benchmarks/levers.py --data reviews.u16.xz --seconds 30 --init runs/mini
    python benchmarks/levers.py --data reviews.u16.xz --seconds 30 --rows base,ar-first,deep,wide
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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

from ssdlm import SSDLM
from ssdlm.config import Config
from ssdlm.diffusion import likelihood
from ssdlm.settings import override
from ssdlm.shapes import Tokens
from ssdlm.storage import checkpoint
from ssdlm.train.recipes import mini
from ssdlm.train.run import Run

QUIET = ("validate_sequences=0", "tensorboard=false", "ema=0", "context_share=0")
WIDTHS = (0.0, 8.0, 3.0, 1.0)
"""Of the windows that bounds are taken along; 0: all positions share one level."""
TEXT_WIDTHS = (1.0, 4.0, 0.0)

ROWS = {
    "base": (),
    "self": ("has_self_conditioning=true",),
    "narrow": ("widest_ramp=0.32",),
    "ramps": ("ramp_share=0.9", "own_share=0"),
    "one-length": ("block_lengths=25",),
    "block-2": ("block_weight=2",),
    "block-half": ("block_weight=0.5",),
    "ar-first": (),
    "deep": ("D=448", "num_layers=11", "num_heads=7"),
    "wide": ("D=640", "num_layers=5", "num_heads=10"),
}
FROM_NOTHING = ("ar-first", "deep", "wide")
"""Rows that cannot begin with --init's weights."""


def config_of(name: str, args: argparse.Namespace) -> Config:
    """Return the whole config of a row."""
    is_gpu = torch.cuda.is_available()
    settings = [*QUIET, f"precision={'bf16' if is_gpu else 'fp32'}", f"compile={is_gpu}".lower()]
    settings += [*ROWS[name], f"V={args.V}", *args.set]
    if args.tiny:
        settings += ["max_len=40", "batch=4", "warmup=1", "num_layers=2", "num_heads=2", "D=32"]
        settings += ["B=10", "block_lengths=10,5"]
    return override(mini(), settings)


def train(name: str, args: argparse.Namespace, store: Path) -> tuple[Run, float]:
    """Train one row; half of the time without blocks, where the row says so."""
    config, seconds, took = config_of(name, args), args.seconds, 0.0
    run = make_run(config, store)
    weights: dict[str, Any] = {}
    if args.init:
        weights = checkpoint.read_tensors(Path(args.init) / "model.safetensors")
    elif name == "ar-first":
        alone = replace(config, model=replace(config.model, block_weight=0.0))
        first = make_run(alone, store)
        took = train_for(first, seconds / 2)
        weights, seconds = first.denoiser.state_dict(), seconds / 2
    missing, extra = run.denoiser.load_state_dict(weights, strict=False)
    assert not extra and (not weights or set(missing) <= {"self_embed"})
    return run, took + train_for(run, seconds)


@torch.no_grad()
def evaluate(run: Run, rows: Tokens, *, points: int) -> dict[str, float]:
    """Return the figures of a row, in nats per token, over all blocks but the first."""
    denoiser, B = run.denoiser.eval(), run.config.model.B
    rows = rows.to(denoiser.device)
    found: dict[str, list[float]] = {}
    with run.accelerator.autocast(), torch.compiler.set_stance("force_eager"):
        exact = likelihood.next_token_nll(denoiser, rows)[:, B - 1 :].mean().item()
        for c in range(B, rows.shape[1] - B + 1, B):
            draw = noise_after(c, len(rows), run)
            ask = likelihood.one_block(denoiser, rows[:, :c], rows[:, c : c + B], draw)
            place = torch.arange(B)
            for open_at in range(0, B, max(1, B // 5)):
                nll = ask((place >= open_at).float(), 2000 + open_at).nll[:, open_at]
                found.setdefault("step", []).append(nll.mean().item())
            for width in WIDTHS:
                path = likelihood.parallel()
                if width:
                    path = likelihood.staggered(place, B=B, width=width)
                u = torch.rand(4 * points, generator=torch.Generator().manual_seed(c))
                rule = likelihood.stratified(u) if width else likelihood.gauss_legendre(points)
                value = likelihood.bound(ask, path, rule).mean().item()
                found.setdefault(f"bound@{width or 'all'}", []).append(value)
    return {"AR": exact} | {name: sum(some) / len(some) for name, some in found.items()}


@torch.no_grad()
def texts(run: Run, rows: Tokens, scorer: str, *, T: int) -> dict[str, float]:
    """Return the loss of what a row writes, in nats per token, under another model."""
    judge = checkpoint.load_denoiser(Path(scorer), device=str(run.accelerator.device))
    half, found = min(50, rows.shape[1] // 2), {}
    writer = SSDLM(run.denoiser.eval())
    for width in TEXT_WIDTHS:
        grid = {"grid": "staggered", "width": width} if width else {"grid": "warped"}
        with run.accelerator.autocast(), torch.compiler.set_stance("force_eager"):
            written = writer.generate(
                rows[:, :half].tolist(),
                length=half,
                B=min(25, half),
                T=T,
                top_p=0.9,
                nucleus="network",
                returns="w_0",
                batch_size=256,
                **grid,
            )
            got = torch.tensor([text.tokens for text in written])
            whole = torch.cat((rows[:, :half], got), 1).to(judge.device)
            nll = likelihood.next_token_nll(judge, whole)[:, half - 1 :]
        found[f"text@{width or 'all'}"] = nll.mean().item()
    return found


def run_row(name: str, args: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Train and measure one row."""
    free()
    run, seconds = train(name, args, store)
    rows = holdout_rows(store, run.config.data.max_len)
    figures = evaluate(run, rows, points=2 if args.tiny else 8)
    if scorer := args.scorer or args.init:
        figures |= texts(run, rows, scorer, T=3 if args.tiny else 63)
    return {
        "name": name,
        "settings": list(ROWS[name]),
        "parameters": count_parameters(run.denoiser),
        "seconds": seconds,
        "steps": run.step,
        **figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, seconds=30.0, out="runs/levers")
    parser.add_argument("--rows", default="", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--init", default="", help="folder of a checkpoint that rows begin with")
    parser.add_argument("--scorer", default="", help="checkpoint that rates texts; default: --init")
    parser.add_argument("--set", nargs="*", default=[], help="settings of all rows, key=value")
    args = parser.parse_args()
    fitting = [name for name in ROWS if not (args.init and name in FROM_NOTHING)]
    names = args.rows.split(",") if args.rows else fitting
    if strange := [name for name in names if name not in fitting]:
        parser.error(f"--rows {','.join(strange)}: give some of {', '.join(fitting)}")
    results = []
    with store_of(args) as (store, _):
        for name in names:
            path = Path(args.out) / f"{name}.json"
            results.append(kept_result(path, partial(run_row, name, args, store)))
            if len(results) == 1:
                head = list(results[0])[4:]
                print("| row | " + " | ".join(head) + " |\n|" + "---|" * (len(head) + 1))
            cells = [f"{value:.3f}" for value in list(results[-1].values())[5:]]
            print(f"| {name} | {results[-1]['steps']} | " + " | ".join(cells) + " |", flush=True)
    print(json.dumps({"seconds": args.seconds, "init": args.init, "results": results}))


if __name__ == "__main__":
    main()

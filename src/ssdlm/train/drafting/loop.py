"""The training of a drafter: from a frozen model and token stores to a small folder.

    OUT/config.json, model.safetensors, README.md   the drafter, from the newest mean weights
    OUT/log.jsonl                                   one object per logged step
    OUT/run.json                                    what was asked for; the same goes on
    OUT/checkpoint/                                 what a run needs to go on, and own texts

texts, loss -> [loop] -> drafting
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssdlm.config import TrainConfig
from ssdlm.data.shards import TokenStore
from ssdlm.data.windows import Windows, held_out
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.denoiser.drafter import BaseNetwork, Drafter, base_of, read_texts
from ssdlm.diffusion.noise import mix
from ssdlm.settings import differences
from ssdlm.shapes import Tensor
from ssdlm.storage import checkpoint
from ssdlm.storage.causal import weights_digest
from ssdlm.storage.drafter import CONFIG, WEIGHTS, load_drafter, save_drafter
from ssdlm.storage.files import named_path, read_json, write_file, write_json, write_text
from ssdlm.storage.tensors import read_tensors, save_tensors
from ssdlm.tokenizer import Tokenizer, load_causal_tokenizer, load_tokenizer, require_tokens
from ssdlm.train.drafting.loss import draft_loss
from ssdlm.train.drafting.settings import DraftingConfig, shape_of
from ssdlm.train.drafting.texts import (
    OwnStream,
    OwnText,
    acceptance,
    read_prompts,
    tokens_per_check,
    write_texts,
)
from ssdlm.train.learning_rate import Clock, lr_scale
from ssdlm.train.log import LOG, RUN, RunLog
from ssdlm.train.optimizer import Ema, make_optimizer
from ssdlm.train.resume import alone

STATE, OWN, CARD = "checkpoint", "own.safetensors", "README.md"
BEGINNING, TOLD = 32, 64
"""Tokens of a beginning that the model goes on from, and of what it then writes to be measured."""
FILES = CONFIG, WEIGHTS, CARD, LOG, RUN
WEIGHTS_SEED, ORDER, TEXTS, HELD = range(4)
"""What a run's seed is used for."""


@dataclass(frozen=True)
class DrafterReport:
    """How a training ended."""

    out: Path
    step: int
    seconds: float
    acceptance: list[float]
    """How often each guess is right where all before it are, on texts after the hold-out."""

    def __str__(self) -> str:
        shares = " ".join(f"{share:.2f}" for share in self.acceptance)
        made = f"; guesses right, given all before: {shares}" if self.acceptance else ""
        return f"wrote {self.out}: step {self.step}, {self.seconds:.0f} s{made}"


@dataclass
class DraftRun:
    """The state of a training: what stays the same, and what every step changes."""

    config: DraftingConfig
    train: TrainConfig
    out: Path
    drafter: Drafter
    windows: Windows
    measured: list[OwnText]
    optimizer: Any
    ema: Ema
    step: int = 0
    clock: Clock = field(default_factory=Clock)

    @property
    def steps(self) -> int:
        """Steps of the whole run: as many as asked for, or as the clock leaves."""
        return self.clock.end or self.train.steps


def train_drafter(
    config: DraftingConfig,
    *,
    model: str,
    data: Sequence[str | Path],
    out: str | Path,
    prompts: str | Path | None = None,
    device: str = "auto",
    fresh: bool = False,
    begin: str | Path | None = None,
) -> DrafterReport:
    """Train a drafter for a model on the stores in `data`, or go on with the run that is in `out`.

    The model may write texts of its own to train on: after beginnings of the data's texts, and
    after `prompts`, a file of JSON lines. A run may begin with another drafter's weights.
    """
    folder = named_path(out, "out")
    with alone(folder):
        run = start(config, model, data, folder, prompts, device, fresh=fresh, begin=begin)
        with closing(RunLog(folder, step=run.step, steps=run.steps)) as log:
            number = sum(weight.numel() for weight in run.drafter.parameters()) / 1e6
            where = run.drafter.network.device
            log.announce(f"training {number:.1f}M parameters on {where}, from step {run.step:,}")
            found = take_steps(run, log)
    return DrafterReport(folder, run.step, run.clock.seconds, found)


def start(
    config: DraftingConfig,
    model: str,
    data: Sequence[str | Path],
    out: Path,
    prompts: str | Path | None,
    device: str,
    *,
    fresh: bool,
    begin: str | Path | None,
) -> DraftRun:
    """Return a run at its beginning, or as its checkpoint has it."""
    home = checkpoint.find(model)
    stores = [TokenStore.open(named_path(one, "data")) for one in data]
    denoiser = checkpoint.load_denoiser(home, device=device, dtype="auto")
    if isinstance(denoiser, AdaptedDenoiser):
        base = denoiser.config.base
        raise ValueError(
            f"{model} is an adapter and uses the drafter of {base}; give --model {base}"
        )
    network = base_of(denoiser)
    if network is None:
        raise ValueError(
            f"{model} does not run on layers of this package, which a drafter reads; give "
            "builtin:mini, smollm2 or a model of the Llama family"
        )
    load = load_causal_tokenizer if checkpoint.is_causal(home) else load_tokenizer
    tokenizer = load(home)
    for store in stores:
        remedy = f"prepare the data with the tokenizer of {model}"
        require_tokens(load_tokenizer(store.dir), home, of=store.dir, remedy=remedy)
    asked = asdict(config) | {"model": weights_digest(home)}
    asked |= {"data": [store.digest for store in stores]}
    refuse_other_run(out, asked, fresh=fresh)
    shape = shape_of(config, network, base=model, digest=str(asked["model"]))
    drafter = Drafter(shape, network)
    drafter.start(torch.Generator().manual_seed(mix(config.seed, WEIGHTS_SEED)))
    if begin is not None:
        earlier = load_drafter(named_path(begin, "from"), network, home)
        if replace(earlier.config, base=shape.base) != shape:
            raise ValueError(
                f"from={begin} is a drafter of other sizes; give settings of its sizes"
            )
        drafter.load_state_dict(earlier.state_dict())
    drafter.to(network.device)
    train = TrainConfig(
        steps=config.steps, seconds=config.seconds, batch=config.batch, optimizer="muon",
        lr=config.lr, muon_lr=config.muon_lr, weight_decay=0.0, schedule="wsd", warmup=100,
        cooldown=config.cooldown, ema=config.ema, log_every=config.log_every,
    )  # fmt: skip
    own = own_texts(config, network, tokenizer, stores, prompts, out / STATE / OWN)
    shares = shares_of(config, stores, own)
    windows = Windows([*stores, *own], config.max_len, mix(config.seed, ORDER) >> 1, shares)
    ends = frozenset(tokenizer.ends)
    begun = held_out(
        [TokenStore.open(s.dir, "holdout") for s in stores], BEGINNING, config.measured
    )
    seed = mix(config.seed, HELD)
    told = write_texts(network, begun.tolist(), TOLD, seed=seed, top_p=config.top_p, ends=ends)
    optimizer = make_optimizer(drafter, train)
    run = DraftRun(
        config, train, out, drafter, windows, told, optimizer, Ema(drafter, decay=config.ema)
    )
    if (out / STATE / "state.json").exists():
        restore(run)
    write_json(out / RUN, {"asked": asked})
    return run


def refuse_other_run(out: Path, asked: dict[str, Any], *, fresh: bool) -> None:
    """Clear a folder for a new run; refuse one of another run, or of something else."""
    found = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    if not (out / RUN).exists() and set(found) - {STATE}:
        raise ValueError(
            f"{out} is not empty ({found[0]} is there) and not a drafter's; give --out a new folder"
        )
    known: dict[str, Any] = read_json(out / RUN).get("asked", {}) if (out / RUN).exists() else asked
    free = dict.fromkeys(("steps", "seconds", "log_every", "save_seconds"))
    changed = differences(known | free, asked | free)
    if changed and not fresh:
        raise ValueError(
            f"{out} contains a run with other settings ({', '.join(changed)}); give the same "
            "settings, another --out, or --fresh to start over"
        )
    if fresh:
        shutil.rmtree(out / STATE, ignore_errors=True)
        for name in FILES:
            (out / name).unlink(missing_ok=True)
    (out / STATE).mkdir(exist_ok=True)


def own_texts(
    config: DraftingConfig,
    network: BaseNetwork,
    tokenizer: Tokenizer,
    stores: Sequence[TokenStore],
    prompts: str | Path | None,
    path: Path,
) -> list[OwnStream]:
    """Return texts that the model wrote, as a stream to train on; none where none are asked for.

    They are kept in a file for a run that goes on.
    """
    given = [] if prompts is None else read_prompts(named_path(prompts, "prompts"), tokenizer)
    if config.own == 0 and not given:
        return []
    if not path.exists():
        numbers, seed = np.arange(config.own), mix(config.seed, TEXTS) >> 1
        begun = Windows(stores, BEGINNING, seed).batch(numbers).tolist() if config.own else []
        texts = write_texts(
            network,
            [*begun, *given],
            config.max_len - BEGINNING,
            seed=seed,
            top_p=config.top_p,
            ends=frozenset(tokenizer.ends),
            is_shown=True,
        )
        order = np.random.default_rng(seed).permutation(len(texts))
        tokens = torch.tensor([token for place in order for token in texts[place].tokens])
        write_file(path, lambda new: save_tensors({"tokens": tokens.float()}, new))
    return [OwnStream(read_tensors(path)["tokens"].long().numpy())]


def shares_of(
    config: DraftingConfig, stores: Sequence[TokenStore], own: Sequence[OwnStream]
) -> tuple[float, ...]:
    """Return the share of each stream in what is read."""
    if not own or config.own_share in (0, 1):
        return ()
    total = sum(map(len, stores))
    rest = 1 - config.own_share
    return (*(rest * len(store) / total for store in stores), config.own_share)


def take_steps(run: DraftRun, log: RunLog) -> list[float]:
    """Take the steps that are left; return how often guesses are right in the end."""
    found: list[float] = []
    last_save = start = time.monotonic()
    since = run.step
    while run.step < run.steps:
        loss, overlap = train_step(run)
        run.step += 1
        is_last = run.step >= run.steps
        is_over = 0 < run.train.seconds <= run.clock.seconds + time.monotonic() - start
        if run.step % run.config.log_every == 0 or run.step in (1, 10) or is_last or is_over:
            record = {"step": run.step, "loss": float(loss), "overlap": overlap.tolist()}
            steps, seconds = run.step - since, time.monotonic() - start
            record["tokens_per_s"] = steps * run.config.batch * run.config.max_len / seconds
            if run.step > 1:  # the first one gets everything ready
                run.clock = run.clock.add(steps, seconds).estimate_end(run.step, run.train)
            is_last = run.step >= run.steps
            found = measure(run) if run.step > 10 or is_last else found
            if found:
                record["acceptance"] = [round(share, 4) for share in found]
                record["tokens_per_check"] = tokens_per_check(found)
            log.write(record)
            start, since = time.monotonic(), run.step
        log.show_progress(run.step, run.steps)
        if is_last or time.monotonic() - last_save >= run.config.save_seconds:
            run.clock = run.clock.add(run.step - since, time.monotonic() - start)
            save(run, found)
            last_save = start = time.monotonic()
            since = run.step
    return found


def train_step(run: DraftRun) -> tuple[Tensor, Tensor]:
    """Take one optimiser step; return the loss, and how guesses overlap with the model by place."""
    config, drafter = run.config, run.drafter
    device, count = drafter.network.device, config.guesses
    tokens = run.windows.batch(run.step * config.batch + np.arange(config.batch)).to(device)
    # Of the first few tokens nothing is known; the last ones have none to guess.
    generator = torch.Generator().manual_seed(mix(config.seed, run.step))
    places = torch.randperm(config.max_len - count - 9, generator=generator) + 8
    anchors = places[: config.anchors].sort().values.to(device)
    texts = read_texts(drafter.network, tokens, drafter.config.reads)
    loss, overlap = draft_loss(drafter, tokens, texts, anchors, config.top_p)
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(drafter.parameters(), run.train.clip)
    scale = lr_scale(run.step, run.train, steps=run.steps)
    for group in run.optimizer.param_groups:
        group["lr"] = group["peak"] * scale
    run.optimizer.step()
    run.ema.update(drafter)
    return loss.detach(), overlap


def measure(run: DraftRun) -> list[float]:
    """Return how often guesses by the mean weights are right where all before them are."""
    own = {name: value.detach().clone() for name, value in run.drafter.state_dict().items()}
    run.ema.copy_to(run.drafter)
    try:
        return acceptance(run.drafter, run.measured) if run.measured else []
    finally:
        run.drafter.load_state_dict(own)


def save(run: DraftRun, found: Sequence[float]) -> None:
    """Write what a run needs to go on, and the drafter itself; the last file makes it whole."""
    folder, named = run.out / STATE, dict(run.drafter.named_parameters())
    moments = {
        f"{name}.{kind}": value
        for name, weight in named.items()
        for kind, value in run.optimizer.state[weight].items()
    }
    parts = {"weights": dict(run.drafter.state_dict()), "mean": run.ema.mean, "moments": moments}
    for part, tensors in parts.items():
        plain = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
        write_file(folder / f"{part}-{run.step}.safetensors", lambda p, t=plain: save_tensors(t, p))
    groups = [group.get("steps", 0) for group in run.optimizer.param_groups]
    state = {"step": run.step, "ema_steps": run.ema.steps, "groups": groups}
    clock = asdict(replace(run.clock, end=0))
    write_json(folder / "state.json", state | {"clock": clock})
    for old in folder.glob("*-*.safetensors"):
        if not old.stem.endswith(f"-{run.step}"):
            old.unlink()
    save_drafter(run.drafter.config, run.ema.mean, run.out)
    write_text(run.out / CARD, card(run, found))


def restore(run: DraftRun) -> None:
    """Put a run where its checkpoint left it."""
    folder = run.out / STATE
    state = read_json(folder / "state.json")
    run.step, run.clock = int(state["step"]), Clock(**state["clock"])
    read = {
        part: read_tensors(folder / f"{part}-{run.step}.safetensors")
        for part in ("weights", "mean", "moments")
    }
    run.drafter.load_state_dict(read["weights"])
    run.ema.load_state_dict({"steps": state["ema_steps"], "mean": read["mean"]})
    for name, weight in run.drafter.named_parameters():
        own = {k.rpartition(".")[2]: v for k, v in read["moments"].items() if k.startswith(name)}
        run.optimizer.state[weight] = {k: v.to(weight.device) for k, v in own.items()}
    for group, steps in zip(run.optimizer.param_groups, state["groups"], strict=True):
        group["steps"] = steps


def card(run: DraftRun, found: Sequence[float]) -> str:
    """Return a model card: for which model it is, and how often it is right."""
    shape = run.drafter.config
    shares = ", ".join(f"{share:.2f}" for share in found) or "not measured"
    number = sum(weight.numel() for weight in run.drafter.parameters()) / 1e6
    return (
        f"# {run.out.name}\n\nA drafter for {shape.base}: it guesses the next tokens, which "
        "`ssdlm generate --mode speculative` checks.\nThe text is the model's own whatever it "
        f"guesses. config.json knows the model's weights by their digest.\n\nParameters: "
        f"{number:.1f}M in int8. Steps of training: {run.step:,}.\nGuesses right where all before "
        f"them are, by position: {shares}\n(temperature 1, top-p {run.config.top_p:g}, "
        f"{len(run.measured)} texts of {TOLD} tokens after beginnings of held-out ones).\n"
    )

"""Diffusion-LM (Li et al. 2022), the diffusion baseline of the paper's table 2, from its equations.

    python benchmarks/diffusion_lm.py train --data STORE --out DIR [--seconds 240]
    python benchmarks/diffusion_lm.py train --data stories.jsonl --tokenizer DIR --out DIR
    python benchmarks/diffusion_lm.py generate --model DIR --input prompts.jsonl --output OUT.jsonl
    python benchmarks/diffusion_lm.py generate --model DIR --num-samples 20 --output OUT.jsonl

Words are points in a space of d dimensions that is learnt with the model, and the diffusion runs
there: x_0 ~ N(EMB(w), sigma_0^2), x_t = sqrt(a) x_0 + sqrt(1 - a) z with a = 1 - sqrt(t/T + s). A
BERT predicts x_0 from x_t; a softmax over all words rounds x_0 to text. Decoding clamps each
prediction to the nearest words and noises it again. All positions of a sequence are written at
once; a context is given, as in infilling, by putting its own noised points in at every step.

Both commands go on where they were killed, print tokens seen and seconds, and end in a JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from runs import Pace, count_parameters
from torch import Tensor, nn

from ssdlm.data.prepare import prepare
from ssdlm.data.shards import TokenStore
from ssdlm.data.windows import Windows
from ssdlm.diffusion import noise
from ssdlm.engine.prompt_files import generate_file
from ssdlm.engine.requests import Generation
from ssdlm.engine.writers import KeywordWriter
from ssdlm.evaluate.autoregressive import equal_lengths
from ssdlm.storage.files import write_file, write_json
from ssdlm.tokenizer import Tokenizer, load_tokenizer
from ssdlm.train.optimizer import Ema

START = 1e-4
"""s of the schedule: the noise that embeddings have at t = 0, where 1 - a is sqrt(s)."""
PLACES = 0.5
"""Spread of the position embeddings at first."""
STATE, REPORT = "state.pt", "report.json"
LINE = "step {step:,}  loss {loss:.4f} (denoising {denoising:.4f}, rounding {rounding:.4f})  "
LINE += "tokens seen {tokens:,}  {device} seconds {seconds:.1f}"


@dataclass(frozen=True)
class Settings:
    """A model and its training; the defaults are Li et al.'s and the paper's, at MiniLM's size."""

    V: int = 0
    """Words; 0: those of the data."""
    d: int = 128
    """Dimensions of an embedding, where the diffusion runs."""
    D: int = 384
    """Width of the transformer."""
    num_layers: int = 6
    num_heads: int = 12
    max_len: int = 100
    """Tokens in a sequence; a model writes no other length."""
    shift: bool = True
    """Cut the text elsewhere in every epoch: five thousand stories are soon known by heart."""
    T: int = 2000
    dropout: float = 0.1
    batch: int = 64
    steps: int = 400_000
    seconds: float = 0.0
    """Training ends here if its steps are not done before; 0: by its steps alone."""
    lr: float = 1e-4
    """At the beginning; it falls linearly to 0."""
    ema: float = 0.9999
    """Decay of the weights' moving average, which is what generates."""
    seed: int = 0


SIZES = {
    "mini": {},
    "paper": {"D": 768, "num_layers": 12, "shift": False},
    "tiny": {"d": 8, "D": 16, "num_layers": 1, "num_heads": 2, "max_len": 16, "T": 50, "batch": 4},
}


def alpha_bar(progress: Tensor) -> Tensor:
    """Return the sqrt schedule's share of signal at t/T; none is left at the end."""
    return (1 - (progress + START).sqrt()).clamp(min=0.0)


class Network(nn.Module):
    """Embeddings, the BERT between them, and the rounding softmax."""

    def __init__(self, settings: Settings) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        self.settings = settings
        d, D = settings.d, settings.D
        config = BertConfig(
            vocab_size=1,  # words enter as points, so BERT's own table stays empty
            hidden_size=D,
            num_hidden_layers=settings.num_layers,
            num_attention_heads=settings.num_heads,
            intermediate_size=4 * D,
            max_position_embeddings=settings.max_len,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
        )
        self.words = nn.Embedding(settings.V, d)
        self.bias = nn.Parameter(torch.zeros(settings.V))
        self.up = nn.Sequential(nn.Linear(d, D), nn.Tanh(), nn.Linear(D, D))
        self.time = nn.Sequential(nn.Linear(d, D), nn.SiLU(), nn.Linear(D, D))
        self.bert = BertModel(config, add_pooling_layer=False)
        # BERT's own 0.02 drowns in the points: positions are then decided one by one, and stay so.
        nn.init.normal_(self.bert.embeddings.position_embeddings.weight, std=PLACES)
        self.down = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, d))

    def forward(self, x_t: Tensor, progress: Tensor) -> Tensor:
        """Return the estimate of x_0 (N, L, d) at noise levels t/T (N,)."""
        time = self.time(waves(progress * self.settings.T, self.settings.d).to(x_t.dtype))
        inputs = self.up(x_t) + time.unsqueeze(1)
        return self.down(self.bert(inputs_embeds=inputs).last_hidden_state).float()

    def round(self, x: Tensor) -> Tensor:
        """Return log p(w | x) up to a constant, for every word."""
        return x @ self.words.weight.to(x.dtype).T + self.bias.to(x.dtype)

    def nearest(self, x: Tensor) -> Tensor:
        """Return the word whose embedding is nearest to each point."""
        table = self.words.weight
        return (x @ table.T - table.square().sum(-1) / 2).argmax(-1)


def waves(t: Tensor, count: int) -> Tensor:
    """Return sines and cosines of t (N, count), from the fastest to one in 10,000 steps."""
    rates = torch.logspace(0, -4, count // 2, device=t.device)
    angles = t.float().unsqueeze(-1) * rates
    return torch.cat((angles.sin(), angles.cos()), -1)


def losses(net: Network, tokens: Tensor) -> dict[str, Tensor]:
    """Return the parts of the end-to-end loss of one batch, a draw of t for each sequence.

    The denoiser's target is x_0, at t = 1 the embedding itself; rounding is -log p(w | x_0). The
    paper's term for t = T is zero with this schedule. Squared distances are means over dimensions.
    """
    T, mean = net.settings.T, net.words(tokens)
    x_0 = mean + START**0.25 * torch.randn_like(mean)
    t = torch.randint(1, T + 1, (len(tokens),), device=tokens.device)
    a = alpha_bar(t / T).view(-1, 1, 1)
    x_t = a.sqrt() * x_0 + (1 - a).sqrt() * torch.randn_like(x_0)
    target = torch.where(t.view(-1, 1, 1) == 1, mean, x_0)
    rounded = F.cross_entropy(net.round(x_0).flatten(0, 1).float(), tokens.flatten())
    return {"denoising": (net(x_t, t / T) - target).square().mean(), "rounding": rounded}


@dataclass
class Training:
    """A run of training and all that it needs to go on."""

    net: Network
    optimizer: torch.optim.Optimizer
    ema: Ema
    windows: Windows
    device: torch.device
    step: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> float:
        """The share of the run that is done, by its steps or by its clock."""
        settings = self.net.settings
        by_clock = self.seconds / settings.seconds if settings.seconds else 0.0
        return max(self.step / settings.steps, by_clock)

    def optimise(self) -> dict[str, Tensor]:
        """Take one step; all its random numbers come from the seed and its number."""
        settings = self.net.settings
        torch.manual_seed(noise.mix(settings.seed, self.step))
        rows = self.windows.batch(self.step * settings.batch + np.arange(settings.batch))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * max(0.0, 1 - self.done)
        is_cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_cuda):
            parts = losses(self.net, rows.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        sum(parts.values(), torch.zeros((), device=self.device)).backward()
        self.optimizer.step()
        self.ema.update(self.net)
        self.step += 1
        return {name: part.detach() for name, part in parts.items()}

    def save(self, out: Path) -> None:
        """Write the state, whole or not at all."""
        state = {
            "settings": asdict(self.net.settings),
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        write_file(out / STATE, lambda path: torch.save(state, path))

    def restore(self, out: Path) -> None:
        """Go on from the state in a folder, if there is one."""
        if not (out / STATE).exists():
            return
        state = torch.load(out / STATE, map_location=self.device, weights_only=True)
        mine = asdict(self.net.settings)
        other = [name for name, value in state["settings"].items() if mine[name] != value]
        if other:
            raise ValueError(f"{out} contains a run with other {', '.join(other)}; choose another")
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.ema.load_state_dict(state["ema"])
        self.step, self.seconds = state["step"], state["seconds"]

    def report(self, parts: dict[str, Tensor]) -> dict[str, Any]:
        """Return where the run stands."""
        settings, values = self.net.settings, {name: float(part) for name, part in parts.items()}
        return values | {
            "loss": sum(values.values()),
            "step": self.step,
            "tokens": self.step * settings.batch * settings.max_len,
            "seconds": round(self.seconds, 3),
            "data": [one.digest for one in self.windows.streams if isinstance(one, TokenStore)],
            "device": "GPU" if self.device.type == "cuda" else "CPU",
            "parameters": count_parameters(self.net),
        }


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train, or go on with the run that is in `--out`; return its report."""
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    store = open_store(args, out)
    run = begin(settings_of(args, store.V), store, torch.device(args.device))
    run.restore(out)
    load_tokenizer(store.dir).save(out)
    pace, saved = Pace(run.device), time.monotonic()
    before = run.seconds - saved
    found = json.loads((out / REPORT).read_text()) if (out / REPORT).exists() else {}
    while run.done < 1:
        parts = run.optimise()
        pace.step()
        run.seconds = before + time.monotonic()
        if run.step % args.log_every == 0:
            found = run.report(parts)
            print(LINE.format(**found), flush=True)
        if run.done >= 1 or time.monotonic() - saved > args.save_seconds:
            found = run.report(parts)
            run.save(out)
            write_json(out / REPORT, found)
            saved = time.monotonic()
    print(LINE.format(**found), flush=True)
    return found


def open_store(args: argparse.Namespace, out: Path) -> TokenStore:
    """Return the training split of `--data`; a file of stories is prepared first."""
    data = Path(args.data)
    if data.is_file():
        if not args.tokenizer:
            raise ValueError(f"{data} is text; give --tokenizer, a folder or a Hub name")
        prepare([data], tokenizer=args.tokenizer, out=out / "data", holdout=args.holdout)
        data = out / "data"
    return TokenStore.open(data)


def settings_of(args: argparse.Namespace, V: int) -> Settings:
    """Return the settings of a size with what the command line changes."""
    names = ("steps", "seconds", "batch", "lr", "ema", "seed")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return replace(Settings(V=V), **SIZES[args.size] | given)


def begin(settings: Settings, store: TokenStore, device: torch.device) -> Training:
    """Return a run at its first step, reading the sequences that the library's runs read."""
    torch.manual_seed(settings.seed)
    net = Network(settings).to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.lr, weight_decay=0.0)
    windows = Windows([store], settings.max_len, seed=settings.seed, shift=settings.shift)
    return Training(net, optimizer, Ema(net, decay=settings.ema), windows, device)


@dataclass(frozen=True)
class Decoding:
    """How texts are written."""

    length: int = 50
    T: int = 200
    """Steps: every tenth of the training's, as Li et al. decode."""
    rule: str = "renoise"
    """x_0 noised anew (the clamping section's equation), or DDPM's posterior."""
    clamp: bool = True


@torch.no_grad()
def decode(net: Network, context: Tensor, seeds: Tensor, decoding: Decoding) -> Tensor:
    """Return the `length` tokens after each context (N, C), C being 0 for texts of their own."""
    settings, (N, C) = net.settings, context.shape
    levels = alpha_bar(torch.linspace(1, 0, decoding.T + 1, dtype=torch.float64))
    known, x_0 = net.words(context), torch.zeros(())
    x_t = torch.zeros(N, settings.max_len, settings.d, device=context.device)
    for k in range(decoding.T):
        a, z = float(levels[k]), draw(seeds, k, settings)
        x_t = z if k == 0 else step(x_t, x_0, float(levels[k - 1]), a, z, decoding.rule)
        x_t[:, :C] = math.sqrt(a) * known + math.sqrt(1 - a) * z[:, :C]
        progress = torch.full((N,), 1 - k / decoding.T, device=context.device)
        x_0 = net(x_t, progress)
        if decoding.clamp:
            x_0 = net.words(net.nearest(x_0))
    return net.round(x_0).argmax(-1)[:, C : C + decoding.length]


def step(x_t: Tensor, x_0: Tensor, a: float, a_next: float, z: Tensor, rule: str) -> Tensor:
    """Return x at the level a_next, from x_t at the level a and the estimate of x_0."""
    if rule == "renoise":
        return math.sqrt(a_next) * x_0 + math.sqrt(1 - a_next) * z
    kept = a / a_next
    mean = math.sqrt(a_next) * (1 - kept) * x_0 + math.sqrt(kept) * (1 - a_next) * x_t
    return mean / (1 - a) + math.sqrt((1 - a_next) * (1 - kept) / (1 - a)) * z


def draw(seeds: Tensor, k: int, settings: Settings) -> Tensor:
    """Return the noise of one step, each row's from its own seed."""
    return noise.normal(seeds, block=0, step=k, B=settings.max_len, V=settings.d)


def load(folder: Path, device: torch.device) -> Network:
    """Return a trained network with its averaged weights."""
    if not (folder / STATE).exists():
        raise ValueError(f"{folder} contains no trained Diffusion-LM; train one first")
    state = torch.load(folder / STATE, map_location=device, weights_only=True)
    net = Network(Settings(**state["settings"])).to(device)
    net.load_state_dict(state["ema"]["mean"])
    return net.eval()


class DiffusionLM:
    """A trained network and its tokenizer, which writes as `SSDLM` does."""

    def __init__(self, net: Network, tokenizer: Tokenizer) -> None:
        self.net = net
        self.tokenizer = tokenizer

    @property
    def device(self) -> torch.device:
        return self.net.bias.device

    def check(self, prompts: Sequence[str], **options: Any) -> Decoding:
        """Return how texts are to be written; all bad input is refused here."""
        decoding = Decoding(
            **{k: v for k, v in options.items() if k not in ("seed", "num_samples")}
        )
        longest = max(len(self.tokenizer.encode(prompt)) for prompt in prompts) + decoding.length
        if longest > self.net.settings.max_len:
            raise ValueError(
                f"prompt and text have {longest} tokens, and the model writes "
                f"{self.net.settings.max_len}; lower --length or shorten the prompts"
            )
        return decoding

    def generate(
        self,
        prompts: Sequence[str],
        *,
        seed: int,
        num_samples: int,
        batch_size: int,
        **options: Any,
    ) -> list[Generation]:
        """Continue prompts, `num_samples` times each; an empty one begins a text of its own."""
        decoding = self.check(prompts, **options)
        rows = [(prompt, sample) for prompt in prompts for sample in range(num_samples)]
        contexts = [self.tokenizer.encode(prompt) for prompt, _ in rows]
        written: dict[int, Generation] = {}
        for indices in equal_lengths(contexts, batch_size):
            context = torch.tensor([contexts[index] for index in indices], device=self.device)
            context = context.long().view(len(indices), -1)
            seeds = [noise.mix(seed, rows[index][1], *contexts[index]) for index in indices]
            texts = decode(
                self.net, context, torch.tensor(seeds, device=self.device), decoding
            ).tolist()
            for index, tokens in zip(indices, texts, strict=True):
                prompt, sample = rows[index]
                text = self.tokenizer.decode_after(contexts[index], tokens)
                written[index] = Generation(prompt, text, tokens, seed, sample, decoding.T)
        return [written[index] for index in range(len(rows))]


def generate(args: argparse.Namespace) -> dict[str, Any]:
    """Write texts into `--output`, or finish it, and how they came about beside it."""
    folder, target, began = Path(args.model), Path(args.output), time.monotonic()
    writer = DiffusionLM(load(folder, torch.device(args.device)), load_tokenizer(folder))
    length = args.length or (50 if args.input else writer.net.settings.max_len)
    options = asdict(Decoding(length, args.T, args.rule, not args.no_clamp)) | {"seed": args.seed}
    trained = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    with prompts_of(args) as source:
        count = generate_file(
            KeywordWriter(writer, options, args.num_samples, args.batch_size),
            source,
            target,
            identity=options | {"model": trained, "num_samples": args.num_samples},
        ).texts
    made = {"texts": count, "seconds": round(time.monotonic() - began, 3), "options": options}
    made |= {"training": trained, "settings": asdict(writer.net.settings)}
    about = target.with_suffix(".about.json")
    if not about.exists():  # a file found finished was not written in these seconds
        write_json(about, made)
    print(f"{count} texts of {length} tokens  {writer.device.type} seconds {made['seconds']:.1f}")
    return made


@contextmanager
def prompts_of(args: argparse.Namespace) -> Iterator[Path]:
    """Give the file of prompts, or one with an empty prompt."""
    if args.input:
        yield Path(args.input)
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        path.write_text('{"prompt": ""}\n', encoding="utf-8")
        yield path


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Diffusion-LM: train it, write with it")
    commands = parser.add_subparsers(dest="command", required=True)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    train = commands.add_parser("train", help="train, or go on with a run")
    train.add_argument("--data", required=True, help="token store, or a file of texts")
    train.add_argument("--tokenizer", help="for a file of texts: folder or Hub name")
    train.add_argument("--holdout", type=float, default=0.0, help="share of the texts kept back")
    train.add_argument("--out", required=True)
    train.add_argument("--size", choices=SIZES, default="mini")
    for name, kind in (("steps", int), ("batch", int), ("seed", int)):
        train.add_argument(f"--{name}", type=kind)
    for name in ("seconds", "lr", "ema"):
        train.add_argument(f"--{name}", type=float)
    train.add_argument("--log-every", type=int, default=200)
    train.add_argument("--save-seconds", type=float, default=60.0)
    write = commands.add_parser("generate", help="write texts, or finish a file of them")
    write.add_argument("--model", required=True)
    write.add_argument("--input", help="JSON lines with prompts; none: texts of their own")
    write.add_argument("--output", required=True)
    write.add_argument("--length", type=int)
    write.add_argument("--num-samples", type=int, default=1)
    write.add_argument("--T", type=int, default=Decoding.T)
    write.add_argument("--rule", choices=("renoise", "posterior"), default=Decoding.rule)
    write.add_argument("--no-clamp", action="store_true")
    write.add_argument("--seed", type=int, default=0)
    write.add_argument("--batch-size", type=int, default=256)
    for command in (train, write):
        command.add_argument("--device", default=default)
    return parser.parse_args()


def main() -> None:
    """Run a command and print its report as the last line."""
    args = parse()
    try:
        report = train(args) if args.command == "train" else generate(args)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()

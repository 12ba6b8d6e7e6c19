"""What control costs: the same prompts under many ways to steer, at the passes that each takes.

    python benchmarks/control.py write --prompts pplm.jsonl --words words.npz --out runs/frontier
    python benchmarks/control.py read runs/frontier --judge judge --ppl smollm2
    python benchmarks/control.py report runs/frontier --out docs/control-frontier.md

`--model smollm2` steers a causal language model, by its own guide of the same name; how it writes
is told by `--options '{"temperature": 1.0, "never_end": true}'`, and `--ppl builtin:mini` reads it.

An arm is a way to steer with its numbers, as `both,lam=3,n=8,w=4`: lambda 3 of the gradient, 8
particles, scores times 4. Scores are log-odds. Ways:

    plain     no control
    gradient  the built-in sentiment guide's gradient
    guide     particles alone, weighed by the same guide
    both      its gradient, and particles that it weighs
    words     particles alone, weighed by the n-grams of ngrams.py: another kind of model, no tokens
    mixed     the guide's gradient, and particles that the n-grams weigh
    all       the guide's gradient, and particles that both of them weigh
    folder    particles alone, weighed by a classifier in a folder (--scorer)
    best      the best of n texts without control by the guide, `best-words` by the n-grams
    fudge     the k likeliest tokens, weighed by what the guide says of the text with each of them

With `lam2` or `w2` the tense is controlled too, past and present, by its guide. Each arm has 600
texts: prompts times labels times samples. Another `seed` gives other texts: MAUVE of two sets
without control is what 600 texts can have at best. Reading and reporting are in frontier.py.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from frontier import add_read, add_report
from ngrams import Ngrams

from ssdlm import SSDLM, Generation, Scorer, classifier_guide
from ssdlm.denoiser import DenoiserWrapper
from ssdlm.guidance.fitting import FittedGuide
from ssdlm.guidance.scorers import guide_scorer
from ssdlm.storage.files import write_json
from ssdlm.storage.jsonl import parse_jsonl, write_jsonl

LABELS, TENSES = ("positive", "negative"), ("past", "present")
NUMBERS = {"lam": 5.0, "n": 8, "w": 8.0, "step": 5, "k": 50, "lam2": 0.0, "w2": 0.0, "seed": 16}
"""What an arm may set, and what it is otherwise."""
MOST = 16
"""Texts from which the best is chosen at most."""
SWARMS = ((8, 5), (16, 5), (16, 3), (16, 10))
"""How many particles, and tokens between two weighings."""
ARMS = (
    "plain",
    "plain,seed=18",
    *(f"gradient,lam={lam}" for lam in (4, 4.5, 5, 5.5)),
    "gradient,lam=5,lam2=4",
    *(f"{way},n={n},step={step}" for way in ("words", "guide") for n, step in SWARMS),
    *(f"words,n=16,w={w}" for w in (4, 16)),
    *(f"both,lam={lam},n=8" for lam in (3, 4, 4.5)),
    *(f"both,lam={lam},n=16" for lam in (3, 4)),
    *(f"both,lam={lam},lam2=3,n={n},w2=4" for lam, n in ((3, 8), (4, 8), (3, 16), (4, 16))),
    *(f"{way},lam={lam},n=8" for way, lam in product(("mixed", "all"), (3, 4))),
    *(f"{way},n={n}" for n, way in product((8, 16), ("best", "best-words"))),
    *(f"fudge,k=50,w={w}" for w in (2, 4)),
    "guide,n=16,w2=8",
)


@dataclass(frozen=True)
class Arm:
    """A way to steer, and its numbers."""

    way: str
    lam: float
    n: int
    w: float
    step: int
    k: int
    lam2: float
    w2: float
    seed: int

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Return the arm that a text such as `both,lam=3,n=8` names."""
        way, *parts = text.split(",")
        given = dict(part.split("=") for part in parts)
        if unknown := given.keys() - NUMBERS.keys():
            raise SystemExit(f"{text}: there is no {sorted(unknown)[0]}; use {', '.join(NUMBERS)}")
        numbers = {name: type(usual)(given.get(name, usual)) for name, usual in NUMBERS.items()}
        return cls(way, **numbers)

    @property
    def has_tense(self) -> bool:
        return bool(self.lam2 or self.w2)

    def targets(self) -> list[tuple[str, str]]:
        """Return what its texts are steered to: a label and a tense, "" for none."""
        labels = ("",) if self.way == "plain" else LABELS
        return list(product(labels, TENSES if self.has_tense else ("",)))


class Writer:
    """A model, and the ways to steer it."""

    def __init__(self, model: SSDLM, words: Path | None, folder: str, batch_size: int) -> None:
        self.model, self.words, self.folder, self.batch_size = model, words, folder, batch_size
        self.scorers: dict[tuple[str, str], Scorer] = {}
        self.pool: list[Generation] = []
        """Texts without control, of which the best are chosen."""

    def write(self, arm: Arm, prompts: list[str], samples: int) -> Iterator[dict[str, Any]]:
        """Yield the texts of an arm, each with what it was steered to."""
        targets = arm.targets()
        for label, tense in targets:
            texts = self.texts(arm, label, tense, prompts, samples * 2 // len(targets))
            for text in texts:
                found = {"prompt": text.prompt, "text": text.text, "tokens": text.tokens}
                passes = round(text.passes_per_token, 3)
                yield found | {"label": label, "tense": tense, "passes_per_token": passes}

    def texts(
        self, arm: Arm, label: str, tense: str, prompts: list[str], samples: int
    ) -> list[Generation]:
        """Return the texts of one target."""
        if arm.way in ("best", "best-words"):
            return self.best(arm, label, prompts, samples)
        # Labels have noise of their own: else they would choose among the same texts.
        usual = {"num_samples": samples, "batch_size": self.batch_size}
        usual["seed"] = arm.seed + 100 * (label == LABELS[1])
        if arm.way == "fudge":
            return fudged(self.model, label, arm).generate(prompts, **usual)
        options = self.options(arm, label, tense)
        return self.model.generate(prompts, **usual, **options)

    def options(self, arm: Arm, label: str, tense: str) -> dict[str, Any]:
        """Return the options of one target: controls, and how particles are weighed."""
        control: list[Any] = []
        weights: list[float] = []
        if arm.way in ("gradient", "both", "mixed", "all"):
            control.append(f"sentiment={label}:{arm.lam}")
            weights.append(arm.w if arm.way in ("both", "all") else 0.0)
        if arm.way in ("guide", "folder"):
            control.append(self.scorer("sentiment" if arm.way == "guide" else self.folder, label))
            weights.append(arm.w)
        if arm.way in ("words", "mixed", "all"):
            control.append(self.scorer("words", label))
            weights.append(arm.w)
        if tense and arm.lam2:
            control.append(f"tense={tense}:{arm.lam2}")
            weights.append(arm.w2)
        elif tense:
            control.append(self.scorer("tense", tense))
            weights.append(arm.w2)
        if arm.way in ("plain", "gradient"):
            return {"control": control} if control else {}
        particles = {"particles": arm.n, "particle_step": arm.step, "particle_weight": weights}
        return {"control": control} | particles

    def scorer(self, name: str, label: str) -> Scorer:
        """Return what weighs texts by a label."""
        if (name, label) not in self.scorers:
            self.scorers[name, label] = self.new_scorer(name, label)
        return self.scorers[name, label]

    def new_scorer(self, name: str, label: str) -> Scorer:
        if name == "words":
            if self.words is None:
                raise SystemExit("n-grams weigh these texts; give --words")
            return Scorer(Ngrams.load(self.words, label), "words")
        guide = classifier_guide(name, label, device=str(self.model.device))
        return guide_scorer(self.model.engine.controls.bind(guide), None, batch_size=256)

    def best(self, arm: Arm, label: str, prompts: list[str], samples: int) -> list[Generation]:
        """Return the best of n texts without control; all arms choose among the same ones."""
        if not self.pool:
            options = {"num_samples": samples * MOST, "batch_size": self.batch_size, "seed": 17}
            self.pool = self.model.generate(prompts, **options)
        scorer = self.scorer("words" if arm.way == "best-words" else "sentiment", label)
        chosen = []
        for start in range(0, len(self.pool), MOST):
            texts = self.pool[start : start + arm.n]
            scores = scorer([text.prompt + text.text for text in texts])
            best = texts[scores.index(max(scores))]
            passes = sum(text.passes_per_token for text in texts)
            chosen.append(replace(best, passes_per_token=passes))
        return chosen


class Fudge(DenoiserWrapper):
    """A denoiser of whose likeliest tokens a guide has read what each would make of the text.

    It has what a sliding window of one position asks for, and no more.
    """

    def __init__(self, denoiser: Any, guide: FittedGuide, *, k: int, weight: float) -> None:
        self.denoiser, self.guide, self.k, self.weight = denoiser, guide, k, weight
        super().__post_init__()

    def prefill(self, context: Any) -> Any:
        return self.denoiser.prefill(context)

    def extend(self, cache: Any, block: Any) -> Any:
        return self.denoiser.extend(cache, block)

    @torch.no_grad()
    def read_and_denoise(self, cache: Any, new: Any, w_t: Any, progress: Any) -> tuple[Any, Any]:
        cache, logits = self.denoiser.read_and_denoise(cache, new, w_t, progress)
        likely, (N, _, V) = logits[:, 0].topk(self.k), logits.shape
        context = cache.context.repeat_interleave(self.k, 0)
        ids = torch.cat((context, likely.indices.view(-1, 1)), 1)
        read = [
            self.guide.read(some, logits.new_zeros(len(some), 0, V)) for some in ids.split(4096)
        ]
        said = self.guide.guide.label_log_prob(torch.cat(read)).view(N, self.k)
        weighed = (likely.values + self.weight * said).unsqueeze(1)
        held = torch.full_like(logits, -torch.inf)
        return cache, held.scatter(2, likely.indices.unsqueeze(1), weighed)


def fudged(model: SSDLM, label: str, arm: Arm) -> SSDLM:
    """Return a model whose likeliest tokens a guide weighs."""
    guide = model.fit(classifier_guide("sentiment", label, device=str(model.device)))
    assert isinstance(guide, FittedGuide)
    steered = Fudge(model.denoiser, guide, k=arm.k, weight=arm.w)
    own = SSDLM(model.denoiser, model.tokenizer, model.options)
    own.engine.controls.apply = lambda options, denoiser=None: steered
    own.engine.runners.key_of = lambda request: None  # programs know nothing of it
    return own


def add_write(commands: Any) -> None:
    command = commands.add_parser("write", help="write the texts of arms")
    command.set_defaults(run=run_write)
    command.add_argument("arms", nargs="*", default=list(ARMS))
    command.add_argument("--prompts", type=Path, required=True)
    command.add_argument("--words", type=Path, help="what ngrams.py wrote, for `words` and others")
    command.add_argument(
        "--scorer", default="", metavar="FOLDER", help="a classifier, for `folder`"
    )
    command.add_argument("--model", default="builtin:mini")
    command.add_argument("--device", default="auto")
    command.add_argument("--samples", type=int, default=20, help="of a prompt for each of 2 labels")
    command.add_argument("--length", type=int, default=50)
    command.add_argument("--batch-size", type=int, default=1024)
    command.add_argument(
        "--options", type=json.loads, default={}, metavar="JSON", help="how the model writes"
    )
    command.add_argument("--out", type=Path, required=True)


def run_write(arguments: argparse.Namespace) -> None:
    """Write a file of texts for each arm that has none yet."""
    lines = arguments.prompts.read_bytes().splitlines()
    prompts = [line["prompt"] for _, line in parse_jsonl(lines, source="prompts")]
    model = SSDLM.from_pretrained(arguments.model, device=arguments.device)
    model.options = model.options.change(length=arguments.length, **arguments.options)
    writer = Writer(model, arguments.words, arguments.scorer, arguments.batch_size)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.arms:
        path = arguments.out / f"{name}.jsonl"
        if path.exists():
            continue
        began = time.perf_counter()
        rows = list(writer.write(Arm.parse(name), prompts, arguments.samples))
        seconds = round(time.perf_counter() - began, 2)
        write_jsonl(path, rows)
        passes = sum(row["passes_per_token"] for row in rows) / len(rows)
        about = {"arm": name, "texts": len(rows), "seconds": seconds, "passes": round(passes, 2)}
        write_json(path.with_suffix(".json"), about)
        print(json.dumps(about), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for add in (add_write, add_read, add_report):
        add(commands)
    arguments = parser.parse_args(argv)
    arguments.run(arguments)


if __name__ == "__main__":
    main()

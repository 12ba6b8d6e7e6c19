"""Whether two trees write the same texts: requests over all modes and options, drawn by a seed.

    PYTHONPATH=src:. python benchmarks/same_texts.py write FILE [--count 240]
    python benchmarks/same_texts.py compare OLD NEW

`write` is run in each tree, with this very file; a request depends on its number alone. `compare`
prints every request whose texts differ, or that one tree alone refuses, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

PROMPTS = ("The movie was", "I think that", "so it goes", "the dog", "a", "We went to the river")
PATTERNS = ("[a-z ]+", "(no|yes)( [a-z]+)*", "[A-Za-z ,.]{4,}", "(the|a) [a-z]+")
WORDS = ("river", "the", "it", "a")


class Collector:
    """A streamer that keeps what it gets."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def put(self, value: Any) -> None:
        self.seen.append(value.tolist())

    def end(self) -> None:
        self.seen.append("end")


def request_of(number: int) -> dict[str, Any]:
    """Return a model's name, how it is asked, its prompts and options."""
    rng = random.Random(f"request {number}")
    model = rng.choices(("tiny", "encoder", "mini"), (6, 2, 3))[0]
    how = rng.choices(("generate", "stream", "streamer"), (8, 3, 1))[0]
    count = 1 if how != "generate" else rng.choice((1, 1, 3))
    length = rng.randint(5, 16)
    options: dict[str, Any] = {"seed": rng.randrange(1000), "length": length}
    mode = "diffusion"
    if model != "encoder":
        mode = rng.choices(("diffusion", "autoregressive", "speculative"), (7, 1, 1))[0]
    options |= {"mode": mode} | (diffusion(rng, model, length) if mode == "diffusion" else {})
    options |= sampling(rng, options)
    options |= constraints(rng, options)
    if how == "generate" and rng.random() < 0.3:
        options |= rng.choice(({"num_samples": 3}, {"num_samples": 2, "batch_size": 1}))
        if model != "encoder" and "gap" not in options and rng.random() < 0.3:
            options["best_of"] = 2
    if model == "encoder":  # which reads no evidence, and rates no lengths
        options.pop("temperature", None)
        options |= {"nucleus": "logits"} if "nucleus" in options else {}
        if options.pop("gap", None):
            options["length"] = length
    prompts = rng.sample(PROMPTS, count)
    return {"number": number, "model": model, "how": how, "prompts": prompts, "options": options}


def diffusion(rng: random.Random, model: str, length: int) -> dict[str, Any]:
    """Return a path through noise levels, and what steers on it."""
    B = rng.choice((3, 5, length))
    grid = rng.choices(("sliding", "staggered", "uniform", "warped"), (5, 2, 2, 1))[0]
    options: dict[str, Any] = {"grid": grid, "B": B, "T": rng.choice((2, 4, B))}
    if grid == "sliding" and rng.random() < 0.8:
        options["T"] = B
    if grid in ("sliding", "staggered"):
        options["width"] = rng.choice((1.0, 1.0, 2.0, 4.0))
    if grid == "uniform" and rng.random() < 0.2:
        options["early_exit"] = True
    is_wide = options.get("width", 2.0) > 1
    if is_wide and rng.random() < 0.25:
        options |= rng.choice(({"rule": "ddpm"}, {"rule": "adaptive"}, {"rho": 0.5}))
    if rng.random() < 0.5:
        options["returns"] = "w_0"
        options["nucleus"] = rng.choice(("network", "logits"))
    if rng.random() < 0.3:
        options["control"] = "sentiment=positive" if model == "mini" else "GUIDE=positive"
        options |= rng.choice(
            ({"lam": 200.0}, {"gradient": "words"}, {"band": (0.2, 0.9)}, {"sees": "block"}, {})
        )
        if rng.random() < 0.3:
            options["particles"] = rng.choice((2, 4))
    return options


def sampling(rng: random.Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return how tokens are drawn."""
    if rng.random() < 0.15:
        options.pop("nucleus", None)
        return {"projection": "greedy"}
    found: dict[str, Any] = {}
    if rng.random() < 0.5:
        found["top_p"] = rng.choice((0.5, 0.9))
    if rng.random() < 0.3:
        found["temperature"] = rng.choice((0.7, 1.2))
    is_logits = options["mode"] == "diffusion" and "returns" not in options
    if is_logits and options.get("width", 2.0) > 1 and rng.random() < 0.2:
        found["projection"] = rng.choice(("multi_hot", "mean"))
    return found


def constraints(rng: random.Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a text must hold to, and where it ends."""
    length, word = options["length"], rng.choice(WORDS)
    kinds: list[dict[str, Any]] = [{}] * 4
    kinds += [{"stop": ["e"]}, {"stop_at_end": True}, {"never_end": True}]
    kinds += [{"must_not": [word]}, {"regex": rng.choice(PATTERNS)}]
    kinds += [{"json_schema": {"enum": [True, False, None]}}]
    if options["mode"] == "diffusion":
        kinds += [
            {"must": [word]},
            {"must": [word], "must_not": ["dog"]},
            {"end_at_sentence": True},
        ]
        kinds += [{"pin": {length - 2: "a"}}, {"regex": "[a-z ]+", "must_not": [word]}]
        kinds += [{"suffix": " it"}, {"suffix": " it", "gap": "2-4"}]
    chosen = rng.choice(kinds)
    if "gap" in chosen:
        del options["length"]
    if "suffix" in chosen and options["grid"] != "sliding":
        del options["B"]
    return chosen


class Models:
    """The models of one tree, each opened when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        from tests import tiny

        from ssdlm import SSDLM, GenerateOptions

        own = GenerateOptions(B=(6,), T=6)
        self.guide = str(tiny.save_classifier(folder / "guide"))
        self.models = {
            "tiny": SSDLM(tiny.block(), tiny.tokenizer(), own),
            "encoder": SSDLM(tiny.encoder(), tiny.tokenizer(), own),
            "mini": SSDLM.from_pretrained("builtin:mini", device="cpu"),
        }

    def write(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the texts of a request, or why it is refused."""
        model, options = self.models[request["model"]], dict(request["options"])
        if "control" in options:
            options["control"] = options["control"].replace("GUIDE", self.guide)
        try:
            if request["how"] == "stream":
                drafts = list(model.stream(request["prompts"][0], **options))
                return {"texts": [drafts[-1].text], "seen": [draft.text for draft in drafts]}
            collector = Collector()
            if request["how"] == "streamer":
                options["streamer"] = collector
            made = model.generate(request["prompts"], **options)
        except ValueError as error:
            return {"refused": str(error).replace(self.guide, "GUIDE")}
        found = {"texts": [text.text for text in made], "passes": [text.calls for text in made]}
        return found | ({"seen": collector.seen} if collector.seen else {})


def write(path: Path, count: int) -> None:
    """Write the texts of so many requests."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, path.open("w") as out:
        models, start = Models(Path(folder)), time.perf_counter()
        for number in range(count):
            request = request_of(number)
            out.write(json.dumps(request | models.write(request)) + "\n")
            out.flush()
    print(f"{count} requests in {time.perf_counter() - start:.0f} s")


def compare(old: Path, new: Path) -> None:
    """Print what differs."""
    counts: Counter[str] = Counter()
    pairs = zip(old.read_text().splitlines(), new.read_text().splitlines(), strict=True)
    for one, other in ((json.loads(a), json.loads(b)) for a, b in pairs):
        if "refused" in one and "refused" in other:
            counts["refused by both"] += 1
            continue
        is_same = one.get("texts") == other.get("texts")
        verdict = "same" if is_same else "different"
        if "refused" in one or "refused" in other:
            verdict = f"refused by {'old' if 'refused' in one else 'new'}"
        counts[verdict] += 1
        for what in ("passes", "seen") if is_same else ():
            counts[f"same text, other {what}"] += one.get(what) != other.get(what)
        if not is_same:
            asked = {name: one[name] for name in ("number", "model", "how", "options")}
            print(verdict, json.dumps(asked))
            for name, found in (("old", one), ("new", other)):
                print(f"  {name} {found.get('texts', found.get('refused'))!r}")
    print(json.dumps(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = parser.add_subparsers(dest="what", required=True)
    writing = kinds.add_parser("write", help="write the texts of this tree")
    writing.add_argument("out", type=Path)
    writing.add_argument("--count", type=int, default=240)
    comparing = kinds.add_parser("compare", help="tell what differs")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    args = parser.parse_args()
    if args.what == "write":
        write(args.out, args.count)
    else:
        compare(args.old, args.new)


if __name__ == "__main__":
    main()

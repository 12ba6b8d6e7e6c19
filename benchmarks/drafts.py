"""How often a drafter's guesses are right, by position, on texts that the model writes itself.

A text is written token by token at temperature 1 with top-p 0.9, under fixed noise; after each of
its tokens the drafter guesses the next ones under the same noise. A share is that of guesses that
are right where all before them are.

    python benchmarks/drafts.py --model M --drafter DIR reviews=reviews.jsonl books=books.jsonl

    python benchmarks/drafts.py --model M --drafter DIR --timed
    python benchmarks/drafts.py --model M --drafter DIR --twins 500

Of lines with "text" the first 50 tokens are a prompt; "question" is asked by the chat template.
With --timed, `mode=speculative` is timed beside `mode=autoregressive` in turn, and their texts are
compared. With --twins so many texts are, over all kinds of options. Prints a table and, as its
last line, JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from ssdlm import SSDLM, Generation
from ssdlm.denoiser.drafter import base_of
from ssdlm.storage import checkpoint
from ssdlm.storage.drafter import find_drafter, load_drafter
from ssdlm.tokenizer import load_causal_tokenizer, load_tokenizer
from ssdlm.train.drafting.texts import acceptance, read_prompts, tokens_per_check, write_texts

BEGINNING = "It was the first day of the year"
KINDS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "hot": {"temperature": 1.4, "top_p": 1.0},
    "cold": {"temperature": 0.3},
    "greedy": {"projection": "greedy"},
    "top_k and min_p": {"top_k": 20, "min_p": 0.02},
    "stop strings": {"stop": [".", "the"]},
    "no end": {"never_end": True},
    "forbidden words": {"must_not": ["the", "and"]},
    "a pattern": {"regex": r"[A-Z][a-z]+( [a-z]+){2,8}\."},
    "JSON": {"regex": r'\{"name": "[A-Z][a-z]{1,9}", "age": [1-9][0-9]?\}'},
}
"""Options of texts that are compared with their twins."""


def time_modes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the medians of both modes' speed and their ratio, and how many texts differ."""
    drafter = None if arguments.drafter is None else str(arguments.drafter)
    model = SSDLM.from_pretrained(arguments.model, device=arguments.device, drafter=drafter)
    print("| texts | tokens | autoregressive, tokens/s | speculative | ratio | passes | differ |")
    print("|---" * 7 + "|")
    figures = {}
    for batch, length in product(
        *(map(int, one.split(",")) for one in (arguments.batches, arguments.lengths))
    ):
        speeds: dict[str, list[float]] = {"autoregressive": [], "speculative": []}
        differ, passes = 0, 0.0
        for number in range(arguments.repeats + 1):
            texts: dict[str, list[Generation]] = {}
            for mode, found in speeds.items():
                start = time.perf_counter()
                asked: dict[str, Any] = {"mode": mode, "length": length, "seed": number}
                asked |= {
                    "top_p": 0.9,
                    "temperature": arguments.temperature,
                    "projection": "sampling",
                }
                prompts = [f"{BEGINNING} {place}, and" for place in range(batch)]
                asked |= {"regex": arguments.regex, "never_end": arguments.regex is None}
                texts[mode] = model.generate(prompts, batch_size=batch, **asked)
                seconds = time.perf_counter() - start
                if number:  # the first gets everything ready
                    found.append(sum(len(text.tokens) for text in texts[mode]) / seconds)
            pairs = list(zip(*texts.values(), strict=True))
            differ += sum(plain.tokens != guessed.tokens for plain, guessed in pairs)
            passes += sum(guessed.passes_per_token for _, guessed in pairs) / batch
        plain, guessed = (median(one) for one in speeds.values())
        passes /= arguments.repeats + 1
        name = f"{batch} x {length}"
        figures[name] = {"autoregressive": plain, "speculative": guessed, "ratio": guessed / plain}
        figures[name] |= {"passes_per_token": passes, "differ": differ}
        cells = f"{plain:,.0f} | {guessed:,.0f} | {guessed / plain:.2f} | {passes:.2f} | {differ}"
        print(f"| {batch} | {length} | {cells} of {batch * (arguments.repeats + 1)} |", flush=True)
    return figures


def compare_twins(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how many texts of each kind differ from those of `mode=autoregressive`."""
    drafter = None if arguments.drafter is None else str(arguments.drafter)
    model = SSDLM.from_pretrained(arguments.model, device=arguments.device, drafter=drafter)
    head = model.engine.denoiser.head
    head.data = head.data.contiguous()  # so that a CPU takes guesses of every model
    figures = {}
    print("| kind | texts | differ | passes per token |\n" + "|---" * 4 + "|")
    for place, (kind, options) in enumerate(KINDS.items()):
        count = len(range(place, arguments.twins, len(KINDS)))
        differ, passes = 0, 0.0
        for number in range(count):
            asked = {"length": arguments.length, "seed": number} | options
            prompt = f"{BEGINNING} {number}, and"
            guessed = model.generate(prompt, mode="speculative", **asked)
            plain = model.generate(prompt, mode="autoregressive", **asked)
            differ += guessed.tokens != plain.tokens
            passes += guessed.passes_per_token / count
        figures[kind] = {"texts": count, "differ": differ, "passes_per_token": round(passes, 3)}
        print(f"| {kind} | {count} | {differ} | {passes:.2f} |", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="NAME=FILE", help="JSON lines")
    parser.add_argument("--model", default="builtin:mini")
    parser.add_argument("--drafter", type=Path, help="default: the model's own")
    parser.add_argument("--twins", type=int, default=0, metavar="N", help="texts to compare")
    parser.add_argument("--timed", action="store_true", help="seconds and equality, not shares")
    parser.add_argument("--lengths", default="50,400", help="timed: tokens (default 50,400)")
    parser.add_argument("--batches", default="1,8", help="timed: texts at a time (default 1,8)")
    parser.add_argument("--repeats", type=int, default=5, help="timed: runs (default 5)")
    parser.add_argument("--regex", help="timed: what the texts are held to")
    parser.add_argument("--temperature", type=float, default=1.0, help="timed (default 1)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num", type=int, default=200, help="texts of each file (default 200)")
    parser.add_argument("--given", type=int, default=50, help="tokens of a prompt (default 50)")
    parser.add_argument("--length", type=int, default=100, help="tokens of a text (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.timed or arguments.twins:
        found = time_modes(arguments) if arguments.timed else compare_twins(arguments)
        print(json.dumps(found))
        return
    home = checkpoint.find(arguments.model)
    denoiser = checkpoint.load_denoiser(home, device=arguments.device, dtype="auto")
    load = load_causal_tokenizer if checkpoint.is_causal(home) else load_tokenizer
    network, tokenizer = base_of(denoiser), load(home)
    if network is None:
        raise SystemExit(f"{arguments.model} has no layers that a drafter reads")
    folder = arguments.drafter or find_drafter(home)
    if folder is None:
        raise SystemExit(f"{arguments.model} has no drafter; give --drafter")
    drafter = load_drafter(folder, network, home)
    places = range(1, drafter.config.num_guesses + 1)
    print(f"| texts | {' | '.join(map(str, places))} | first four | tokens per check |")
    print("|---" * (len(places) + 3) + "|")
    figures: dict[str, Any] = {}
    for name, _, file in (str(one).partition("=") for one in arguments.files):
        prompts = read_prompts(Path(file), tokenizer, arguments.given)[: arguments.num]
        ends = frozenset(tokenizer.ends)
        texts = write_texts(network, prompts, arguments.length, seed=arguments.seed, ends=ends)
        shares = acceptance(drafter, texts)
        mean, speed = sum(shares[:4]) / len(shares[:4]), tokens_per_check(shares)
        listed = " | ".join(f"{share:.3f}" for share in shares)
        print(f"| {name} ({len(texts)}) | {listed} | {mean:.3f} | {speed:.2f} |", flush=True)
        figures[name] = {"texts": len(texts), "shares": [round(one, 4) for one in shares]}
        figures[name] |= {"first_four": round(mean, 4), "tokens_per_check": round(speed, 3)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

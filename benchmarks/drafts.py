"""How often a drafter's guesses are right, by position, on texts that the model writes itself.

A text is written token by token at temperature 1 with top-p 0.9, under fixed noise; after each of
its tokens the drafter guesses the next ones under the same noise. A share is that of guesses that
are right where all before them are.

    python benchmarks/drafts.py --model M --drafter DIR reviews=reviews.jsonl books=books.jsonl

Of lines with "text" the first 50 tokens are a prompt; "question" is asked by the chat template.
Prints a table and, as its last line, JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ssdlm.denoiser.drafter import base_of
from ssdlm.storage import checkpoint
from ssdlm.storage.drafter import load_drafter
from ssdlm.tokenizer import load_causal_tokenizer, load_tokenizer
from ssdlm.train.drafting.texts import acceptance, read_prompts, tokens_per_check, write_texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", metavar="NAME=FILE", help="JSON lines")
    parser.add_argument("--model", default="builtin:mini")
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num", type=int, default=200, help="texts of each file (default 200)")
    parser.add_argument("--given", type=int, default=50, help="tokens of a prompt (default 50)")
    parser.add_argument("--length", type=int, default=100, help="tokens of a text (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    home = checkpoint.find(arguments.model)
    denoiser = checkpoint.load_denoiser(home, device=arguments.device, dtype="auto")
    load = load_causal_tokenizer if checkpoint.is_causal(home) else load_tokenizer
    network, tokenizer = base_of(denoiser), load(home)
    if network is None:
        raise SystemExit(f"{arguments.model} has no layers that a drafter reads")
    drafter = load_drafter(arguments.drafter, network, home)
    places = range(1, drafter.config.num_guesses + 1)
    print(f"| texts | {' | '.join(map(str, places))} | first four | tokens per check |")
    print("|---" * (len(places) + 3) + "|")
    figures = {}
    for name, _, file in (one.partition("=") for one in arguments.files):
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

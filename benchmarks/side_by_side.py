"""What a CPU gains by writing texts side by side: the same texts, alone and together, by turns.

    python benchmarks/side_by_side.py [builtin:mini] [--texts 16] [--length 25] [--rounds 3]

Both ways must write the same tokens. A ratio is the time of texts one by one over that of all
together, in processor seconds and by the clock; the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from ssdlm import SSDLM

PROMPTS = ("The movie was", "I think that", "The river had a long history of", "Once upon a time")
PATHS = {
    "sliding": {},
    "guided": {"control": "sentiment=positive"},
    "window": {"grid": "staggered", "T": 25},
    "pattern": {"regex": "[A-Za-z ,.]+"},
}


def timed(model: SSDLM, prompts: list[str], **options: Any) -> tuple[list[list[int]], float, float]:
    """Return the tokens of texts, and the processor's and the clock's seconds for them."""
    clock, busy = time.perf_counter(), time.process_time()
    texts = model.generate(prompts, **options)
    spent = time.process_time() - busy, time.perf_counter() - clock
    return [list(text.tokens) for text in texts], *spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="builtin:mini")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--length", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--paths", nargs="*", default=list(PATHS), choices=PATHS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = SSDLM.from_pretrained(arguments.model, device="cpu")
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(arguments.texts)]
    usual = {"length": arguments.length, "seed": list(range(arguments.texts))}
    model.generate(prompts[:2], length=2)
    print(f"{arguments.texts} texts of {arguments.length} tokens, threads: {arguments.threads}")
    found = {}
    for path in arguments.paths:
        options, ratios, pace = usual | PATHS[path], [], []
        for _ in range(arguments.rounds):
            alone, *spent_alone = timed(model, prompts, **options, batch_size=1)
            together, *spent = timed(model, prompts, **options, batch_size=arguments.texts)
            if alone != together:
                raise SystemExit(f"{path}: texts differ")
            ratios.append([one / other for one, other in zip(spent_alone, spent, strict=True)])
            pace.append(sum(map(len, together)) / spent[0])
        busy, clock = (round(statistics.median(one), 2) for one in zip(*ratios, strict=True))
        found[path] = {"processor": busy, "clock": clock}
        found[path]["tokens_per_processor_s"] = round(statistics.median(pace), 1)
        print(path, found[path], flush=True)
    print(json.dumps({"threads": arguments.threads} | found))


if __name__ == "__main__":
    main()

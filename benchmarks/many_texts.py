"""What Python does for each of many texts at a time, beside the passes: processor time on any CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.many_texts [--texts 512] [--calls 14]

Passes are as on a GPU, but draw random tokens in no time. What is left turns prompts into requests,
finds batches for them, and turns tokens into text: with 512 texts at a time a GPU waits for that.
Prints the least and the median of several calls, which are timed without garbage collection.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import pytest
import torch
from tests import graphs

from ssdlm import SSDLM
from ssdlm.engine import plain
from ssdlm.engine.batch import DecodeBatch
from ssdlm.engine.programs.chain import Chain
from ssdlm.engine.programs.window import Window

PROMPTS = ("The river had", "She was", "In the year", "It is a film")
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "autoregressive": {"mode": "autoregressive"},
    "guided": {"control": "sentiment=positive"},
}
MEMORY = 1 << 36


def draw_at_once(own: Any) -> None:
    """Stand for the rows of a pass, and for the draw from what they say."""
    own.drawn = torch.randint(1000, 8000, (own.num_slots, 1))


def write_as_on_a_gpu(patches: pytest.MonkeyPatch, model: SSDLM, texts: int) -> None:
    """Let a model choose batches as on a GPU, whose passes take no time."""
    graphs.capture(patches)
    graphs.choose_as_on_a_gpu(patches, model, MEMORY)
    patches.setattr(plain, "CPU_SLOTS", texts)
    patches.setattr(DecodeBatch, "read_contexts", lambda own, ids, at: None)
    for program in (Window, Chain):
        patches.setattr(program, "draw", draw_at_once)


def seconds(model: SSDLM, texts: int, seed: int, options: dict[str, Any]) -> float:
    """Return the processor's time for one call."""
    prompts = [f"{PROMPTS[number % len(PROMPTS)]} {number}" for number in range(texts)]
    gc.collect()
    gc.disable()
    began = time.process_time()
    model.generate(prompts, length=50, seed=seed, batch_size=texts, **options)
    took = time.process_time() - began
    gc.enable()
    return took


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=512, help="at a time")
    parser.add_argument("--calls", type=int, default=14)
    given = parser.parse_args(argv)
    model, found = SSDLM.from_pretrained("builtin:mini", device="cpu"), {}
    with pytest.MonkeyPatch.context() as patches:
        write_as_on_a_gpu(patches, model, given.texts)
        for name, options in WAYS.items():
            took = [seconds(model, given.texts, seed, options) for seed in range(given.calls + 1)]
            found[name] = {"least_ms": 1e3 * min(took[1:]), "median_ms": 1e3 * median(took[1:])}
            print(
                f"{name}: {found[name]['least_ms']:.1f} ms, median {found[name]['median_ms']:.1f}"
            )
    print(json.dumps({"texts": given.texts, "ms": found}))


if __name__ == "__main__":
    main()

"""What Python does for each of many texts at a time, beside the passes: processor time on any CPU.

    OMP_NUM_THREADS=1 python benchmarks/many_texts.py [--texts 512] [--calls 14]

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
from contextlib import ExitStack
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from ssdlm import SSDLM
from ssdlm.denoiser.slots import Slots
from ssdlm.engine import batch, plain, recording
from ssdlm.engine.programs.chain import Chain
from ssdlm.engine.programs.window import Window

PROMPTS = ("The river had", "She was", "In the year", "It is a film")
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "autoregressive": {"mode": "autoregressive"},
    "guided": {"control": "sentiment=positive"},
}
MEMORY = 1 << 36


def as_on_a_gpu(model: SSDLM, texts: int) -> ExitStack:
    """Let a model choose batches as on a GPU, whose passes take no time."""

    def draw(own: Any) -> None:
        own.drawn = torch.randint(1000, 8000, (own.num_slots, 1))

    def replay(own: Any, name: str, work: Any, gates: Any) -> None:
        del own, name, gates
        work()

    def set_nothing(own: Any, value: bool) -> None:
        del own, value

    stack, captured = ExitStack(), property(lambda own: True, set_nothing)
    for where, name, new in (
        (batch.DecodeBatch, "is_captured", captured),
        (batch.DecodeBatch, "read_contexts", lambda own, ids, at: None),
        (recording.Graphs, "do", replay),
        (Slots, "has_kernels", lambda network: True),
        (torch.cuda, "mem_get_info", lambda device: (MEMORY, MEMORY)),
        (plain, "CPU_SLOTS", texts),
        (model.engine.runners, "is_gpu", True),
        *((program, "draw", draw) for program in (Window, Chain)),
    ):
        stack.enter_context(patch.object(where, name, new, create=name == "is_captured"))
    return stack


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
    with as_on_a_gpu(model, given.texts):
        for name, options in WAYS.items():
            took = [seconds(model, given.texts, seed, options) for seed in range(given.calls + 1)]
            found[name] = {"least_ms": 1e3 * min(took[1:]), "median_ms": 1e3 * median(took[1:])}
            print(
                f"{name}: {found[name]['least_ms']:.1f} ms, median {found[name]['median_ms']:.1f}"
            )
    print(json.dumps({"texts": given.texts, "ms": found}))


if __name__ == "__main__":
    main()

"""Continue two prompts, two samples each: python examples/01_generate.py [--tiny]"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tiny_model import tiny

from ssdlm import SSDLM

PROMPTS = ["The river had", "The movie was"]


def main(name: str, **options: int) -> None:
    model = SSDLM.from_pretrained(name)
    for text in model.generate(PROMPTS, num_samples=2, seed=0, **options):
        print(f"[{text.sample}] {text.prompt!r} -> {text.text!r}")
    # A row depends on its own prompt and seed alone: written by itself, it is the same text.
    alone = model.generate(PROMPTS[1], seed=0, **options)
    print("the second prompt alone:", repr(alone.text))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin:mini", help="or a folder, or a Hub id")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model, no network")
    given = parser.parse_args()
    if given.tiny:
        with tempfile.TemporaryDirectory() as folder:
            main(tiny(Path(folder))[0], length=20, B=10, T=8)
    else:
        main(given.model, length=50)

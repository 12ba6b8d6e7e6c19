"""Continue two prompts, two samples each: python examples/01_generate.py [--tiny]"""

from __future__ import annotations

from chosen_model import model_and_size

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
    with model_and_size(__doc__) as (name, is_tiny):
        options = {"length": 20, "B": 10, "T": 8} if is_tiny else {"length": 50}
        main(name, **options)

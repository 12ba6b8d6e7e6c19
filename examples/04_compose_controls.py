"""Steer by two guides at once: python examples/04_compose_controls.py [--tiny]"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tiny_model import tiny

from ssdlm import SSDLM
from ssdlm.guidance import load_guide


def main(name: str, controls: list[str], **options: int) -> None:
    model = SSDLM.from_pretrained(name)
    guides = [load_guide(text, device=str(model.denoiser.device)) for text in controls]
    for count in range(len(guides) + 1):
        chosen = controls[:count]
        written = model.generate("The city", control=guides[:count], seed=0, **options)
        print(f"{' and '.join(chosen) or 'no control'}: {written.text!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin:mini", help="or a folder, or a Hub id")
    parser.add_argument(
        "--control",
        action="append",
        metavar="CLASSIFIER=LABEL[:LAMBDA]",
        help="default: away from sentiment's negative, towards tense's past",
    )
    parser.add_argument("--tiny", action="store_true", help="tiny random models, no network")
    given = parser.parse_args()
    if given.tiny:
        with tempfile.TemporaryDirectory() as folder:
            model, classifier = tiny(Path(folder))
            main(model, [f"{classifier}!=negative:500", f"{classifier}=neutral"], length=20, T=8)
    else:
        main(given.model, given.control or ["sentiment!=negative", "tense=past"], length=50)

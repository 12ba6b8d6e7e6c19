"""Text to tokens to a model to text, on a CPU: python examples/06_train_tiny.py [--tiny]"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tiny_model import tiny

from ssdlm import SSDLM
from ssdlm.data.prepare import prepare
from ssdlm.train import configure, train

SENTENCES = [
    "The river had been quiet for years.",
    "Nobody in the town could say why it rose that night.",
    "The old men slept by open doors, and the river rose.",
    "In the morning the doors were gone, and the town was quiet.",
]


def main(tokenizer: str, folder: Path, *overrides: str) -> None:
    text = folder / "river.txt"
    # A blank line ends a document; each has the sentences in another order.
    documents = [" ".join(SENTENCES[i % 4 :] + SENTENCES[: i % 4]) for i in range(60)]
    text.write_text("\n\n".join(documents), encoding="utf-8")
    # They repeat: without "none", copies of what is held out would be left out of training.
    options = {"holdout": 0.05, "deduplicate": "none"}
    print(prepare([text], tokenizer=tokenizer, out=folder / "data", **options))

    report = train(configure("tiny", overrides), data=[folder / "data"], out=folder / "run")
    print(f"{report.step} steps in {report.seconds:.0f} s, loss {report.loss:.3f}")
    print("on the hold-out:", {k: v for k, v in report.validation.items() if k != "profile"})

    # The same call again goes on where the run stands: here there is nothing left to do.
    again = train(configure("tiny", overrides), data=[folder / "data"], out=folder / "run")
    assert again.resumed == report.step

    model = SSDLM.from_pretrained(folder / "run")
    print("The river" + model.generate("The river", length=16, seed=0).text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", default="builtin:mini", help="or a folder, or a Hub id")
    parser.add_argument("--tiny", action="store_true", help="a tiny tokenizer, no network")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if given.tiny:
            main(tiny(Path(name) / "model")[0], Path(name), "steps=20", "batch=4", "D=32")
        else:
            main(given.tokenizer, Path(name))

"""Steer a text with a classifier off the shelf: python examples/03_control_sentiment.py [--tiny]"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from tiny_model import tiny

from ssdlm import SSDLM, classifier_guide
from ssdlm.diffusion.simplex import to_logits


def main(name: str, classifier: str, label: str, lams: list[float], **options: int) -> None:
    model = SSDLM.from_pretrained(name)
    guide = classifier_guide(classifier, label, device=str(model.denoiser.device))
    log_prob = model.fit(guide)  # the classifier, reading this model's vocabulary
    for lam in lams:
        written = model.generate("The food", control=guide, lam=lam, seed=0, **options)
        # The classifier's own view of the finished text: K = 100 makes the simplex one-hot.
        context = torch.tensor([model.context("The food")], device=model.denoiser.device)
        tokens = torch.tensor([written.tokens], device=model.denoiser.device)
        with torch.no_grad():
            chance = log_prob(context, to_logits(tokens, V=model.denoiser.V, K=100.0)).exp().item()
        print(f"lambda {lam:6g}  p({label}) = {chance:.3f}  {written.text!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    # Of the authors' model: xhan77/ssdlm, cardiffnlp/twitter-roberta-base-sentiment, label 2,
    # lams 0 500 2000; its control acts on the logits, which takes larger weights.
    parser.add_argument("--model", default="builtin:mini", help="or a folder, or a Hub id")
    parser.add_argument("--classifier", default="sentiment", help="or a folder, or a Hub id")
    parser.add_argument("--label", default="positive", help="name or number")
    parser.add_argument("--lams", type=float, nargs="+", default=[0.0, 2.5, 5.0])
    parser.add_argument("--tiny", action="store_true", help="tiny random models, no network")
    given = parser.parse_args()
    if given.tiny:
        with tempfile.TemporaryDirectory() as folder:
            main(*tiny(Path(folder)), "positive", given.lams, length=20, B=10, T=8)
    else:
        main(given.model, given.classifier, given.label, given.lams, length=50)

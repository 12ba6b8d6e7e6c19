"""How often generated texts have the label that they were steered to.

samples -> [control] -> run

Internal accuracy asks the guide itself, external accuracy a classifier that had no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ssdlm.evaluate.bootstrap import Bootstrap
from ssdlm.evaluate.diversity import PromptMean
from ssdlm.evaluate.figures import Figure, measure
from ssdlm.evaluate.samples import Pool
from ssdlm.guidance import load_text_classifier
from ssdlm.guidance.grammar import (
    ControlSpec,
    find_guide,
    is_judge,
    label_index,
    parse_control,
    split_labels,
)
from ssdlm.guidance.judges import TextReader
from ssdlm.storage.files import sha256

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
NEUTRAL = ("neutral", "neu")
"""The authors leave the label that means this out of the choice, unless it is the one asked for;
names of labels are what they mean (`guidance.grammar.KNOWN_LABELS`)."""


def control_figures(
    pools: Sequence[Pool],
    bootstrap: Bootstrap,
    *,
    guides: Sequence[str] = (),
    judges: Sequence[str] = (),
    device: str = "cpu",
) -> list[Figure]:
    """Return accuracies under guides and under outside judges, each given as `CLASSIFIER=LABEL`."""
    refuse_guides_as_judges(guides, judges)
    figures = []
    for name, specs in (("control_internal", guides), ("control_external", judges)):
        for text in specs:
            spec = parse_control(text)
            home = spec.name if is_judge(spec.name) else find_guide(spec.name)
            classifier = load_text_classifier(home, device)
            label = name if len(specs) == 1 else f"{name}:{text}"
            figures.append(measure(label, accuracy(pools, classifier, spec), bootstrap, high=1.0))
    return figures


def refuse_guides_as_judges(guides: Sequence[str], judges: Sequence[str]) -> None:
    """Raise on a judge whose weights are those of a guide, whatever the two are called."""
    known = {digest: guide for guide in guides for digest in fingerprints(guide)}
    for judge in judges:
        for digest in fingerprints(judge) & known.keys():
            raise ValueError(
                f"judge {judge} is also the guide {known[digest]}, by its weights; give a judge "
                "that had no part in steering"
            )


def fingerprints(control: str) -> set[str]:
    """Return the digests of a classifier's weights, those for other models' tokens included."""
    name = parse_control(control).name
    home, _ = split_labels(name if is_judge(name) else find_guide(name))
    files = [path for file in WEIGHT_FILES for path in Path(home).glob(f"**/{file}")]
    return {sha256(path) for path in files} or {home}


def accuracy(pools: Sequence[Pool], classifier: TextReader, spec: ControlSpec) -> PromptMean:
    """Return the share of samples that have the label, read as prompt and continuation."""
    texts = [pool.prompt + sample.text for pool in pools for sample in pool.samples]
    target = label_index(dict(enumerate(classifier.labels)), spec.label, spec.name)
    log_probs = classifier.log_probs(texts)
    for index, label in enumerate(classifier.labels):
        if label.lower() in NEUTRAL and index != target:
            log_probs[:, index] = -np.inf
    has_label = log_probs.argmax(-1) == target
    if len(classifier.labels) == 1:  # it has it where it is more likely than not
        has_label = log_probs[:, 0] > math.log(0.5)
    is_right = has_label.numpy() != spec.avoid
    sizes = np.array([len(pool.samples) for pool in pools])
    parts = np.split(is_right, np.cumsum(sizes)[:-1])
    return PromptMean(np.array([part.sum() for part in parts], dtype=float), sizes.astype(float))

"""How often generated texts have the label that they were steered to.

samples -> [control] -> run

Internal accuracy asks the guide itself, external accuracy a classifier that had no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ssdlm.evaluate.bootstrap import Bootstrap, Statistic
from ssdlm.evaluate.figures import Figure, measure
from ssdlm.evaluate.samples import Pool
from ssdlm.guidance import load_text_classifier
from ssdlm.guidance.classifiers import TextClassifier, label_index
from ssdlm.guidance.grammar import ControlSpec, find_guide, parse_control

NEUTRAL = "neutral"
"""The authors leave this label out of the choice, unless it is the one asked for."""


def control_figures(
    pools: Sequence[Pool],
    bootstrap: Bootstrap,
    *,
    guides: Sequence[str] = (),
    judges: Sequence[str] = (),
    device: str = "cpu",
) -> list[Figure]:
    """Accuracy under guides and under outside judges, each given as `CLASSIFIER=LABEL`."""
    figures = []
    for name, specs in (("control_internal", guides), ("control_external", judges)):
        for text in specs:
            spec = parse_control(text)
            classifier = load_text_classifier(find_guide(spec.name), device)
            right = accuracy_by_prompt(pools, classifier, spec)
            label = name if len(specs) == 1 else f"{name}:{text}"
            figures.append(measure(label, weighted_mean(right, pools), bootstrap, most=1.0))
    return figures


def accuracy_by_prompt(
    pools: Sequence[Pool], classifier: TextClassifier, spec: ControlSpec
) -> np.ndarray:
    """How many samples of each prompt have the label, read as prompt and continuation."""
    texts = [pool.prompt + sample.text for pool in pools for sample in pool.samples]
    wanted = label_index(dict(enumerate(classifier.labels)), spec.label, spec.name)
    log_probs = classifier.log_probs(texts)
    for index, label in enumerate(classifier.labels):
        if label.lower() == NEUTRAL and index != wanted:
            log_probs[:, index] = -np.inf
    has_label = log_probs.argmax(-1) == wanted
    if len(classifier.labels) == 1:  # it has it where it is more likely than not
        has_label = log_probs[:, 0] > math.log(0.5)
    is_right = has_label.numpy() != spec.avoid
    ends = np.cumsum([len(pool.samples) for pool in pools])
    return np.array([part.sum() for part in np.split(is_right, ends[:-1])])


def weighted_mean(right: np.ndarray, pools: Sequence[Pool]) -> Statistic:
    """The share of right samples as a function of how often each prompt counts."""
    sizes = np.array([len(pool.samples) for pool in pools])
    return lambda weights: float((weights * right).sum() / max((weights * sizes).sum(), 1.0))

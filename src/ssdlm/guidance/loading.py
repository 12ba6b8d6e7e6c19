"""Guides by name: a classifier is loaded, its label found.  grammar, fitting -> [loading] -> api"""

from __future__ import annotations

from pathlib import Path

from ssdlm.guidance.classifiers import load_classifier, vocabulary_of
from ssdlm.guidance.fitting import ClassifierGuide
from ssdlm.guidance.grammar import (
    check_label,
    check_lam,
    find_guide,
    label_index,
    parse_control,
    split_labels,
)
from ssdlm.values import SWITCH, About, check, choose

SEES = ("context", "block")
A_SWITCH = About(SWITCH, "", "")


def load_guide(
    text: str, *, sees: str = "context", has_special_tokens: bool = True, device: str = "cpu"
) -> ClassifierGuide:
    """Return the guide that a text such as `sentiment=positive:5` names."""
    spec = parse_control(text)
    return classifier_guide(
        spec.name,
        spec.label,
        avoid=spec.avoid,
        lam=spec.lam,
        sees=sees,
        has_special_tokens=has_special_tokens,
        device=device,
    )


def classifier_guide(
    name_or_path: str | Path,
    label: str | int,
    *,
    avoid: bool = False,
    lam: float | None = None,
    sees: str = "context",
    has_special_tokens: bool = True,
    device: str = "cpu",
) -> ClassifierGuide:
    """Load a sequence classifier, built in, from a folder or the Hub, to seek one of its labels.

    `avoid` steers away from the label instead. `lam` is its weight; without one, what its
    config.json suggests as `guide_lam`.
    """
    choose("sees", sees, SEES)
    lam = None if lam is None else check_lam(lam)
    avoid = check("avoid", avoid, A_SWITCH)
    has_special_tokens = check("has_special_tokens", has_special_tokens, A_SWITCH)
    folder = find_guide(name_or_path)
    name, _ = split_labels(name_or_path)
    check_label(folder, label, name)
    classifier = load_classifier(folder).to(device)
    home, _ = split_labels(folder)
    strings, end_of_text = vocabulary_of(home)
    return ClassifierGuide(
        classifier,
        label_index(classifier.config.id2label, label, name),
        sees=sees,
        has_special_tokens=has_special_tokens,
        token_strings=strings,
        end_of_text=end_of_text,
        avoid=avoid,
        lam=lam,
        name=name,
        home=home,
    )

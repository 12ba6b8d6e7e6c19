"""The grammar of `--control`: `sentiment=positive:5`, `toxicity!=toxic`.  [grammar] -> api

A bare name is a guide that comes with the package, or a folder; Hub ids have the form org/name.
Names for the labels may follow it in brackets: `org/name[negative+neutral+positive]=positive`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ssdlm.guidance.classifiers import (
    label_index,
    load_classifier,
    split_labels,
    vocabulary_of,
)
from ssdlm.guidance.fitting import ClassifierGuide, check_lam
from ssdlm.storage.builtin import GUIDES, builtin_guides
from ssdlm.values import SWITCH, About, check, choose, quote

SEES = ("context", "block")
A_SWITCH = About(SWITCH, "", "")


@dataclass(frozen=True)
class ControlSpec:
    """One control as a user writes it: a classifier by name, and the label to seek or to avoid."""

    name: str
    label: str
    avoid: bool
    lam: float | None
    """None for the weight that the guide suggests."""


def parse_control(text: str) -> ControlSpec:
    """Return the parts of `NAME=LABEL`, `NAME!=LABEL`, either with `:LAMBDA` after it."""
    name, equals, rest = text.rpartition("=")
    label, colon, number = (part.strip() for part in rest.partition(":"))
    avoid = name.endswith("!")
    name = name.removesuffix("!").strip()
    try:
        lam = float(number) if colon else None
    except ValueError:
        lam = float("nan")
    if not (equals and name and label) or name[-1] in "!=" or lam != lam:
        raise ValueError(
            f"control {quote(text)} is not CLASSIFIER=LABEL or CLASSIFIER!=LABEL, with an optional "
            ":LAMBDA; write it as sentiment=positive:5, and give a label that contains : or = by "
            "its number"
        )
    if lam is not None:
        lam = check_lam(lam, f" (in control {text!r})")
    return ControlSpec(name, label, avoid, lam)


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
    classifier = load_classifier(folder).to(device)
    home, _ = split_labels(folder)
    strings, end_of_text = vocabulary_of(home)
    name, _ = split_labels(name_or_path)
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


def find_guide(name_or_path: str | Path) -> str:
    """Return where a classifier is: a built-in one's folder, else what was given."""
    name, labels = split_labels(name_or_path)
    if name in builtin_guides():
        return f"{GUIDES / name}[{'+'.join(labels)}]" if labels else str(GUIDES / name)
    is_folder = re.fullmatch(r"[\w-]+|[./~].*", name) is not None
    if is_folder and not Path(name).exists():
        listed = ", ".join(builtin_guides()) or "none"
        raise ValueError(
            f"there is no built-in guide {name!r} (there is {listed}), nor a folder of that name; "
            "give one of these, a folder, or a Hub id org/name"
        )
    return str(name_or_path)

"""What to write like, in one word: `sentiment=positive:500`, `toxicity!=toxic`.  [wishes] -> api

A bare name is a guide that comes with the package, or a folder; the Hub's have the form org/name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssdlm import shelf
from ssdlm.config import choose
from ssdlm.guides.classifiers import label_index, load_classifier, vocabulary_of
from ssdlm.guides.fitting import ClassifierGuide

SEES = ("context", "block")
BUILTIN = shelf.BUILTIN / "guides"


@dataclass(frozen=True)
class Wish:
    """A classifier by name and the label to seek or to avoid."""

    name: str
    label: str
    avoid: bool
    lam: float | None
    """None for the guide's own."""


def split_wish(text: str) -> Wish:
    """Return the parts of `NAME=LABEL`, `NAME!=LABEL`, either with `:LAMBDA` after it."""
    name, equals, wanted = text.rpartition("=")
    label, colon, number = wanted.partition(":")
    name, bang, _ = name.partition("!") if name.endswith("!") else (name, "", "")
    try:
        lam = float(number) if colon else None
    except ValueError:
        lam = float("nan")
    if not (equals and name and label) or lam != lam:
        raise ValueError(
            f"control {text!r} is not CLASSIFIER=LABEL or CLASSIFIER!=LABEL, with :LAMBDA if "
            "wanted; write such as sentiment=positive:500"
        )
    return Wish(name, label, bool(bang), lam)


def guide_from(text: str, **options: Any) -> ClassifierGuide:
    """Return the guide that `sentiment=positive:500` wishes for; options of classifier_guide."""
    wish = split_wish(text)
    return classifier_guide(wish.name, wish.label, avoid=wish.avoid, lam=wish.lam, **options)


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
    place = find_guide(name_or_path)
    classifier = load_classifier(place).to(device)
    strings, end_of_text = vocabulary_of(place)
    return ClassifierGuide(
        classifier,
        label_index(classifier.config.id2label, label),
        sees,
        has_special_tokens,
        strings,
        end_of_text,
        avoid,
        None if lam is None else float(lam),
    )


def find_guide(name_or_path: str | Path) -> str:
    """Return where a classifier is: a built-in one's folder, else what was given."""
    name = str(name_or_path)
    if name in builtin_guides():
        return str(BUILTIN / name)
    if re.fullmatch(r"[\w-]+", name) and not Path(name).exists():
        listed = ", ".join(builtin_guides()) or "none"
        raise ValueError(
            f"there is no built-in guide {name!r} (there is {listed}), nor a folder of that name; "
            "give one of these, a folder, or a Hub id org/name"
        )
    return name


def builtin_guides() -> list[str]:
    """Return the names of the guides that come with the package."""
    return sorted(path.parent.name for path in BUILTIN.glob("*/config.json"))

"""The grammar of `--control`: `sentiment=positive:5`, `toxicity!=toxic`.  [grammar] -> loading

A bare name is a guide that comes with the package, or a folder; Hub ids have the form org/name.
Names for the labels may follow it in brackets: `org/name[negative+neutral+positive]=positive`.
A wrong name or label is found here, by config.json alone: neither torch nor transformers is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssdlm.options import known_options
from ssdlm.storage.builtin import GUIDES, builtin_guides
from ssdlm.storage.files import read_json
from ssdlm.storage.hub import download
from ssdlm.values import REAL, check, quote

ONE_WEIGHT = replace(known_options()["lam"], kind=REAL)
"""What is known of the option `lam`, for a single weight."""
KNOWN_LABELS = {
    "cardiffnlp/twitter-roberta-base-sentiment": ("negative", "neutral", "positive"),
    "textattack/bert-base-uncased-yelp-polarity": ("negative", "positive"),
    "textattack/roberta-base-yelp-polarity": ("negative", "positive"),
    "textattack/albert-base-v2-yelp-polarity": ("negative", "positive"),
}
"""What the labels mean of classifiers of the Hub that call them LABEL_0, LABEL_1, ..."""
MODEL_TYPE = "ssdlm-word-judge"
"""What a folder's config.json calls a network over words."""
LINEAR_TYPE = "ssdlm-linear-judge"
"""The same of weights for words and pairs of words."""
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[^\w\s]")
"""What judges read: words in lower case, numbers, and signs, one each."""
COUNTED = "verbs"
"""The name of the judge of tenses that counts."""
JUDGES = (MODEL_TYPE, LINEAR_TYPE)


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


def split_labels(name_or_path: str | Path) -> tuple[str, tuple[str, ...]]:
    """Return a classifier's name, and the names of its labels: `org/name[negative+positive]`."""
    found = re.fullmatch(r"(.+)\[([^\[\]=:]+)\]", str(name_or_path))
    if found is None:
        return str(name_or_path), ()
    return found[1], tuple(label.strip() for label in found[2].split("+"))


def name_labels(
    id2label: Mapping[Any, Any], home: str, given: tuple[str, ...] = ()
) -> dict[int, str]:
    """Return labels by number: those that were given, or for LABEL_0, LABEL_1, ... the known."""
    labels = dict(sorted((int(number), str(name)) for number, name in id2label.items()))
    names = given
    if not given and all(name == f"LABEL_{number}" for number, name in labels.items()):
        names = KNOWN_LABELS.get("/".join(Path(home).parts[-2:]), ())
    if given and len(given) != len(labels):
        raise ValueError(
            f"{home}[{'+'.join(given)}] names {len(given)} labels, and it has {len(labels)}; name "
            "each, from the first on"
        )
    return dict(enumerate(names)) if len(names) == len(labels) else labels


def config_file(home: str) -> Path:
    """Return where a classifier's config.json is, if it has one; that of a Hub id is fetched."""
    return (Path(home) if Path(home).exists() else download(home, ["config.json"])) / "config.json"


def stored_labels(name_or_path: str | Path) -> dict[int, str]:
    """Return a classifier's labels by its config.json, the Hub's too; none where that is odd."""
    home, given = split_labels(find_guide(name_or_path))
    path = config_file(home)
    stored = read_json(path).get("id2label") if path.is_file() else None
    if not isinstance(stored, dict) or not all(str(number).isdecimal() for number in stored):
        return {}
    return name_labels(stored, home, given)


def check_label(name_or_path: str | Path, label: str | int, of: str) -> None:
    """Raise on a label that a classifier does not have, as far as its config.json tells."""
    if labels := stored_labels(name_or_path):
        label_index(labels, label, of)


def check_control(text: str, *, can_be_judge: bool = False) -> None:
    """Raise on a control that is misspelt, or whose classifier or label is not there."""
    spec = parse_control(text)
    if not (can_be_judge and is_judge(spec.name)):
        check_label(spec.name, spec.label, split_labels(spec.name)[0])


def label_index(id2label: dict[int, str], label: str | int, of: str = "the classifier") -> int:
    """Return the index of a label given by name, in any case if that is clear, or by number.

    A name goes first: labels may be called 0 and 1, or -1, 0 and 1.
    """
    names = {int(index): str(name) for index, name in id2label.items()}
    if isinstance(label, int) and label in names:
        return label
    alike = [index for index, name in names.items() if name.lower() == str(label).lower()]
    exact = [index for index, name in names.items() if name == str(label)]
    numbered = [index for index in names if str(index) == str(label)]
    for indices in (exact, alike, numbered):
        if len(indices) == 1:
            return indices[0]
    listed = ", ".join(f"{index}: {name}" for index, name in sorted(names.items()))
    if alike:
        raise ValueError(
            f"label={label!r} is the name of {len(alike)} labels of {of} ({listed}); give a number"
        )
    unnamed = all(name == f"LABEL_{index}" for index, name in names.items())
    remedy = f"; give a number, or name them: {of}[{'+'.join('ABCDEF'[: len(names)])}]"
    raise ValueError(
        f"label={label!r} is not one of the labels of {of} ({listed}){remedy if unnamed else ''}"
    )


def check_lam(lam: object, of: str = "") -> float:
    """Return a guide's weight as a float, or raise a ValueError; `of` says whose weight it is."""
    try:
        return check("lam", lam, ONE_WEIGHT)
    except ValueError as error:
        raise ValueError(f"{error}{of}; to steer away from a label, use != before it") from None


def is_judge(name_or_path: str | Path) -> bool:
    """Tell whether a name or a folder means a judge of texts that cannot steer (`judges`)."""
    folder = Path(name_or_path)
    if folder.is_dir():
        config = folder / "config.json"
        return config.is_file() and read_json(config).get("model_type") in JUDGES
    return str(name_or_path) == COUNTED

"""A denoiser that listens: off-the-shelf classifiers, or any function, steer what is written.

"sentiment=positive" -> grammar -> loading -> fitting (log_prob) -> gradient (a denoiser)

A guide of your own needs none of these but the last: `guided(denoiser, log_prob, lam)` takes any
function from context ids and logits to one log-probability per row. Names are brought in when they
are first used, so that a control can be checked before torch is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssdlm.guidance.classifiers import TextClassifier, load_classifier, load_text_classifier
    from ssdlm.guidance.fitting import ClassifierGuide, FittedGuide, rows_by_string
    from ssdlm.guidance.grammar import parse_control
    from ssdlm.guidance.loading import classifier_guide, load_guide
    from ssdlm.storage.builtin import builtin_guides

HOMES = {
    "ClassifierGuide": "guidance.fitting",
    "FittedGuide": "guidance.fitting",
    "TextClassifier": "guidance.classifiers",
    "builtin_guides": "storage.builtin",
    "classifier_guide": "guidance.loading",
    "load_classifier": "guidance.classifiers",
    "load_guide": "guidance.loading",
    "load_text_classifier": "guidance.classifiers",
    "parse_control": "guidance.grammar",
    "rows_by_string": "guidance.fitting",
}

__all__ = [
    "ClassifierGuide",
    "FittedGuide",
    "TextClassifier",
    "builtin_guides",
    "classifier_guide",
    "load_classifier",
    "load_guide",
    "load_text_classifier",
    "parse_control",
    "rows_by_string",
]


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(f"ssdlm.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

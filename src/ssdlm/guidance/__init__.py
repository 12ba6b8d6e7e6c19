"""A denoiser that listens: off-the-shelf classifiers, or any function, steer what is written.

"sentiment=positive" -> grammar -> classifiers -> fitting (log_prob) -> gradient (a denoiser)

A guide of your own needs none of these but the last: `guided(denoiser, log_prob, lam)` takes any
function from context ids and logits to one log-probability per row.
"""

from ssdlm.guidance.classifiers import TextClassifier, load_classifier, load_text_classifier
from ssdlm.guidance.fitting import ClassifierGuide, FittedGuide, rows_by_string
from ssdlm.guidance.grammar import classifier_guide, load_guide, parse_control
from ssdlm.storage.builtin import builtin_guides

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

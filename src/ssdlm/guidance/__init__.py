"""Off-the-shelf classifiers as control functions: named, loaded, fitted to a vocabulary.

"sentiment=positive" -> [guides] -> log_prob(context, logits) -> control
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

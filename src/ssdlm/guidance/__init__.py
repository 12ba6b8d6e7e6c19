"""Off-the-shelf classifiers as control functions: wished for, loaded, fitted to a vocabulary.

"sentiment=positive" -> [guides] -> log_prob(context, logits) -> control
"""

from ssdlm.guidance.classifiers import Reader, load_classifier, load_reader
from ssdlm.guidance.fitting import ClassifierGuide, FittedGuide, rows_by_string
from ssdlm.guidance.grammar import builtin_guides, classifier_guide, guide_from, split_wish

__all__ = [
    "ClassifierGuide",
    "FittedGuide",
    "Reader",
    "builtin_guides",
    "classifier_guide",
    "guide_from",
    "load_classifier",
    "load_reader",
    "rows_by_string",
    "split_wish",
]

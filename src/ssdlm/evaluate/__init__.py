"""How good generated text is: perplexity, diversity, and the distance to human text."""

from ssdlm.evaluate.report import Report, show
from ssdlm.evaluate.run import METRICS, evaluate

__all__ = ["METRICS", "Report", "evaluate", "show"]

"""Training a guide, a small sequence classifier, on labelled text.

data.labelled -> model (before training) -> loop (training) -> run (files in, a folder out)
"""

from ssdlm.guidance.training.run import GuideReport, train_guide
from ssdlm.guidance.training.settings import GuideConfig, configure

__all__ = ["GuideConfig", "GuideReport", "configure", "train_guide"]

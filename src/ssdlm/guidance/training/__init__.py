"""Training a guide, a small sequence classifier, on labelled text; and a judge of its work.

data.labelled -> model (before training) -> loop (training) -> run (files in, a folder out); judge
"""

from ssdlm.guidance.training.judge import JudgeReport, train_judge
from ssdlm.guidance.training.run import GuideReport, train_guide
from ssdlm.guidance.training.settings import GuideConfig, configure

__all__ = [
    "GuideConfig",
    "GuideReport",
    "JudgeReport",
    "configure",
    "train_guide",
    "train_judge",
]

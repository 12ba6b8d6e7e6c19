"""Making a guide, a small sequence classifier, out of labelled text.  data.labelled -> [here]"""

from ssdlm.guidance.training.run import GuideReport, train_guide
from ssdlm.guidance.training.settings import GuideConfig, configure

__all__ = ["GuideConfig", "GuideReport", "configure", "train_guide"]

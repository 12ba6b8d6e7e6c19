"""Making a guide, a small sequence classifier, out of labelled text.  data.labelled -> [here]"""

from ssdlm.guidetraining.run import GuideReport, train_guide
from ssdlm.guidetraining.settings import GuideConfig, configure

__all__ = ["GuideConfig", "GuideReport", "configure", "train_guide"]

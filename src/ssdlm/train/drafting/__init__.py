"""Training of drafters: narrow layers beside a frozen model that guess its next tokens.

settings, texts, loss -> loop -> [drafting] -> cli, benchmarks
"""

from ssdlm.train.drafting.loop import DrafterReport, train_drafter
from ssdlm.train.drafting.settings import DraftingConfig, configure
from ssdlm.train.drafting.texts import acceptance

__all__ = ["DrafterReport", "DraftingConfig", "acceptance", "configure", "train_drafter"]

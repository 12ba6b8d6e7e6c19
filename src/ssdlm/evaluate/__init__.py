"""How good generated text is: perplexity, diversity, and the distance to human text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssdlm.evaluate.report import Report, show
    from ssdlm.evaluate.run import METRICS, evaluate

__all__ = ["METRICS", "Report", "evaluate", "show"]


def __getattr__(name: str) -> Any:
    # Lazily: the autoregressive model also writes where the metrics' libraries are missing.
    if name in __all__:
        from ssdlm.evaluate import report, run

        return getattr(run if name in ("METRICS", "evaluate") else report, name)
    raise AttributeError(f"module 'ssdlm.evaluate' has no attribute {name!r}")

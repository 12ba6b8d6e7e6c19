"""A model of this library under lm-evaluation-harness, which the extra `harness` installs.

    python -m ssdlm.evaluate.lm_eval run --model ssdlm --model_args pretrained=DIR --tasks NAME

makes the model known to `lm_eval` and hands it the line; in Python, `register()` does the former.
api, likelihood -> scoring, writing -> adapter -> [harness]
"""

from ssdlm.evaluate.lm_eval.adapter import register

__all__ = ["register"]

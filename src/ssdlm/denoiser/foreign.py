"""Any causal language model of transformers, by its own forward pass.  causal -> [foreign]

What our layers do not do exactly goes this way; the reference loops write its texts.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

from ssdlm.denoiser.causal import CausalDenoiser
from ssdlm.shapes import Block, Tensor


class ForeignDenoiser(CausalDenoiser):
    """A causal language model of transformers, its `past_key_values` being what is kept."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone, self.config = backbone, backbone.config
        self.V = backbone.get_output_embeddings().weight.shape[0]
        self.max_len = getattr(self.config, "max_position_embeddings", None)
        self.keeps_few = "logits_to_keep" in inspect.signature(backbone.forward).parameters

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    def run_words(self, tokens: Block, past: Any, num_read: int) -> tuple[Tensor, Any]:
        few = {"logits_to_keep": num_read} if self.keeps_few else {}
        # A pass writes into what it is given, and a cache stays as it is.
        known = copy.deepcopy(past)
        found = self.backbone(tokens, past_key_values=known, use_cache=True, **few)
        return found.logits[:, -num_read:].float(), found.past_key_values

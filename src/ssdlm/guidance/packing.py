"""A growing guide whose layer is one launch on a GPU.  growing -> [packing] -> engine.controls"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ssdlm.guidance.classifiers import has_independent_labels
from ssdlm.guidance.fitting import FittedGuide
from ssdlm.guidance.growing import GrowingGuide
from ssdlm.guidance.padding import soft_words
from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Simplex, Tensor

MOST_LABELS = 64


def growing_guide(fitted: FittedGuide, lengths: Tensor) -> GrowingGuide:
    """Return a guide that keeps what it has read, by a kernel where there is one for its layer."""
    config = fitted.guide.classifier.config
    is_usual = config.hidden_act == "relu" and config.num_labels <= MOST_LABELS
    is_usual = is_usual and fitted.table.dtype == torch.float32
    if on_gpu(lengths) and is_usual:
        from ssdlm.ops.kernels import guides as kernels

        if kernels.fits(config.hidden_size, config.intermediate_size):
            return PackedGuide(fitted, lengths)
    return GrowingGuide(fitted, lengths)


class PackedGuide(GrowingGuide):
    """A `GrowingGuide` that reads and climbs in one launch, if one position is open."""

    def __init__(self, fitted: FittedGuide, lengths: Tensor) -> None:
        from ssdlm.ops.kernels import guides

        super().__init__(fitted, lengths)
        self.kernels, self.packed = guides, guides.Packed(*self.pack())

    def read_and_climb(self, tokens: Tensor, active: Tensor, logits: Simplex) -> Simplex:
        if logits.shape[1] > 1:
            return super().read_and_climb(tokens, active, logits)
        guide, config = self.guide, self.guide.classifier.config
        soft = soft_words(logits, self.table)
        gradient = self.kernels.climb(
            soft, tokens, active, self.lengths, self.table, self.packed, *self.seen,
            label=guide.label, is_avoided=guide.avoid,
            is_alone=has_independent_labels(guide.classifier),
            has_end=len(self.end.scores) > 0, eps=float(config.layer_norm_eps),
        )  # fmt: skip
        return gradient @ self.table.T

    @torch.no_grad()
    def pack(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return matrices, vectors, the labels' head and places as a kernel reads them."""
        layer, H = self.layer, self.seen.scores.shape[1]
        dense, labels = self.head()
        D, inner = layer.intermediate.dense.weight.T.shape
        width = max(16, 1 << (max(D, inner) - 1).bit_length())

        def wide(x: Tensor) -> Tensor:
            return F.pad(x, (0, width - x.shape[-1]))

        def by_head(x: Tensor) -> Tensor:  # (H, ...) to each of a head's numbers
            return x.repeat_interleave(D // H, 0)

        attention, down = layer.attention.output, layer.output
        matrices = (
            by_head(self.weight[:H]), self.weight[H:], attention.dense.weight,
            layer.intermediate.dense.weight, down.dense.weight, dense.weight,
        )  # fmt: skip
        norms = self.norm, attention.LayerNorm, down.LayerNorm
        (gain, bias), *others = ((norm.weight, norm.bias) for norm in norms)
        vectors = (
            gain, bias, by_head(self.bias[:H]), self.bias[H:],
            attention.dense.bias + self.asking[0], *others[0], layer.intermediate.dense.bias,
            down.dense.bias, *others[1], dense.bias,
        )  # fmt: skip
        square = [F.pad(wide(matrix), (0, 0, 0, width - len(matrix))) for matrix in matrices]
        head = torch.cat((wide(labels.weight), labels.bias.unsqueeze(1)), 1)
        places = [self.places]
        if len(self.end.scores):
            places += [by_head(self.end.scores[0].T).T, self.end.values[0].flatten(1)]
        return (
            torch.stack(square),
            torch.stack([wide(vector) for vector in vectors]),
            head.contiguous(),
            torch.stack([wide(place) for place in places]),
        )

    def head(self) -> tuple[Any, Any]:
        """Return the two products of a classifier's head: RoBERTa's, or BERT's."""
        classifier = self.guide.classifier
        pooler = getattr(classifier.base_model, "pooler", None)
        if pooler is not None:
            return pooler.dense, classifier.classifier
        return classifier.classifier.dense, classifier.classifier.out_proj

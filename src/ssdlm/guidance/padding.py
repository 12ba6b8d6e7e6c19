"""A fitted guide over texts of different lengths.  fitting -> [padding] -> engine.controls

Where texts share a pass each has come to another place. Here they lie in one tensor of a fixed
width, and a mask says where each ends, so that a GPU can repeat the work as one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ssdlm.denoiser.encoder import HEADS
from ssdlm.guidance.classifiers import longest_text
from ssdlm.guidance.fitting import ClassifierGuide, FittedGuide
from ssdlm.shapes import Context, Simplex, Tensor


def can_be_padded(guide: object) -> bool:
    """Tell whether a guide reads the context from its first token on, and may be given too many."""
    if not isinstance(guide, ClassifierGuide) or guide.sees != "context":
        return False
    return guide.classifier.config.model_type in HEADS


def room_of(guide: ClassifierGuide) -> int | None:
    """Return how many tokens of a text a guide can read, None for any number."""
    longest = longest_text(guide.classifier)
    return None if longest is None else longest - sum(map(len, guide.frame))


class PaddedGuide:
    """A `FittedGuide` whose contexts end where `lengths` says, and not with their row."""

    def __init__(self, fitted: FittedGuide, lengths: Tensor, opens: Tensor | None = None) -> None:
        self.guide, self.table = fitted.guide, fitted.table
        self.lengths, self.opens = lengths, opens
        """(N,) tokens of each context, and positions that count behind it, None for all; both may
        change in their place."""
        if lengths.is_cuda:  # where its kernels are made for longer texts and wider heads
            self.guide.classifier.set_attn_implementation("eager")
        words = self.guide.classifier.get_input_embeddings().weight
        self.first, self.last = (words[ids] for ids in self.guide.frame)

    def __call__(self, context: Context, logits: Simplex) -> Tensor:
        """Return log p(label) for each row; differentiable in the logits."""
        return self.log_prob(context, soft_words(logits, self.table))

    def simplex_gradient(self, context: Context, logits: Simplex) -> Simplex:
        """Return the gradient of log p(label) in the probabilities of the open positions."""
        return simplex_gradient(partial(self.log_prob, context), logits, self.table)

    @torch.no_grad()
    def candidates(self, context: Context, tokens: Tensor) -> Tensor:
        """Return log p(label) (N, k) of each text with each of some tokens (N, k) behind it."""
        k = tokens.shape[1]
        many = PaddedGuide(FittedGuide(self.guide, self.table), self.lengths.repeat_interleave(k))
        soft = self.table[tokens].flatten(0, 1).unsqueeze(1)
        return many.log_prob(context.repeat_interleave(k, 0), soft).view_as(tokens)

    def log_prob(self, context: Context, soft: Tensor) -> Tensor:
        """Return log p(label) for contexts with soft embeddings (N, W, D) behind them."""
        (N, W, _), table = soft.shape, self.table
        first, last = (words.expand(N, -1, -1) for words in (self.first, self.last))
        blank = table.new_zeros(N, W + last.shape[1], table.shape[1])
        text = torch.cat((first, table[context], blank), 1)
        start = first.shape[1] + self.lengths
        end = start + (W if self.opens is None else self.opens)
        for place, words in ((start, soft), (end, last)):
            places = place.unsqueeze(1) + torch.arange(words.shape[1], device=context.device)
            text = text.scatter(1, places.unsqueeze(-1).expand_as(words), words)
        column = torch.arange(text.shape[1], device=context.device)
        is_behind = column >= (end + last.shape[1]).unsqueeze(1)
        # Four axes: of fewer a classifier would make its own mask, and look at it on the way.
        mask = is_behind.to(text.dtype).view(N, 1, 1, -1) * torch.finfo(text.dtype).min
        mask = mask.expand(N, 1, text.shape[1], -1)
        scores = self.guide.classifier(inputs_embeds=text, attention_mask=mask).logits
        return self.guide.label_log_prob(scores)


def soft_words(logits: Simplex, table: Tensor) -> Tensor:
    """Return the mean embedding (N, W, D) of what stands at each position, by a table (V, D)."""
    return logits.softmax(-1).to(table.dtype) @ table


def simplex_gradient(
    log_prob: Callable[[Tensor], Tensor], logits: Simplex, table: Tensor
) -> Simplex:
    """Return the gradient in the probabilities of what is a function of `soft_words`.

    It is each token's embedding times the gradient there, so nothing V-wide is walked back.
    """
    soft = soft_words(logits, table).detach()
    with torch.enable_grad():
        soft.requires_grad_()
        (gradient,) = torch.autograd.grad(log_prob(soft).sum(), soft)
    return gradient @ table.T

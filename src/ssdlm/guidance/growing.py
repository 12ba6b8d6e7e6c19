"""A guide of one layer over texts that grow, read token by token.  padding -> [growing] -> engine

A classifier asks its first position alone. In one with a single layer that position sees every
other as it came in, so all that a token does is known once it is decided: a score and a value for
each head. Of a text there is left the logarithm of its summed scores and its mean value; what is
still open, and the token that closes the text, are added to that in each pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ssdlm.guidance.fitting import ClassifierGuide, FittedGuide
from ssdlm.guidance.padding import can_be_padded, simplex_gradient, soft_words
from ssdlm.shapes import Context, Simplex, Tensor


class Seen(NamedTuple):
    """What the first position makes of some others."""

    scores: Tensor
    """(..., H) logits of attention; of several positions, the logarithm of their sum."""
    values: Tensor
    """(..., H, d) what is read there; of several positions, their mean by attention."""


def can_grow(guide: object) -> bool:
    """Tell whether a guide can be read token by token."""
    if not can_be_padded(guide):
        return False
    assert isinstance(guide, ClassifierGuide)
    first, last = guide.frame
    config = guide.classifier.config
    is_single = config.num_hidden_layers == 1 and not config.is_decoder
    return is_single and len(first) == 1 and len(last) <= 1


class GrowingGuide:
    """A `FittedGuide` over N texts; what it has read of them is kept, and not read again."""

    def __init__(self, fitted: FittedGuide, lengths: Tensor) -> None:
        self.guide, self.table = fitted.guide, fitted.table
        self.lengths = lengths
        """(N,) tokens of each text, the one that is read next included; they may change."""
        base = self.guide.classifier.base_model
        self.embeddings, self.layer = base.embeddings, base.encoder.layer[0]
        position = self.embeddings.position_embeddings
        start = 0 if position.padding_idx is None else position.padding_idx + 1
        kind = self.embeddings.token_type_embeddings.weight[0]
        self.places = (position.weight[start:] + kind).detach()
        """(L, D) what is added to a word for where it stands."""
        first, last = self.guide.frame
        words = self.guide.classifier.get_input_embeddings().weight.detach()
        with torch.no_grad():
            self.asking = self.norm(words[first] + self.places[0])
            self.weight, self.bias = self.reading()
            self.start = self.look(self.asking)
            # The token that closes a text, wherever it stands.
            self.end = self.look(self.norm(words[last].unsqueeze(1) + self.places))
        N = len(lengths)
        self.seen = Seen(*(part.repeat(N, *[1] * (part.dim() - 1)) for part in self.start))
        """What is decided of each text, and the token before it."""

    @property
    def norm(self) -> Any:
        return self.embeddings.LayerNorm

    def reading(self) -> tuple[Tensor, Tensor]:
        """Return the product that gives a position's scores and values, (H + D, D) and (H + D)."""
        attention = self.layer.attention.self
        H = attention.num_attention_heads
        query = attention.query(self.asking).view(H, 1, -1) * attention.scaling
        keys, bias = attention.key.weight, attention.key.bias
        asked = query @ keys.view(H, -1, keys.shape[1]), query @ bias.view(H, -1, 1)
        value = attention.value
        return (
            torch.cat((asked[0].squeeze(1), value.weight)),
            torch.cat((asked[1].flatten(), value.bias)),
        )

    def look(self, x: Tensor) -> Seen:
        """Return what the first position makes of others (..., D)."""
        H = self.layer.attention.self.num_attention_heads
        found = F.linear(x, self.weight, self.bias)
        return Seen(found[..., :H], found[..., H:].unflatten(-1, (H, -1)))

    @torch.no_grad()
    def join(self, ids: Context, counts: Tensor, at: Tensor) -> None:
        """Read so many tokens each of the beginnings (n, C) of texts that come to slots `at`."""
        C = ids.shape[1]
        seen = self.look(self.norm(self.table[ids] + self.places[1 : 1 + C]))
        is_text = torch.arange(C, device=ids.device) < counts.unsqueeze(1)
        scores = seen.scores.masked_fill(~is_text.unsqueeze(-1), -torch.inf)
        start = self.start.scores.expand(len(ids), 1, -1)
        scores = torch.cat((start, scores), 1)
        values = torch.cat((self.start.values.expand(len(ids), 1, -1, -1), seen.values), 1)
        self.seen.scores[at] = scores.logsumexp(1)
        self.seen.values[at] = (scores.softmax(1).unsqueeze(-1) * values).sum(1)

    @torch.no_grad()
    def read(self, tokens: Tensor, active: Tensor) -> None:
        """Read the last token (N, 1) of each active text."""
        new = self.look(self.norm(self.table[tokens[:, 0]] + self.places[self.lengths]))
        is_active = active.bool().unsqueeze(1)
        before = self.seen
        share = (new.scores - before.scores).sigmoid() * is_active
        whole = torch.logaddexp(before.scores, new.scores)
        before.scores.copy_(whole.where(is_active, before.scores))
        before.values.add_(share.unsqueeze(-1) * (new.values - before.values))

    def __call__(self, context: Context, logits: Simplex) -> Tensor:
        """Return log p(label) for each row; differentiable in the logits."""
        del context  # it was read before
        return self.log_prob(soft_words(logits, self.table))

    def simplex_gradient(self, context: Context, logits: Simplex) -> Simplex:
        """Return the gradient of log p(label) in the probabilities of the open positions."""
        del context
        return simplex_gradient(self.log_prob, logits, self.table)

    def read_and_climb(self, tokens: Tensor, active: Tensor, logits: Simplex) -> Simplex:
        """Return `simplex_gradient` after the last token (N, 1) of each active text is read."""
        self.read(tokens, active)
        return self.simplex_gradient(tokens, logits)

    def log_prob(self, soft: Tensor) -> Tensor:
        """Return log p(label) for texts with open positions (N, W, D) behind them."""
        W = soft.shape[1]
        place = self.lengths.unsqueeze(1) + torch.arange(1, W + 1, device=soft.device)
        open_ = self.look(self.norm(soft + self.places[place]))
        return self.conclude(self.seen, open_, self.lengths + (W + 1))

    @torch.no_grad()
    def candidates(self, context: Context, tokens: Tensor) -> Tensor:
        """Return log p(label) (N, k) of each text with each of some tokens (N, k) behind it."""
        del context
        k, place = tokens.shape[1], self.places[self.lengths + 1].unsqueeze(1)
        next_ = self.look(self.norm(self.table[tokens] + place))
        seen = Seen(*(part.repeat_interleave(k, 0) for part in self.seen))
        open_ = Seen(*(part.flatten(0, 1).unsqueeze(1) for part in next_))
        closing = (self.lengths + 2).repeat_interleave(k)
        return self.conclude(seen, open_, closing).view_as(tokens)

    def conclude(self, seen: Seen, open_: Seen, closing: Tensor) -> Tensor:
        """Return log p(label) of texts with something open behind them that close at places."""
        parts = [Seen(*(part.unsqueeze(1) for part in seen)), open_]
        if len(self.end.scores):
            parts.append(Seen(*(part[0, closing].unsqueeze(1) for part in self.end)))
        shares = torch.cat([part.scores for part in parts], 1).softmax(1)
        values = torch.cat([part.values for part in parts], 1)
        read = (shares.unsqueeze(-1) * values).sum(1).flatten(1)
        layer, classifier = self.layer, self.guide.classifier
        hidden = layer.feed_forward_chunk(layer.attention.output(read, self.asking)).unsqueeze(1)
        pooler = getattr(classifier.base_model, "pooler", None)
        scores = classifier.classifier(hidden if pooler is None else pooler(hidden))
        return self.guide.label_log_prob(scores)

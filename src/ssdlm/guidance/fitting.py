"""A classifier fitted to a model's vocabulary.  classifiers -> [fitting] -> control

A classifier reads a simplex as it reads tokens: the probabilities weigh its word embeddings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from ssdlm.guidance.classifiers import (
    can_pad,
    frame_ids,
    has_independent_labels,
    longest_text,
    one_line,
    without_bars,
    word_table,
)
from ssdlm.shapes import Context, Simplex, Tensor

LAMS = {"logits": 2000.0, "simplex": 10.0, "words": 5.0}
"""The weight of a guide that suggests none, by where its gradient is taken; the first is the
largest of the paper's."""
MAX_LAM = 1e6
"""Beyond, products leave what float32 can hold."""


@dataclass(frozen=True)
class ClassifierGuide:
    """A sequence classifier of `transformers` and the label to seek, or to avoid."""

    classifier: Any
    label: int
    sees: str = "context"
    """The context and the block (the paper), or the block alone (the authors' code)."""
    has_special_tokens: bool = True
    """Frame the text as the classifier's own tokenizer would (the authors' code does not)."""
    token_strings: tuple[str, ...] = ()
    """The classifier's vocabulary in id order; empty when its tokenizer is not at hand."""
    end_of_text: int | None = None
    """The classifier's own end-of-text token."""
    avoid: bool = False
    """Raise the log-probability of anything but the label."""
    lam: float | None = None
    """The weight it is to have; None for what its config.json suggests."""
    name: str = ""
    """Where it came from."""

    @property
    def called(self) -> str:
        """What it is called in errors."""
        return self.name or "the classifier"

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text, if it is to be framed."""
        if not self.has_special_tokens:
            return [], []
        return frame_ids(self.classifier.config, self.token_strings)

    def suggested(self, gradient: str) -> float:
        """Return its weight: as given, else `guide_lam` of its config.json, else the usual one."""
        if self.lam is not None:
            return self.lam
        told = getattr(self.classifier.config, "guide_lam", None)
        own = told if isinstance(told, dict) else {} if told is None else {"logits": told}
        value = own.get(gradient, LAMS[gradient])
        if type(value) not in (int, float):
            raise ValueError(
                f"guide_lam={told!r} in the config.json of {self.name} is no weight; write a number"
            )
        check_lam(value, f", guide_lam in the config.json of {self.name},")
        return float(value)

    def verdict(self, scores: Tensor) -> Tensor:
        """Return the log-probability that each row has the label, or has it not."""
        label = self.label
        if has_independent_labels(self.classifier):
            return F.logsigmoid(-scores[:, label] if self.avoid else scores[:, label])
        log_probs = scores.log_softmax(-1)
        if not self.avoid:
            return log_probs[:, label]
        # log(1 - p) would cancel where the label is certain, which is where it matters.
        others = [other for other in range(log_probs.shape[1]) if other != label]
        return log_probs[:, others].logsumexp(-1)

    def fit(
        self, *, V: int, token_strings: Sequence[str] = (), end_of_text: int | None = None
    ) -> FittedGuide:
        """Return the log_prob for a model with this vocabulary."""
        before, after = self.frame
        words = word_table(self.classifier, [*before, *after], self.called)
        if token_strings and self.token_strings:
            ends = end_of_text, self.end_of_text
            rows = rows_by_string(token_strings, self.token_strings, *ends, of=self.called)
        elif len(words) == V:
            rows = torch.arange(V)
        else:
            raise ValueError(
                f"{self.called} has {len(words)} tokens where the model has {V}, and without both "
                "tokenizers they cannot be matched; use a classifier of the same tokenizer"
            )
        if int(rows.max()) >= len(words):
            raise ValueError(
                f"{self.called} has embeddings of {len(words)} tokens and a "
                f"tokenizer of {len(self.token_strings)}; give the tokenizer it was trained with"
            )
        table = words[rows.to(words.device)]
        # A model's table may be longer than its vocabulary; what no token means says nothing.
        fitted = FittedGuide(self, F.pad(table, (0, 0, 0, V - len(table))))
        fitted.try_out(V)
        return fitted


@dataclass(frozen=True)
class FittedGuide:
    """f_phi(y | w_logits, context) for one model's vocabulary (Eq. 23)."""

    guide: ClassifierGuide
    table: Tensor
    """The classifier's embedding of each of the model's tokens (V, D)."""

    def __call__(self, context: Context, logits: Simplex) -> Tensor:
        """Return log p(label) for each row; differentiable in the logits."""
        table = self.table.to(logits.device)
        text = logits.softmax(-1).to(table.dtype) @ table
        if self.guide.sees == "context":
            text = torch.cat((table[context], text), 1)
        return self.guide.verdict(self.scores(self.frame(text)))

    def scores(self, text: Tensor) -> Tensor:
        """Return the classifier's logits for each row of embeddings.

        Rows are of one length; yet a decoder that has no padding token takes one at a time.
        """
        classifier = self.guide.classifier
        size = len(text) if can_pad(classifier) else 1
        return torch.cat([classifier(inputs_embeds=rows).logits for rows in text.split(size)])

    @torch.no_grad()
    def try_out(self, V: int) -> None:
        """Raise if the classifier cannot read two rows, before anything is written."""
        device = self.table.device
        context = torch.zeros(2, 1, dtype=torch.long, device=device)
        try:
            with without_bars():
                found = self(context, torch.zeros(2, 1, V, device=device))
        except Exception as error:
            raise ValueError(
                f"{self.guide.called} cannot read what is still uncertain ({one_line(error)}); use "
                "a classifier such as BERT's or RoBERTa's"
            ) from error
        if not found.isfinite().all():
            raise ValueError(f"{self.guide.called} gives no number; use another classifier")

    def frame(self, text: Tensor) -> Tensor:
        """Return the latest part that the classifier has room for, between its special tokens."""
        before, after = self.guide.frame
        room = longest_text(self.guide.classifier)
        if room is not None:
            text = text[:, max(0, text.shape[1] - (room - len(before) - len(after))) :]
        words = self.guide.classifier.get_input_embeddings().weight
        first, last = (words[ids].expand(len(text), -1, -1) for ids in (before, after))
        return torch.cat((first, text, last), 1)


def rows_by_string(
    wanted: Sequence[str],
    there: Sequence[str],
    end_wanted: int | None,
    end_there: int | None,
    of: str = "the classifier",
) -> Tensor:
    """Return for each of a model's tokens the classifier's token of the same string.

    The two end-of-text tokens stand for each other whatever they are called: RoBERTa's vocabulary
    has GPT-2's too, which it never met.
    """
    index = {string: row for row, string in enumerate(there)}
    if end_wanted is not None and end_there is not None:
        index[wanted[end_wanted]] = end_there
    missing = [string for string in wanted if string not in index]
    if missing:
        raise ValueError(
            f"the vocabulary of {of} lacks {len(missing)} of the model's {len(wanted)} tokens "
            f"(such as {', '.join(map(repr, missing[:3]))}); use a classifier of the same tokenizer"
        )
    return torch.tensor([index[string] for string in wanted])


def check_lam(lam: Any, of: str = "") -> None:
    """Raise unless a number can be a guide's weight."""
    is_number = isinstance(lam, int | float) and not isinstance(lam, bool)
    if not (is_number and 0 <= lam <= MAX_LAM):
        raise ValueError(
            f"lam={lam!r}{of} is not a weight from 0 to {MAX_LAM:,.0f}, and 2000 is the paper's "
            "most; to steer away from a label, write CLASSIFIER!=LABEL"
        )


def refuse_contradictions(guides: Sequence[Any]) -> None:
    """Raise where one label is to be sought and avoided at once."""
    known = [guide for guide in guides if isinstance(guide, ClassifierGuide) and guide.name]
    sought = {(place_of(guide), guide.label) for guide in known if not guide.avoid}
    for guide in known:
        if guide.avoid and (place_of(guide), guide.label) in sought:
            label = guide.classifier.config.id2label[guide.label]
            raise ValueError(
                f"{guide.name}: label {label!r} is to be sought and avoided; drop one of the two"
            )


def place_of(guide: ClassifierGuide) -> str:
    """Return a guide's folder in one spelling, or its name."""
    return os.path.realpath(guide.name) if os.path.isdir(guide.name) else guide.name


def suggested_lam(control: Any, gradient: str) -> float:
    """Return the weight of a guide, or of any other control function, unless one is given."""
    if isinstance(control, ClassifierGuide):
        return control.suggested(gradient)
    return LAMS[gradient]

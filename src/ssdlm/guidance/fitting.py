"""A classifier as a guide, fitted to a model's vocabulary.  classifiers -> [fitting] -> gradient

A classifier reads a simplex as it reads tokens: the probabilities weigh its word embeddings. So it
needs an embedding for each token of the language model, and `ClassifierGuide.fit` finds them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch.nn import functional as F

from ssdlm.guidance.classifiers import (
    NoGradientError,
    SequenceClassifier,
    can_pad,
    frame_ids,
    has_independent_labels,
    longest_text,
    one_line,
    word_table,
)
from ssdlm.guidance.gradient import LogProb
from ssdlm.guidance.grammar import check_lam
from ssdlm.progress import without_bars
from ssdlm.shapes import Context, Simplex, Tensor
from ssdlm.tokenizer import Tokenizer

DEFAULT_LAM = {"logits": 2000.0, "simplex": 10.0, "words": 4.0, "fudge": 1.0}
"""The weight of a guide that suggests none, by where its gradient is taken; the first is the
largest of the paper's."""
FAR_ABOVE, FAR_BELOW = 10, 50
"""How many times more, or less, than a guide's usual weight is likely a slip of scales."""


@dataclass(frozen=True)
class ClassifierGuide:
    """A sequence classifier of `transformers` and the label to seek, or to avoid.

    This is all that is known of a guide before it meets a model: its labels are those of
    `classifier.config.id2label`, its vocabulary is `token_strings`, and `suggested` is its weight.
    """

    classifier: SequenceClassifier
    label: int
    """The number of the label in the classifier's id2label."""
    sees: str = "context"
    """The context and the block (the paper), or the block alone (the authors' code)."""
    has_special_tokens: bool = True
    """Frame the text as the classifier's own tokenizer would (the authors' code does not)."""
    token_strings: tuple[str, ...] = ()
    """The classifier's vocabulary in id order; empty if it came without a tokenizer."""
    end_of_text: int | None = None
    """The classifier's own end-of-text token."""
    avoid: bool = False
    """Raise the log-probability of anything but the label."""
    lam: float | None = None
    """The weight that the user gave; None for what its config.json suggests."""
    name: str = ""
    """The folder or Hub id that it was loaded from, or what it is called."""
    home: str = ""
    """Where its tokenizer is."""
    tokenizer: Tokenizer | None = None
    """What it reads texts with instead, where that is a model's (`slim`)."""

    @property
    def title(self) -> str:
        """What error messages call it."""
        return self.name or "the classifier"

    @property
    def digest(self) -> str:
        """The SHA-256 of its weights and its vocabulary."""
        state = hashlib.sha256(repr((self.token_strings, self.end_of_text)).encode())
        for name, weight in sorted(self.classifier.state_dict().items()):
            state.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            state.update(weight.cpu().contiguous().view(torch.uint8).numpy())
        return state.hexdigest()

    @cached_property
    def opposite(self) -> ClassifierGuide:
        """The guide that avoids what this one seeks, or seeks what it avoids; always the same."""
        return replace(self, avoid=not self.avoid)

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text, if it is to be framed."""
        if not self.has_special_tokens:
            return [], []
        return frame_ids(self.classifier.config, self.token_strings)

    def suggested(self, gradient: str) -> float:
        """Return its weight: as given, else its usual one."""
        return self.usual(gradient) if self.lam is None else self.lam

    def usual(self, gradient: str) -> float:
        """Return its weight where none is given: `guide_lam` of its config.json, or the default."""
        guide_lam = getattr(self.classifier.config, "guide_lam", None)
        return usual_lam(guide_lam, gradient, self.name)

    def label_log_prob(self, scores: Tensor) -> Tensor:
        """Return the log-probability that each row has the label, or has another if `avoid`."""
        label = self.label
        if has_independent_labels(self.classifier):
            return F.logsigmoid(-scores[:, label] if self.avoid else scores[:, label])
        log_probs = scores.log_softmax(-1)
        if not self.avoid:
            return log_probs[:, label]
        # log(1 - p) would cancel where the label is certain, which is where it matters.
        is_it = torch.arange(log_probs.shape[1], device=scores.device) == label
        return log_probs.masked_fill(is_it, -torch.inf).logsumexp(-1)

    def fit(
        self, *, V: int, token_strings: Sequence[str] = (), end_of_text: int | None = None
    ) -> FittedGuide:
        """Return the log_prob for a language model with this vocabulary.

        Tokens are matched by their strings; without both tokenizers the ids must be the same.
        """
        if self.classifier.config.is_encoder_decoder:
            raise NoGradientError(
                f"{self.title} is an encoder with a decoder, which reads ids alone; use a "
                "classifier such as BERT's or RoBERTa's, which can read what is still uncertain"
            )
        before, after = self.frame
        words = word_table(self.classifier, [*before, *after], self.title)
        if token_strings and self.token_strings:
            ends = end_of_text, self.end_of_text
            rows = rows_by_string(token_strings, self.token_strings, *ends, of=self.title)
        elif len(words) == V:
            rows = torch.arange(V)
        else:
            raise NoGradientError(
                f"{self.title} has {len(words)} tokens where the model has {V}, and without both "
                "tokenizers they cannot be matched; use a classifier of the same tokenizer"
            )
        if int(rows.max()) >= len(words):
            raise ValueError(
                f"{self.title} has embeddings of {len(words)} tokens and a "
                f"tokenizer of {len(self.token_strings)}; give the tokenizer it was trained with"
            )
        table = words[rows.to(words.device)]
        # A model may have more logits than tokens; those mean nothing to the classifier.
        fitted = FittedGuide(self, F.pad(table, (0, 0, 0, V - len(table))))
        fitted.check(V)
        return fitted


@dataclass(frozen=True)
class FittedGuide:
    """f_phi(y | w_logits, context) for one model's vocabulary (Eq. 23)."""

    guide: ClassifierGuide
    table: Tensor
    """The classifier's embedding of each of the model's tokens (V, D)."""

    def __call__(self, context: Context, logits: Simplex) -> Tensor:
        """Return log p(label) for each row; differentiable in the logits."""
        seen = context if self.guide.sees == "context" else context[:, :0]
        return self.guide.label_log_prob(self.read(seen, logits))

    @torch.no_grad()
    def label_probs(self, tokens: Context, logits: Simplex) -> dict[str, float]:
        """Return the probability of each label for one row: tokens, and behind them open ones."""
        scores, classifier = self.read(tokens, logits)[0], self.guide.classifier
        probs = scores.sigmoid() if has_independent_labels(classifier) else scores.softmax(-1)
        names = classifier.config.id2label
        return {str(names[label]): prob for label, prob in enumerate(probs.tolist())}

    def read(self, tokens: Context, logits: Simplex) -> Tensor:
        """Return the classifier's logits for rows of tokens with open positions behind them."""
        table = self.table.to(logits.device)
        text = torch.cat((table[tokens], logits.softmax(-1).to(table.dtype) @ table), 1)
        return self.scores(self.frame(text))

    def scores(self, text: Tensor) -> Tensor:
        """Return the classifier's logits for each row of embeddings.

        Rows are of one length; still, a decoder without a padding token takes one at a time.
        """
        classifier = self.guide.classifier
        size = len(text) if can_pad(classifier) else 1
        return torch.cat([classifier(inputs_embeds=rows).logits for rows in text.split(size)])

    @torch.no_grad()
    def check(self, V: int) -> None:
        """Raise if the classifier cannot read two rows, before anything is written."""
        device = self.table.device
        context = torch.zeros(2, 1, dtype=torch.long, device=device)
        try:
            with without_bars():
                found = self(context, torch.zeros(2, 1, V, device=device))
        except Exception as error:
            raise NoGradientError(
                f"{self.guide.title} cannot read what is still uncertain ({one_line(error)}); use "
                "a classifier such as BERT's or RoBERTa's"
            ) from error
        if not found.isfinite().all():
            raise ValueError(f"{self.guide.title} gives no finite number; use another classifier")

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
    model_tokens: Sequence[str],
    classifier_tokens: Sequence[str],
    model_end: int | None,
    classifier_end: int | None,
    of: str = "the classifier",
) -> Tensor:
    """Return for each of a model's tokens the classifier's token of the same string.

    The two end-of-text tokens stand for each other whatever they are called: RoBERTa's vocabulary
    has GPT-2's too, but was never trained on it.
    """
    index = {string: row for row, string in enumerate(classifier_tokens)}
    if model_end is not None and classifier_end is not None:
        index[model_tokens[model_end]] = classifier_end
    missing = [string for string in model_tokens if string not in index]
    if missing:
        raise NoGradientError(
            f"the vocabulary of {of} lacks {len(missing)} of the model's {len(model_tokens)} "
            f"tokens (such as {', '.join(map(repr, missing[:3]))}); use a classifier of the same "
            "tokenizer"
        )
    return torch.tensor([index[string] for string in model_tokens])


def usual_lam(guide_lam: object, gradient: str, of: str) -> float:
    """Return the weight of a guide by the `guide_lam` of its config.json; `of` is its name.

    It is a number for the paper's gradient, or an object with one for each kind.
    """
    by_gradient = guide_lam if isinstance(guide_lam, dict) else {"logits": guide_lam}
    value = by_gradient.get(gradient)
    if value is None:
        return DEFAULT_LAM[gradient]
    if type(value) not in (int, float):
        raise ValueError(
            f"guide_lam={guide_lam!r} in the config.json of {of} is no weight; write a number"
        )
    return check_lam(value, f" (guide_lam in the config.json of {of})")


def refuse_contradictions(guides: Sequence[object]) -> None:
    """Raise where one label of one classifier is to be sought and avoided at once."""

    def target(guide: ClassifierGuide) -> tuple[str, int]:
        is_folder = os.path.isdir(guide.name)  # which has many spellings
        return os.path.realpath(guide.name) if is_folder else guide.name, guide.label

    named = [guide for guide in guides if isinstance(guide, ClassifierGuide) and guide.name]
    sought = {target(guide) for guide in named if not guide.avoid}
    for guide in named:
        if guide.avoid and target(guide) in sought:
            label = guide.classifier.config.id2label[guide.label]
            raise ValueError(
                f"{guide.name}: label {label!r} is to be sought and avoided; drop one of the two"
            )


def out_of_scale(guide: ClassifierGuide | LogProb, lam: float, gradient: str) -> str:
    """Return what is odd about a weight of a classifier under a gradient; "" if nothing is."""
    if not isinstance(guide, ClassifierGuide) or lam == 0:
        return ""  # a function of one's own has a scale of its own
    usual = guide.usual(gradient)
    if lam > FAR_ABOVE * usual:
        where, what = "above", "the text may become a list of its favourite words"
    elif lam < usual / FAR_BELOW:
        where, what = "below", "the text may stay as it is"
    else:
        return ""
    return (
        f"lam={lam:g} of {guide.title} is far {where} what is usual with gradient={gradient}, "
        f"{usual:g}: {what}"
    )


def suggested_lam(control: ClassifierGuide | LogProb, gradient: str) -> float:
    """Return the weight that a guide suggests; for any other control function the default."""
    if isinstance(control, ClassifierGuide):
        return control.suggested(gradient)
    return DEFAULT_LAM[gradient]

"""Off-the-shelf classifiers as control functions: loading them, and fitting them to a vocabulary.

    Hub id or folder -> [guides] -> log_prob(context, logits) -> control

A classifier reads a simplex as it reads tokens: the probabilities weigh its word embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from ssdlm.config import choose
from ssdlm.shapes import Context, Simplex, Tensor

SEES = ("context", "block")


@dataclass(frozen=True)
class ClassifierGuide:
    """A sequence classifier of `transformers` and the label to seek."""

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

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text, if it is to be framed."""
        if not self.has_special_tokens:
            return [], []
        return frame_ids(self.classifier.config, self.token_strings)

    def fit(
        self, *, V: int, token_strings: Sequence[str] = (), end_of_text: int | None = None
    ) -> FittedGuide:
        """Return the log_prob for a model with this vocabulary."""
        words = self.classifier.get_input_embeddings().weight.detach()
        if token_strings and self.token_strings:
            rows = rows_by_string(token_strings, self.token_strings, end_of_text, self.end_of_text)
        elif len(words) == V:
            rows = torch.arange(V)
        else:
            raise ValueError(
                f"the classifier has {len(words)} tokens where the model has {V}, and without both "
                "tokenizers they cannot be matched; use a classifier of the same tokenizer"
            )
        table = words[rows.to(words.device)]
        # A model's table may be longer than its vocabulary; what no token means says nothing.
        return FittedGuide(self, F.pad(table, (0, 0, 0, V - len(table))))


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
        scores = self.guide.classifier(inputs_embeds=self.frame(text)).logits
        return scores.log_softmax(-1)[:, self.guide.label]

    def frame(self, text: Tensor) -> Tensor:
        """Return the latest part that the classifier has room for, between its special tokens."""
        before, after = self.guide.frame
        room = longest_text(self.guide.classifier)
        if room is not None:
            text = text[:, max(0, text.shape[1] - (room - len(before) - len(after))) :]
        words = self.guide.classifier.get_input_embeddings().weight
        first, last = (words[ids].expand(len(text), -1, -1) for ids in (before, after))
        return torch.cat((first, text, last), 1)


def classifier_guide(
    name_or_path: str | Path,
    label: str | int,
    *,
    sees: str = "context",
    has_special_tokens: bool = True,
    device: str = "cpu",
) -> ClassifierGuide:
    """Load a sequence classifier by Hub id or folder, to seek one of its labels."""
    choose("sees", sees, SEES)
    classifier = load_classifier(name_or_path).to(device)
    strings, end_of_text = vocabulary_of(name_or_path)
    return ClassifierGuide(
        classifier,
        label_index(classifier.config.id2label, label),
        sees,
        has_special_tokens,
        strings,
        end_of_text,
    )


def load_classifier(name_or_path: str | Path) -> Any:
    """Return a trained sequence classifier, frozen; a model without a trained head is refused."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        classifier, report = AutoModelForSequenceClassification.from_pretrained(
            str(name_or_path), output_loading_info=True, trust_remote_code=False
        )
    except Exception as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{name_or_path} is not a sequence classifier that can be loaded ({told}); "
            "give a Hub id or a folder with config.json and its weights"
        ) from error
    finally:
        if had_bar:
            logging.enable_progress_bar()
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])[0]
        raise ValueError(
            f"{name_or_path} has no trained weights for {missing}; give a model that was trained "
            "as a sequence classifier"
        )
    return classifier.eval().requires_grad_(False)


def label_index(id2label: dict[int, str], label: str | int) -> int:
    """Return the index of a label given by name or number."""
    names = {int(index): str(name) for index, name in id2label.items()}
    for index, name in names.items():
        if label == index or str(label).lower() == name.lower() or str(label) == str(index):
            return index
    listed = ", ".join(f"{index}: {name}" for index, name in sorted(names.items()))
    raise ValueError(f"label={label!r} is not one of the classifier's labels ({listed})")


def vocabulary_of(name_or_path: str | Path) -> tuple[tuple[str, ...], int | None]:
    """Return a classifier's token strings and end-of-text token; nothing if it has no tokenizer."""
    from ssdlm.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(str(name_or_path))
    except (ValueError, OSError):
        return (), None
    return tuple(tokenizer.token_strings()), tokenizer.end_of_text


def rows_by_string(
    wanted: Sequence[str], there: Sequence[str], end_wanted: int | None, end_there: int | None
) -> Tensor:
    """Return for each of a model's tokens the classifier's token of the same string.

    The two end-of-text tokens stand for each other whatever they are called.
    """
    index = {string: row for row, string in enumerate(there)}
    if end_wanted is not None and end_there is not None:
        index.setdefault(wanted[end_wanted], end_there)
    missing = [string for string in wanted if string not in index]
    if missing:
        raise ValueError(
            f"the classifier's vocabulary lacks {len(missing)} of the model's {len(wanted)} tokens "
            f"(such as {', '.join(map(repr, missing[:3]))}); use a classifier of the same tokenizer"
        )
    return torch.tensor([index[string] for string in wanted])


def frame_ids(config: Any, token_strings: Sequence[str] = ()) -> tuple[list[int], list[int]]:
    """Return the ids that open and close a text, from a configuration or, as BERT's, by name."""
    ends = []
    for key, name in (("bos_token_id", "[CLS]"), ("eos_token_id", "[SEP]")):
        token = getattr(config, key, None)
        if token is None and name in token_strings:
            token = token_strings.index(name)
        ends.append([] if token is None else [token])
    return ends[0], ends[1]


def longest_text(classifier: Any) -> int | None:
    """Return how many positions a classifier has room for, None if it says nothing."""
    from ssdlm.denoiser.encoder import longest_input

    return longest_input(classifier)

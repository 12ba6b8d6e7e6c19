"""Sequence classifiers of `transformers`: loaded, framed, and reading finished texts.

folder or Hub id -> [classifiers] -> fitting; evaluate
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ssdlm.shapes import Tensor
from ssdlm.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Reader:
    """A classifier with its own tokenizer: what it thinks of finished texts."""

    classifier: Any
    tokenizer: Tokenizer

    @property
    def labels(self) -> list[str]:
        """The names of the labels, by number."""
        names = self.classifier.config.id2label
        return [str(names[index]) for index in range(len(names))]

    def encode(self, texts: Sequence[str], max_tokens: int | None = None) -> list[list[int]]:
        """Return each text's ids between the special tokens; of a long text the latest part."""
        before, after = frame_ids(self.classifier.config, self.tokenizer.token_strings())
        rooms = [room for room in (longest_text(self.classifier), max_tokens) if room is not None]
        room = min(rooms) - len(before) - len(after) if rooms else None
        return [
            before + (ids if room is None else ids[max(0, len(ids) - room) :]) + after
            for ids in self.tokenizer.encode_plain(texts)
        ]

    @torch.no_grad()
    def log_probs(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the log-probability of every label for every text (texts, labels)."""
        rows = self.encode(texts)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        scores = torch.empty(len(rows), len(self.labels))
        size = batch_size if can_pad(self.classifier) else 1
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            ids, mask = padded([rows[index] for index in chosen], pad_id(self.classifier))
            device = self.classifier.device
            found = self.classifier(ids.to(device), attention_mask=mask.to(device)).logits
            scores[chosen] = found.float().cpu()
        if has_independent_labels(self.classifier):
            return torch.nn.functional.logsigmoid(scores)
        return scores.log_softmax(-1)


def load_reader(name_or_path: str | Path, device: str = "cpu") -> Reader:
    """Return a classifier with its tokenizer, by Hub id or folder."""
    return Reader(load_classifier(name_or_path).to(device), load_tokenizer(str(name_or_path)))


def load_classifier(name_or_path: str | Path) -> Any:
    """Return a trained sequence classifier, frozen; a model without a trained head is refused."""
    from transformers import AutoModelForSequenceClassification

    try:
        with without_bars():
            # Weights may be stored by halves; a gradient through them is wanted in full.
            classifier, report = AutoModelForSequenceClassification.from_pretrained(
                str(name_or_path),
                output_loading_info=True,
                trust_remote_code=False,
                dtype=torch.float32,
            )
    except Exception as error:
        raise ValueError(
            f"{name_or_path} is not a sequence classifier that can be loaded ({one_line(error)}); "
            "give a Hub id or a folder with config.json and its weights"
        ) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])[0]
        raise ValueError(
            f"{name_or_path} has no trained weights for {missing}; give a model that was trained "
            "as a sequence classifier"
        )
    numbers = sorted(int(number) for number in classifier.config.id2label)
    if numbers != list(range(len(numbers))):
        raise ValueError(
            f"{name_or_path} numbers its labels {', '.join(map(str, numbers))}; number them from 0 "
            "on, as its head does, in id2label of its config.json"
        )
    if not has_numbers(classifier):
        raise ValueError(f"{name_or_path} has weights that are no numbers; train it anew")
    return classifier.eval().requires_grad_(False)


def one_line(error: Exception) -> str:
    """Return what an error says, in one line of no great length."""
    told = str(error)
    if "ignore_mismatched_sizes" in told or "above report" in told:
        return "its weights have other sizes than its config.json says"
    return textwrap.shorten(told, 300, placeholder=" ...") or type(error).__name__


def has_numbers(classifier: Any) -> bool:
    """Tell whether all weights are numbers; a training that went wrong leaves others."""
    return all(bool(weight.isfinite().all()) for weight in classifier.parameters())


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers' own progress bars and load reports from the terminal."""
    from transformers.utils import logging

    had_bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bar:
            logging.enable_progress_bar()


def label_index(id2label: dict[int, str], label: str | int, of: str = "the classifier") -> int:
    """Return the index of a label given by name, in any case if that is clear, or by number.

    A name goes first: labels may be called 0 and 1, or -1, 0 and 1.
    """
    names = {int(index): str(name) for index, name in id2label.items()}
    if isinstance(label, int) and label in names:
        return label
    alike = [index for index, name in names.items() if name.lower() == str(label).lower()]
    exact = [index for index, name in names.items() if name == str(label)]
    numbered = [index for index in names if str(index) == str(label)]
    for found in (exact, alike, numbered):
        if len(found) == 1:
            return found[0]
    listed = ", ".join(f"{index}: {name}" for index, name in sorted(names.items()))
    if alike:
        raise ValueError(
            f"label={label!r} is the name of {len(alike)} labels of {of} ({listed}); give a number"
        )
    raise ValueError(f"label={label!r} is not one of the labels of {of} ({listed})")


def has_independent_labels(classifier: Any) -> bool:
    """Tell whether each label has a probability of its own, as toxicity classifiers often do."""
    config = classifier.config
    return config.problem_type == "multi_label_classification" or config.num_labels == 1


def vocabulary_of(name_or_path: str | Path) -> tuple[tuple[str, ...], int | None]:
    """Return a classifier's token strings and end-of-text token; nothing if it has no tokenizer.

    A tokenizer that is there and cannot be read is an error: without it nothing would be matched.
    """
    try:
        tokenizer = load_tokenizer(str(name_or_path))
    except (ValueError, OSError):
        if (Path(name_or_path) / "tokenizer.json").exists():
            raise
        return (), None
    return tuple(tokenizer.token_strings()), tokenizer.end_of_text


def frame_ids(config: Any, token_strings: Sequence[str] = ()) -> tuple[list[int], list[int]]:
    """Return the ids that open and close a text, from a configuration or, as BERT's, by name."""
    ends = []
    for key, name in (("bos_token_id", "[CLS]"), ("eos_token_id", "[SEP]")):
        token = getattr(config, key, None)
        if token is None and name in token_strings:
            token = token_strings.index(name)
        if isinstance(token, list | tuple):  # several ends for generation; the first is the usual
            token = token[0] if token else None
        ends.append([] if token is None else [token])
    return ends[0], ends[1]


def word_table(classifier: Any, special: Sequence[int], name: str) -> Tensor:
    """Return a classifier's embeddings of words, in which its special tokens must be."""
    try:
        table = classifier.get_input_embeddings().weight.detach()
    except (NotImplementedError, AttributeError) as error:
        raise ValueError(
            f"{name} has no table of word embeddings; use a classifier such as BERT's or RoBERTa's"
        ) from error
    outside = [token for token in special if not 0 <= token < len(table)]
    if outside:
        raise ValueError(
            f"{name} has embeddings of {len(table)} tokens, and its config.json names the special "
            f"token {outside[0]}; put bos_token_id, eos_token_id and pad_token_id right there"
        )
    return table


def longest_text(classifier: Any) -> int | None:
    """Return how many positions a classifier has room for, None if it says nothing."""
    from ssdlm.denoiser.encoder import longest_input

    return longest_input(classifier)


def can_pad(classifier: Any) -> bool:
    """Tell whether a classifier reads several rows at once; a decoder may know no padding."""
    return getattr(classifier.config, "pad_token_id", None) is not None


def pad_id(classifier: Any) -> int:
    """Return the id that fills short rows; any will do where there is none, for it is masked."""
    return getattr(classifier.config, "pad_token_id", None) or 0


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Return rows of ids as one tensor, filled up on the right, and the mask of what is real."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask

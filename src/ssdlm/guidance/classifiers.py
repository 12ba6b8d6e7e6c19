"""Sequence classifiers of `transformers`: loaded, checked, and asked about finished texts.

folder or Hub id -> [classifiers] -> fitting; guidance.training; evaluate
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from ssdlm.guidance.grammar import is_judge, name_labels, split_labels
from ssdlm.guidance.judges import TextReader, load_text_judge
from ssdlm.guidance.roberta import load_roberta
from ssdlm.progress import without_bars
from ssdlm.shapes import Tensor
from ssdlm.storage.files import read_json
from ssdlm.storage.hub import for_transformers
from ssdlm.storage.tensors import require_sizes
from ssdlm.tokenizer import Tokenizer, load_tokenizer


class NoGradientError(ValueError):
    """A classifier that can read texts, and not what a model is still uncertain about."""


KEY = "tokenizer_digest"
"""Where the config.json of a guide without a tokenizer names the model's (`slim`)."""
SequenceClassifier = Any
"""A sequence classifier of transformers, or what looks like one (`roberta`)."""


@dataclass(frozen=True)
class TextClassifier:
    """A classifier with its own tokenizer: it gives each label of a finished text a probability."""

    model: SequenceClassifier
    tokenizer: Tokenizer

    @property
    def labels(self) -> list[str]:
        """The names of the labels, by number."""
        names = self.model.config.id2label
        return [str(names[index]) for index in range(len(names))]

    @property
    def embeddings(self) -> torch.nn.Embedding:
        """The table of word embeddings."""
        return self.model.get_input_embeddings()

    def encode(self, texts: Sequence[str], max_tokens: int | None = None) -> list[list[int]]:
        """Return each text's ids between the special tokens; of a long text the latest part."""
        before, after = frame_ids(self.model.config, self.tokenizer.token_strings())
        limits = [limit for limit in (longest_text(self.model), max_tokens) if limit is not None]
        room = min(limits) - len(before) - len(after) if limits else None
        return [
            before + (ids if room is None else ids[max(0, len(ids) - room) :]) + after
            for ids in self.tokenizer.encode_plain(texts)
        ]

    def log_probs(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the log-probability of every label for every text (texts, labels)."""
        logits = self.logits(texts, batch_size=batch_size)
        if has_independent_labels(self.model):
            return torch.nn.functional.logsigmoid(logits)
        return logits.log_softmax(-1)

    @torch.no_grad()
    def logits(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the classifier's logits for every text (texts, labels), on the CPU."""
        rows = self.encode(texts)
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        logits = torch.empty(len(rows), len(self.labels))
        size = batch_size if can_pad(self.model) else 1
        for start in range(0, len(by_length), size):
            chosen = by_length[start : start + size]
            ids, mask = pad_rows([rows[index] for index in chosen], pad_id(self.model))
            device = self.model.device
            found = self.model(ids.to(device), attention_mask=mask.to(device)).logits
            logits[chosen] = found.float().cpu()
        return logits


def load_text_classifier(name_or_path: str | Path, device: str = "cpu") -> TextReader:
    """Return a classifier with its tokenizer, by Hub id or folder, maybe with `[LABEL+LABEL]`.

    It may be a judge of another kind, too: a folder of `ssdlm train-judge`, or `verbs`.
    """
    home, _ = split_labels(name_or_path)
    if is_judge(home):
        return load_text_judge(home, device)
    classifier = load_classifier(name_or_path).to(device)
    if hasattr(classifier.config, KEY):
        raise ValueError(f"{home} reads texts by a model's tokenizer; give a guide with its own")
    return TextClassifier(classifier, load_tokenizer(home))


def load_classifier(name_or_path: str | Path) -> SequenceClassifier:
    """Return a trained sequence classifier, frozen; a model without a trained head is refused.

    Its labels have the names that are given in brackets after its name, or that are known.
    """
    name_or_path, labels = split_labels(name_or_path)
    refuse_other_sizes(Path(name_or_path))
    classifier = load_roberta(Path(name_or_path)) or load_by_transformers(name_or_path)
    config = classifier.config
    numbers = sorted(int(number) for number in config.id2label)
    if numbers != list(range(len(numbers))):
        raise ValueError(
            f"{name_or_path} numbers its labels {', '.join(map(str, numbers))}; number them from 0 "
            "on, as its head does, in id2label of its config.json"
        )
    config.id2label = name_labels(config.id2label, name_or_path, labels)
    if not has_finite_weights(classifier):
        raise ValueError(f"{name_or_path} has weights that are not finite numbers; train it again")
    return classifier.eval().requires_grad_(False)


def load_by_transformers(name_or_path: str) -> SequenceClassifier:
    """Return a sequence classifier of any kind that transformers knows."""
    source = for_transformers(name_or_path)
    from transformers import AutoModelForSequenceClassification

    try:
        with without_bars():
            # Weights may be stored in half precision; their gradient is taken in single.
            classifier, report = AutoModelForSequenceClassification.from_pretrained(
                source,
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
    return classifier


def refuse_other_sizes(folder: Path) -> None:
    """Raise where a folder's config.json and its weights cannot be of one network."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    if config.is_file() and weights.is_file():
        try:
            with safe_open(weights, "pt") as file:
                names = list(file.keys())
                shapes = {name: Shape(file.get_slice(name).get_shape()) for name in names}
        except SafetensorError as error:
            raise ValueError(f"{weights} is truncated or corrupt; get it anew") from error
        require_sizes(read_json(config), shapes, source=weights)


class Shape(NamedTuple):
    """What a file's header tells of a tensor."""

    shape: list[int]


def one_line(error: BaseException) -> str:
    """Return an error's message in one line of at most 300 characters."""
    message = str(error)
    # transformers refers to a report that it logs, which is off here.
    if "ignore_mismatched_sizes" in message or "above report" in message:
        return "its weights have other sizes than its config.json says"
    # torch advises to load a pickle in a way that runs whatever code is in it.
    if any(word in message for word in ("weights_only", "WeightsUnpickler", "torch.load")):
        return "its weights are a pickle that wants to run code; get them as safetensors"
    return textwrap.shorten(message, 300, placeholder=" ...") or type(error).__name__


def has_finite_weights(model: SequenceClassifier) -> bool:
    """Tell whether all weights are finite; a training that went wrong leaves others."""
    return all(bool(weight.isfinite().all()) for weight in model.parameters())


def has_independent_labels(model: SequenceClassifier) -> bool:
    """Tell whether each label has a probability of its own, as in many toxicity classifiers."""
    config = model.config
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


def word_table(model: SequenceClassifier, special: Sequence[int], name: str) -> Tensor:
    """Return a classifier's word embeddings (tokens, D); raise if a special token is not there."""
    try:
        table = model.get_input_embeddings().weight.detach()
    except (NotImplementedError, AttributeError) as error:
        raise NoGradientError(
            f"{name} has no table of word embeddings; use a classifier such as BERT's or RoBERTa's"
        ) from error
    outside = [token for token in special if not 0 <= token < len(table)]
    if outside:
        raise ValueError(
            f"{name} has embeddings of {len(table)} tokens, and its config.json names the special "
            f"token {outside[0]}; put bos_token_id, eos_token_id and pad_token_id right there"
        )
    return table


def longest_text(model: SequenceClassifier) -> int | None:
    """Return the most tokens that a classifier can read, None if it states no limit."""
    from ssdlm.denoiser.encoder import longest_input

    return longest_input(model)


def can_pad(model: SequenceClassifier) -> bool:
    """Tell whether a classifier reads several rows at once; a decoder may have no padding token."""
    return getattr(model.config, "pad_token_id", None) is not None


def pad_id(model: SequenceClassifier) -> int:
    """Return the id that pads short rows; any will do where there is none, since it is masked."""
    return getattr(model.config, "pad_token_id", None) or 0


def pad_rows(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Return rows of ids as one tensor, padded on the right, and its attention mask."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask

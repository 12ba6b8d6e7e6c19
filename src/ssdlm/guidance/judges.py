"""Judges of finished texts, of other kinds than guides: networks over words, weights (`linear`),
a count of verbs.

folder or name -> [judges] -> classifiers.load_text_classifier -> evaluate

Neither has tokens, embeddings or layers in common with a guide or a language model, nor can it
steer by its gradient: it reads words as they are spelt.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ssdlm.guidance.grammar import LINEAR_TYPE, MODEL_TYPE, WORD
from ssdlm.guidance.linear import load_linear
from ssdlm.shapes import Tensor
from ssdlm.storage.checkpoint import WEIGHTS
from ssdlm.storage.files import read_json, write_json
from ssdlm.storage.tensors import as_os_errors

VERBS = {
    "past": {"was", "were", "had", "did", "wasn't", "weren't", "hadn't", "didn't"},
    "present": {"is", "are", "am", "has", "does", "isn't", "aren't", "hasn't", "doesn't", "i'm"},
}
"""The auxiliary verbs of a tense: what shows it without any classifier."""
ENDS = '.,;:!?"()'
"""What may stand around a word."""
NEITHER = "neither"


@runtime_checkable
class TextReader(Protocol):
    """What gives each label of a finished text a probability."""

    @property
    def labels(self) -> list[str]:
        """The names of the labels, by number."""
        ...

    def log_probs(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the log-probability of every label for every text (texts, labels)."""
        ...


@dataclass(frozen=True)
class WordConfig:
    """The sizes of a network over words, and what it reads."""

    labels: tuple[str, ...]
    num_words: int = 1 << 15
    """Rows of the table of words; each word, and how it ends, has the row of its hash."""
    D: int = 32
    widths: tuple[int, ...] = (1, 2, 3)
    """How many words in a row a filter sees."""
    num_filters: int = 64
    """Of each width."""
    without: tuple[str, ...] = ()
    """Words that it does not see."""


class WordNetwork(nn.Module):
    """Filters over words next to each other, the strongest answer of each, and the words' mean.

    The filters are those of Kim (2014). A word is the sum of three vectors: its own, and those of
    its last three and its last two letters, so that rare words are known by how they end.
    """

    def __init__(self, config: WordConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.num_words + 1, config.D, padding_idx=0)
        self.embedding.weight.data.mul_(0.1)
        self.widths = config.widths
        self.filters = nn.ModuleList(
            nn.Conv1d(config.D, config.num_filters, width, padding=width - 1)
            for width in config.widths
        )
        self.dropout = nn.Dropout(0.5)
        size = len(config.widths) * config.num_filters + config.D
        self.head = nn.Linear(size, len(config.labels))

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (N, labels) of texts given as rows of the table (N, S, 3), 0 for none."""
        embedded = self.embedding(words).sum(2)
        lengths = (words[..., 0] > 0).sum(-1, keepdim=True)
        found = [embedded.sum(1) / lengths.clamp(min=1).sqrt()]
        for width, one in zip(self.widths, self.filters, strict=True):
            answers = one(embedded.transpose(1, 2)).relu()
            # What stands in a batch beside longer texts is not asked beyond its last word.
            place = torch.arange(answers.shape[-1], device=words.device)
            is_beyond = place >= lengths + width - 1
            found.append(answers.masked_fill(is_beyond.unsqueeze(1), 0.0).amax(-1))
        return self.head(self.dropout(torch.cat(found, -1)))


@dataclass(frozen=True)
class WordJudge:
    """A trained network over words."""

    model: WordNetwork
    config: WordConfig

    @property
    def labels(self) -> list[str]:
        return list(self.config.labels)

    def encode(self, text: str) -> list[list[int]]:
        """Return the three rows of the table for each word of a text, from 1 on; 0 is none."""
        words = [word for word in WORD.findall(text.lower()) if word not in self.config.without]
        return [
            [self.row(word), *(self.row(f"-{word[-n:]}") if len(word) > n else 0 for n in (3, 2))]
            for word in words
        ]

    def row(self, word: str) -> int:
        """Return the row of the table that a word has."""
        return 1 + zlib.crc32(word.encode()) % self.config.num_words

    @torch.no_grad()
    def log_probs(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the log-probability of every label for every text (texts, labels)."""
        rows = [self.encode(text) for text in texts]
        found = torch.empty(len(rows), len(self.labels))
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        device = self.model.head.weight.device
        for start in range(0, len(rows), batch_size):
            chosen = by_length[start : start + batch_size]
            logits = self.model(padded([rows[index] for index in chosen]).to(device))
            found[chosen] = logits.float().log_softmax(-1).cpu()
        return found


def padded(texts: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Return encoded texts as one tensor (N, S, 3), filled up with 0; an empty one has a word."""
    width = max(1, *(len(words) for words in texts))
    return torch.tensor([[*words, *[[0, 0, 0]] * (width - len(words))] for words in texts])


@dataclass(frozen=True)
class VerbCounter:
    """Tells the tense of a text by its auxiliary verbs: that of which it has more."""

    @property
    def labels(self) -> list[str]:
        return [*VERBS, NEITHER]

    def log_probs(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return 0 for the tense that a text has more verbs of, or for neither; else -inf."""
        del batch_size
        answers = torch.full((len(texts), len(self.labels)), -torch.inf)
        for row, text in enumerate(texts):
            past, present = count_verbs(text).values()
            answers[row, 2 if past == present else int(present > past)] = 0.0
        return answers


def count_verbs(text: str) -> dict[str, int]:
    """Return how many auxiliary verbs of each tense a text has."""
    words = [word.strip(ENDS).lower() for word in text.split()]
    return {tense: sum(word in forms for word in words) for tense, forms in VERBS.items()}


def load_text_judge(name_or_path: str | Path, device: str = "cpu") -> TextReader:
    """Return the judge of a folder, or the one that counts verbs."""
    folder = Path(name_or_path)
    if not folder.is_dir():
        return VerbCounter()
    try:
        stored = read_json(folder / "config.json")
        if stored["model_type"] == LINEAR_TYPE:
            return load_linear(folder)
        config = read_config(stored)
        with torch.device("meta"):  # sizes are held against the weights before they take memory
            network = WordNetwork(config)
        weights = {name: one.float() for name, one in load_file(folder / WEIGHTS).items()}
        network.load_state_dict(weights, assign=True)
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError, OSError):
        raise ValueError(
            f"the judge in {folder} is not whole: config.json and {WEIGHTS} do not fit; train it "
            "again"
        ) from None
    return WordJudge(network.eval().requires_grad_(False).to(device), config)


def read_config(stored: dict[str, Any]) -> WordConfig:
    """Return the settings in a judge's config.json."""
    names = stored["id2label"]
    return WordConfig(
        tuple(names[str(number)] for number in range(len(names))),
        num_words=stored["num_words"],
        D=stored["D"],
        widths=tuple(stored["widths"]),
        num_filters=stored["num_filters"],
        without=tuple(stored["without"]),
    )


def save_text_judge(judge: WordJudge, folder: Path, **more: Any) -> None:
    """Write a judge as weights in half precision and a config.json, which has `more` too."""
    weights = {name: weight.half() for name, weight in judge.model.state_dict().items()}
    with as_os_errors(folder / WEIGHTS):
        save_file(weights, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes for the owner alone
    settings = asdict(judge.config)
    names = {str(number): label for number, label in enumerate(settings.pop("labels"))}
    write_json(
        folder / "config.json", {"model_type": MODEL_TYPE, "id2label": names} | settings | more
    )

"""The training of a classifier on certain and on soft text.  model -> [loop] -> run

In half of the examples every word is mixed with the average word, as a block looks while it is
denoised, so that the classifier's gradient means something there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.utils import parametrize

from ssdlm.data.labelled import Labelled
from ssdlm.guidance.classifiers import TextClassifier, pad_id, pad_rows
from ssdlm.guidance.judges import TextReader
from ssdlm.guidance.training.model import merge_embeddings
from ssdlm.guidance.training.settings import GuideConfig
from ssdlm.progress import bar
from ssdlm.shapes import Tensor

WARMUP = 0.1
"""The share of steps in which the learning rate rises."""
BUCKET = 50
"""Batches per bucket: rows are sorted by length within a bucket, so that little is padding."""


@dataclass(frozen=True)
class TrainingSet:
    """Encoded texts, their labels, and how often labels and tokens occur."""

    rows: list[list[int]]
    targets: Tensor
    label_weights: Tensor
    """A weight per label, so that rare labels count as much as frequent ones."""
    unigram: Tensor
    """The share of each token (V,)."""


def encode_training_set(
    classifier: TextClassifier, texts: Sequence[Labelled], max_tokens: int
) -> TrainingSet:
    """Return texts as ids, with their statistics."""
    rows = classifier.encode([row.text for row in texts], max_tokens)
    targets = torch.tensor([classifier.labels.index(row.label) for row in texts])
    counts = torch.bincount(targets, minlength=len(classifier.labels))
    V = len(classifier.embeddings.weight)
    unigram = torch.bincount(torch.tensor([i for row in rows for i in row]), minlength=V)
    return TrainingSet(rows, targets, len(rows) / (len(counts) * counts), unigram / unigram.sum())


def train_classifier(
    classifier: TextClassifier,
    train: Sequence[Labelled],
    held_out: Sequence[Labelled],
    config: GuideConfig,
    *,
    is_shown: bool,
) -> int:
    """Train in place, keep the weights of the epoch with the best macro F1, return its number."""
    model, examples = classifier.model, encode_training_set(classifier, train, config.max_tokens)
    disable_attention_dropout(model)
    total = config.epochs * -(-len(train) // config.batch_size)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.lr, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step / total)
    )
    generator = torch.Generator().manual_seed(config.seed)
    best, best_epoch, best_weights, step, message = -1.0, 0, {}, 0, ""
    with bar("training", total, is_shown=is_shown) as show:
        for epoch in range(1, config.epochs + 1):
            model.train()
            for chosen in batches(examples.rows, config.batch_size, generator):
                optimizer.zero_grad()
                batch_loss(classifier, examples, chosen, config, generator).backward()
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                schedule.step()
                step += 1
                show(step, message)
            with parametrize.cached():  # a factored table is multiplied once
                found = score(classifier, held_out)
            message = f"held-out accuracy {100 * found.accuracy:.1f} %"
            if found.macro_f1 > best:
                best, best_epoch = found.macro_f1, epoch
                best_weights = {key: value.clone() for key, value in model.state_dict().items()}
            if epoch - best_epoch >= config.patience:
                break
    model.load_state_dict(best_weights)
    merge_embeddings(classifier)
    model.eval().requires_grad_(False)
    return best_epoch


def disable_attention_dropout(model: torch.nn.Module) -> None:
    """Take dropout off attention weights, so that CPUs can use the fused kernel."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and name.endswith("attention.self.dropout"):
            module.p = 0.0


def learning_rate_factor(progress: float) -> float:
    """Return the share of the learning rate: linearly up, then linearly down to zero."""
    return min(progress / WARMUP, (1 - progress) / (1 - WARMUP), 1.0) if progress < 1 else 0.0


def batches(rows: Sequence[Sized], size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Yield the numbers of rows in random order, rows of similar length together."""
    shuffled = torch.randperm(len(rows), generator=generator).tolist()
    found = []
    for start in range(0, len(shuffled), BUCKET * size):
        bucket = sorted(shuffled[start : start + BUCKET * size], key=lambda i: len(rows[i]))
        found += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    for index in torch.randperm(len(found), generator=generator).tolist():
        yield found[index]


def batch_loss(
    classifier: TextClassifier,
    examples: TrainingSet,
    chosen: list[int],
    config: GuideConfig,
    generator: torch.Generator,
) -> Tensor:
    """Return the cross-entropy of one batch, a part of it read as soft text."""
    ids, mask = pad_rows([examples.rows[index] for index in chosen], pad_id(classifier.model))
    text = blur_words(classifier.embeddings, ids, examples.unigram, config.blur, generator)
    logits = classifier.model(inputs_embeds=text, attention_mask=mask).logits
    return F.cross_entropy(
        logits,
        examples.targets[chosen],
        weight=examples.label_weights,
        label_smoothing=config.smoothing,
    )


def blur_words(
    embeddings: torch.nn.Embedding,
    ids: Tensor,
    unigram: Tensor,
    share: float,
    generator: torch.Generator,
) -> Tensor:
    """Return embedded rows, a share of them with every word mixed with the average word."""
    read = rows_of(embeddings)
    present, inverse = ids.unique(return_inverse=True)
    words = read(present)[inverse]
    if not share:
        return words
    N, S = ids.shape
    is_soft = torch.rand(N, 1, generator=generator) < share
    # One level per text, and a little of its own for each position, as in a block.
    certainty = torch.rand(N, 1, generator=generator)
    certainty = certainty * torch.rand(N, S, generator=generator).sqrt()
    certainty = torch.where(is_soft, certainty, 1.0).unsqueeze(-1)
    return certainty * words + (1 - certainty) * read(unigram)


def rows_of(embeddings: Any) -> Callable[[Tensor], Tensor]:
    """Return what gives the rows of some ids, or the mean of all by their shares.

    Of a factored table it multiplies no more than that.
    """
    if not parametrize.is_parametrized(embeddings):
        weight = embeddings.weight
        return lambda which: which @ weight if which.is_floating_point() else weight[which]
    parts = embeddings.parametrizations["weight"]
    vectors, matrix = parts[0].vectors, parts.original
    return lambda which: (which @ vectors if which.is_floating_point() else vectors[which]) @ matrix


@dataclass(frozen=True)
class Score:
    """How well labels are predicted on texts that training did not see."""

    texts: int
    accuracy: float
    macro_f1: float
    recall: dict[str, float]

    def __str__(self) -> str:
        recall = ", ".join(f"{label} {100 * share:.1f}" for label, share in self.recall.items())
        return f"{100 * self.accuracy:.1f} | {100 * self.macro_f1:.1f} | {recall}"


def score(classifier: TextClassifier | TextReader, texts: Sequence[Labelled]) -> Score:
    """Return accuracy, macro F1 and the recall of each label."""
    if isinstance(classifier, TextClassifier):
        classifier.model.eval()
    labels = classifier.labels
    predicted = classifier.log_probs([row.text for row in texts]).argmax(-1).tolist()
    pairs = [(row.label, labels[guess]) for row, guess in zip(texts, predicted, strict=True)]
    right = {label: sum(pair == (label, label) for pair in pairs) for label in labels}
    actual = {label: sum(gold == label for gold, _ in pairs) for label in labels}
    given = {label: sum(guess == label for _, guess in pairs) for label in labels}
    f1 = [2 * right[label] / max(actual[label] + given[label], 1) for label in labels]
    recall = {label: right[label] / max(actual[label], 1) for label in labels}
    return Score(len(pairs), sum(right.values()) / len(pairs), sum(f1) / len(f1), recall)

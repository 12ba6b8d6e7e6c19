"""The training of a classifier on hard and soft text.  building -> [learning] -> run

In half of the examples every word is partly any word, as a block is while it settles, so that
the classifier's gradient means something there too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from torch.nn.utils import parametrize

from ssdlm.data.labelled import Labelled
from ssdlm.guidance.classifiers import Reader, pad_id, padded
from ssdlm.guidance.training.building import keep_words
from ssdlm.guidance.training.settings import GuideConfig
from ssdlm.progress import bar
from ssdlm.shapes import Tensor


@dataclass(frozen=True)
class Lesson:
    """Encoded texts, their labels, and how often labels and tokens occur."""

    rows: list[list[int]]
    targets: Tensor
    weights: Tensor
    """Of each label, so that rare labels count as much as frequent ones."""
    unigram: Tensor


def lesson(reader: Reader, texts: Sequence[Labelled], max_tokens: int) -> Lesson:
    """Return texts ready to be learnt."""
    rows = reader.encode([row.text for row in texts], max_tokens)
    targets = torch.tensor([reader.labels.index(row.label) for row in texts])
    counts = torch.bincount(targets, minlength=len(reader.labels))
    V = len(reader.classifier.get_input_embeddings().weight)
    unigram = torch.bincount(torch.tensor([i for row in rows for i in row]), minlength=V)
    return Lesson(rows, targets, len(rows) / (len(counts) * counts), unigram / unigram.sum())


def fit(
    reader: Reader,
    train: Sequence[Labelled],
    held: Sequence[Labelled],
    config: GuideConfig,
    *,
    is_shown: bool,
) -> int:
    """Train in place, keep the weights of the best epoch, and return its number."""
    classifier, learnt = reader.classifier, lesson(reader, train, config.max_tokens)
    without_attention_dropout(classifier)
    steps = -(-len(train) // config.batch_size)
    total = steps * config.epochs
    free = [weight for weight in classifier.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(free, lr=config.lr, weight_decay=config.weight_decay)
    pace = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: tent(step / total))
    generator = torch.Generator().manual_seed(config.seed)
    best, best_epoch, kept, done, said = -1.0, 0, {}, 0, ""
    with bar("training", total, is_shown=is_shown) as show:
        for epoch in range(1, config.epochs + 1):
            classifier.train()
            for chosen in batches(learnt.rows, config.batch_size, generator):
                optimiser.zero_grad()
                with parametrize.cached():
                    loss_of(reader, learnt, chosen, config, generator).backward()
                torch.nn.utils.clip_grad_norm_(free, 1.0)
                optimiser.step()
                pace.step()
                done += 1
                show(done, said)
            found = score(reader, held)
            said = f"held-out accuracy {100 * found.accuracy:.1f} %"
            if found.macro_f1 > best:
                best, best_epoch = found.macro_f1, epoch
                kept = {key: value.clone() for key, value in classifier.state_dict().items()}
            if epoch - best_epoch >= config.patience:
                break
    classifier.load_state_dict(kept)
    keep_words(reader)
    classifier.eval().requires_grad_(False)
    return best_epoch


def without_attention_dropout(classifier: torch.nn.Module) -> None:
    """Take dropout off attention weights, so that CPUs can use the fused kernel."""
    for name, module in classifier.named_modules():
        if isinstance(module, torch.nn.Dropout) and name.endswith("attention.self.dropout"):
            module.p = 0.0


def tent(progress: float) -> float:
    """Return the share of the learning rate: up over a tenth, then down to zero."""
    return min(progress / 0.1, (1 - progress) / 0.9, 1.0) if progress < 1 else 0.0


def batches(
    rows: Sequence[Sequence[int]], size: int, generator: torch.Generator
) -> Iterator[list[int]]:
    """Yield the numbers of rows in random order, rows of like length together."""
    order = torch.randperm(len(rows), generator=generator).tolist()
    chunks = [order[i : i + 50 * size] for i in range(0, len(order), 50 * size)]
    found = []
    for chunk in chunks:
        chunk.sort(key=lambda index: len(rows[index]))
        found += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    for index in torch.randperm(len(found), generator=generator).tolist():
        yield found[index]


def loss_of(
    reader: Reader,
    learnt: Lesson,
    chosen: list[int],
    config: GuideConfig,
    generator: torch.Generator,
) -> Tensor:
    """Return the loss of one batch, part of it read as soft text."""
    classifier = reader.classifier
    ids, mask = padded([learnt.rows[index] for index in chosen], pad_id(classifier))
    text = blurred(classifier.get_input_embeddings(), ids, learnt.unigram, config.blur, generator)
    scores = classifier(inputs_embeds=text, attention_mask=mask).logits
    targets = learnt.targets[chosen]
    return F.cross_entropy(scores, targets, weight=learnt.weights, label_smoothing=config.smoothing)


def blurred(
    embed: torch.nn.Embedding,
    ids: Tensor,
    unigram: Tensor,
    share: float,
    generator: torch.Generator,
) -> Tensor:
    """Return embedded rows, some of them with a part of every word spread over all words."""
    words = embed(ids)
    if not share:
        return words
    N, S = ids.shape
    is_soft = torch.rand(N, 1, generator=generator) < share
    # One level a text, and a little of its own for each position.
    known = torch.rand(N, 1, generator=generator) * torch.rand(N, S, generator=generator).sqrt()
    known = torch.where(is_soft, known, 1.0).unsqueeze(-1)
    return known * words + (1 - known) * (unigram @ embed.weight)


@dataclass(frozen=True)
class Score:
    """How well labels are told on texts that training did not see."""

    texts: int
    accuracy: float
    macro_f1: float
    recall: dict[str, float]

    def __str__(self) -> str:
        recall = ", ".join(f"{label} {100 * share:.1f}" for label, share in self.recall.items())
        return f"{100 * self.accuracy:.1f} | {100 * self.macro_f1:.1f} | {recall}"


def score(reader: Reader, texts: Sequence[Labelled]) -> Score:
    """Return accuracy, macro F1 and the recall of each label."""
    reader.classifier.eval()
    guesses = reader.log_probs([row.text for row in texts]).argmax(-1).tolist()
    pairs = [(row.label, reader.labels[guess]) for row, guess in zip(texts, guesses, strict=True)]
    right = {label: sum(pair == (label, label) for pair in pairs) for label in reader.labels}
    wanted = {label: sum(gold == label for gold, _ in pairs) for label in reader.labels}
    given = {label: sum(guess == label for _, guess in pairs) for label in reader.labels}
    f1 = [2 * right[label] / max(wanted[label] + given[label], 1) for label in reader.labels]
    recall = {label: right[label] / max(wanted[label], 1) for label in reader.labels}
    return Score(len(pairs), sum(right.values()) / len(pairs), sum(f1) / len(f1), recall)

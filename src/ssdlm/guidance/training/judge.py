"""A judge from end to end: labelled files in, a folder out.  data.labelled -> [judge]

It is no guide: a network over words (`guidance.judges`) that reads finished texts. To measure a
guide's work it must see other data than the guide did.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional as F

from ssdlm.data.labelled import Labelled, once, read_labelled, without_repeats
from ssdlm.guidance.judges import (
    WordConfig,
    WordJudge,
    WordNetwork,
    load_text_judge,
    padded,
    save_text_judge,
)
from ssdlm.guidance.linear import LinearJudge, grams, save_linear
from ssdlm.guidance.training.loop import Score, batches, learning_rate_factor, score
from ssdlm.guidance.training.record import digest_of, finished, write_record
from ssdlm.guidance.training.run import check_labels, split
from ssdlm.progress import bar
from ssdlm.storage.files import new_folder

EPOCHS = 3
BATCH_SIZE = 64
LR = 2e-3
LINEAR_LR = 0.02
FEWEST, MOST_GRAMS = 5, 100_000
"""Texts that a word or pair of a linear judge is in, and how many such there are at most."""
HOLDOUT = 0.1
"""The share of texts that measure a judge, if no other ones are given."""


@dataclass(frozen=True)
class JudgeReport:
    """The result of a training."""

    out: str
    train_texts: int
    score: Score
    """On texts that training did not see."""
    seconds: float
    was_finished: bool = False
    """It was there before, made of the same texts."""

    def __str__(self) -> str:
        said = f"{self.out} is already complete" if self.was_finished else f"wrote {self.out}"
        return (
            f"{said}: accuracy {100 * self.score.accuracy:.1f} % on "
            f"{self.score.texts:,} texts that it did not see; trained on {self.train_texts:,}, "
            f"{self.seconds:.0f} s"
        )


def train_judge(
    data: Sequence[str | Path],
    *,
    out: str | Path,
    test: str | Path | None = None,
    without: Sequence[str] = (),
    is_linear: bool = False,
    seed: int = 0,
    is_shown: bool = False,
) -> JudgeReport:
    """Train a judge on labelled files and write it as a folder, whole or not at all.

    It is a network over words, or linear: words and pairs of words by logistic regression.

    `without` are words that it never sees. A tenth of the texts is held out to measure it, unless
    there is a file to `test` it on.
    """
    started = time.monotonic()
    rows = once(read_labelled(*data), "the data", labels=2)
    if test is None:
        train, seen_not = split(rows, HOLDOUT, seed)
    else:
        seen_not = once(read_labelled(test), str(test), labels=1)
        train = without_repeats(rows, seen_not)
    labels = sorted({row.label for row in rows})
    check_labels(labels, train, seen_not, ())
    kind = ("linear",) if is_linear else ()
    digest = digest_of(train, seen_not, sorted(without), seed, *kind)
    if finished(Path(out), digest):
        ready = load_text_judge(out)
        assert isinstance(ready, WordJudge | LinearJudge)
        found = score(ready, seen_not)
        return JudgeReport(str(out), len(train), found, 0.0, was_finished=True)
    with new_folder(Path(out)) as folder, torch.random.fork_rng():
        torch.manual_seed(seed)
        unseen = tuple(word.lower() for word in without)
        if is_linear:
            judge = fit_linear(train, labels, unseen, seed)
        else:
            config = WordConfig(tuple(labels), without=unseen)
            judge = WordJudge(WordNetwork(config), config)
            fit(judge, train, seed, is_shown=is_shown)
            judge.model.half().float()  # what is measured is what is stored
        found = score(judge, seen_not)
        accuracy = {"texts held out": found.accuracy}
        if isinstance(judge, LinearJudge):
            save_linear(judge, folder, guide_accuracy=accuracy)
        else:
            save_text_judge(judge, folder, guide_accuracy=accuracy)
        write_record(folder, digest)
    return JudgeReport(str(out), len(train), found, time.monotonic() - started)


def fit(judge: WordJudge, texts: Sequence[Labelled], seed: int, *, is_shown: bool) -> None:
    """Train a judge's network in place, every label counting alike."""
    rows = [judge.encode(row.text) for row in texts]
    targets = torch.tensor([judge.labels.index(row.label) for row in texts])
    counts = torch.bincount(targets, minlength=len(judge.labels))
    weights = len(rows) / (len(counts) * counts)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(judge.model.parameters(), lr=LR, weight_decay=0.01)
    total, step = EPOCHS * -(-len(rows) // BATCH_SIZE), 0
    judge.model.train()
    with bar("train-judge", total, is_shown=is_shown) as show:
        for _ in range(EPOCHS):
            for chosen in batches(rows, BATCH_SIZE, generator):
                for group in optimizer.param_groups:
                    group["lr"] = LR * learning_rate_factor((step + 0.5) / total)
                logits = judge.model(padded([rows[index] for index in chosen]))
                loss = F.cross_entropy(logits, targets[chosen], weight=weights)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                show(step, "batches")
    judge.model.eval()


def fit_linear(
    texts: Sequence[Labelled], labels: list[str], without: tuple[str, ...], seed: int
) -> LinearJudge:
    """Return a linear judge of labelled texts, every label counting alike."""
    counts = Counter(gram for row in texts for gram in set(grams(row.text, without)))
    kept = [gram for gram, count in counts.most_common(MOST_GRAMS) if count >= FEWEST]
    if not kept:
        raise ValueError(f"no word is in {FEWEST} of the texts; give more texts")
    idf = torch.tensor([len(texts) / counts[gram] for gram in kept]).log() + 1
    weights = torch.zeros(len(kept), len(labels), requires_grad=True)
    bias = torch.zeros(len(labels), requires_grad=True)
    rows = {gram: row for row, gram in enumerate(kept)}
    judge = LinearJudge(labels, rows, idf, weights, bias, without)
    encoded = [judge.encode(row.text) for row in texts]
    targets = torch.tensor([labels.index(row.label) for row in texts])
    share = torch.bincount(targets, minlength=len(labels))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam([weights, bias], lr=LINEAR_LR)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(texts), generator=generator).split(BATCH_SIZE):
            logits = judge.logits([encoded[index] for index in chosen.tolist()])
            loss = F.cross_entropy(logits, targets[chosen], weight=len(texts) / share)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return replace(judge, weights=weights.detach(), bias=bias.detach())

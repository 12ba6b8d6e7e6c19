"""A guide from end to end: labelled files in, a folder of `transformers` out.

data.labelled -> model -> compatibility -> loop -> [run]
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap

import torch

from ssdlm.data.labelled import Labelled, once, read_labelled, without_repeats
from ssdlm.guidance.classifiers import (
    KEY,
    TextClassifier,
    has_finite_weights,
    load_classifier,
    longest_text,
)
from ssdlm.guidance.slim import FramedTokenizer, small_weights, tokenizer_digest
from ssdlm.guidance.training.compatibility import check_trainable
from ssdlm.guidance.training.loop import Score, score, train_classifier
from ssdlm.guidance.training.model import build_classifier, factor_embeddings, framed
from ssdlm.guidance.training.record import digest_of, finished, identity, write_record
from ssdlm.guidance.training.settings import GuideConfig, check_config
from ssdlm.progress import without_bars
from ssdlm.storage.checkpoint import WEIGHTS
from ssdlm.storage.files import new_folder, read_json, write_file, write_json, write_text
from ssdlm.storage.int8 import dequantise
from ssdlm.storage.tensors import as_os_errors, save_tensors
from ssdlm.tokenizer import load_tokenizer

CONFIG, TOKENIZER, CARD = "config.json", "tokenizer_config.json", "README.md"
OPENED = (
    "`AutoModelForSequenceClassification` of `transformers` opens it.",
    "It reads the tokens of the model whose tokenizer config.json names by digest.",
)
"""What a card says of an ordinary guide and of a slim one."""
ROLES = {
    "bos_token": ("<s>", "[CLS]"),
    "cls_token": ("<s>", "[CLS]"),
    "eos_token": ("</s>", "[SEP]"),
    "sep_token": ("</s>", "[SEP]"),
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
}
"""What RoBERTa and BERT call the tokens that transformers asks for."""


@dataclass(frozen=True)
class GuideReport:
    """The result of a training."""

    out: str
    train_texts: int
    epoch: int
    """The epoch that was kept."""
    held_out: Score
    test: Score | None
    seconds: float
    was_finished: bool = False
    """It was there before, made of the same texts and settings."""

    def __str__(self) -> str:
        said = f"{self.out} is already complete" if self.was_finished else f"wrote {self.out}"
        score, name = (self.test, "test") if self.test else (self.held_out, "held-out")
        return (
            f"{said}: {name} accuracy {100 * score.accuracy:.1f} %, macro F1 "
            f"{100 * score.macro_f1:.1f} % on {score.texts:,} texts; trained on "
            f"{self.train_texts:,}, epoch {self.epoch}, {self.seconds:.0f} s"
        )


def train_guide(
    data: Sequence[str | Path],
    *,
    out: str | Path,
    tokenizer: str | Path | None = None,
    start: str | Path | None = None,
    test: str | Path | None = None,
    words: str | Path | None = None,
    is_slim: bool = False,
    config: GuideConfig | None = None,
    about: str = "",
    is_shown: bool = False,
) -> GuideReport:
    """Train a classifier on labelled files and write it as a folder, whole or not at all.

    It begins new with a tokenizer, or as the model in the folder `start`. `words` names a model
    whose word embeddings a new one begins with. One that `is_slim` reads the model's tokens by the
    model's own tokenizer. The same input and seed give the same guide.
    """
    config = config or GuideConfig()
    started = time.monotonic()
    check_config(config)
    if (tokenizer is None) == (start is None):
        raise ValueError(
            "give the tokenizer of the model to steer (--tokenizer) for a new classifier, or a "
            "model to start from (--from)"
        )
    if is_slim and tokenizer is None:
        raise ValueError("slim guides are new ones; give the tokenizer of the model to steer")
    test_rows = once(read_labelled(test), str(test), labels=1) if test else []
    rows = once(read_labelled(*data), "the data", labels=2)
    rows = without_repeats(rows, test_rows)
    labels = sorted({row.label for row in rows})
    if test_rows and not rows:
        raise ValueError(f"{test} holds all the texts of the data; give other texts to test on")
    train, held_out = split(rows, config.holdout, config.seed)
    check_labels(labels, train, held_out, test_rows)
    models = [identity(name) for name in (tokenizer, start, words)]
    digest = digest_of(train, held_out, test_rows, config, models, about, *[is_slim] * is_slim)
    if made := finished(Path(out), digest):
        home = framed(str(tokenizer), is_slim=True) if is_slim else load_tokenizer(out)
        ready = TextClassifier(load_classifier(out), home)
        found = score(ready, test_rows) if test_rows else None
        epoch, held = made["epoch"], score(ready, held_out)
        return GuideReport(str(out), len(train), epoch, held, found, 0.0, was_finished=True)
    with new_folder(Path(out)) as folder, torch.random.fork_rng():
        torch.manual_seed(config.seed)
        classifier = build_classifier(
            config, labels, tokenizer=tokenizer, start=start, is_slim=is_slim
        )
        if start is not None:
            check_trainable(classifier, start, config)
        if words is not None:
            factor_embeddings(classifier, words)
        epoch = train_classifier(classifier, train, held_out, config, is_shown=is_shown)
        # What is measured is what is stored: half-precision weights, words of a slim one in int8.
        classifier.model.half().float()
        if is_slim:
            stored = small_weights(classifier.model.state_dict())
            classifier.model.load_state_dict(dequantise(stored))
        if not has_finite_weights(classifier.model):
            raise ValueError(f"lr={config.lr} broke the guide; lower lr")
        report = GuideReport(
            str(out),
            len(train),
            epoch,
            score(classifier, held_out),
            score(classifier, test_rows) if test_rows else None,
            time.monotonic() - started,
        )
        (save_slim if is_slim else save)(classifier, folder)
        write_text(folder / CARD, card(report, labels, config, about, is_slim=is_slim))
        write_record(folder, digest, epoch=epoch)
    return report


def split(
    rows: Sequence[Labelled], share: float, seed: int
) -> tuple[list[Labelled], list[Labelled]]:
    """Return the texts to train on and those held out, by a hash of each text."""
    train, held_out = [], []
    for row in rows:
        digest = hashlib.sha256(f"{seed}\n{row.text}".encode()).digest()
        is_held = int.from_bytes(digest[:8], "big") < share * 2**64
        (held_out if is_held else train).append(row)
    return train, held_out


def check_labels(labels: list[str], *parts: Sequence[Labelled]) -> None:
    """Raise where a classifier could not be trained or measured."""
    if len(labels) < 2:
        raise ValueError(f"the data has {len(labels)} label; a classifier tells at least 2 apart")
    for part, name in zip(parts, ("to train on", "held out", "in the test"), strict=True):
        unknown = sorted({row.label for row in part} - set(labels))
        if unknown:
            raise ValueError(f"label {unknown[0]!r} {name} is not in the training data")
        missing = [label for label in labels if label not in {row.label for row in part}]
        if missing and (part or name != "in the test"):
            raise ValueError(f"no text of label {missing[0]!r} is {name}; give more data")


def save(classifier: TextClassifier, folder: Path) -> None:
    """Write the classifier and its tokenizer as transformers has them."""
    with without_bars(), as_os_errors(folder / WEIGHTS):
        classifier.model.half().save_pretrained(folder)
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes for the owner alone
    classifier.tokenizer.save(folder)
    tokens = classifier.tokenizer.token_strings()
    roles = {role: next((n for n in names if n in tokens), None) for role, names in ROLES.items()}
    settings = roles | {"model_max_length": longest_text(classifier.model)}
    known = {key: value for key, value in settings.items() if value is not None}
    write_json(folder / TOKENIZER, read_json(folder / TOKENIZER) | known)


def save_slim(classifier: TextClassifier, folder: Path) -> None:
    """Write the classifier with small weights, and the digest of the tokenizer that it reads."""
    tokenizer = classifier.tokenizer
    assert isinstance(tokenizer, FramedTokenizer)
    weights = small_weights(classifier.model.state_dict())
    write_file(folder / WEIGHTS, lambda path: save_tensors(weights, path))
    with without_bars():
        classifier.model.config.architectures = [type(classifier.model).__name__]
        classifier.model.config.save_pretrained(folder)
    made_for = {KEY: tokenizer_digest(tokenizer.own)}
    write_json(folder / CONFIG, read_json(folder / CONFIG) | made_for)


def card(
    report: GuideReport, labels: list[str], config: GuideConfig, about: str, *, is_slim: bool
) -> str:
    """Return a model card: what it tells apart, from what data, how well, how it was made."""
    rows = [("held out", report.held_out), *([("test", report.test)] if report.test else [])]
    settings = [f"{key}={value}" for key, value in asdict(config).items()]
    lines = [
        f"# {Path(report.out).name}",
        "",
        f"A sequence classifier for {', '.join(labels)}, to steer `ssdlm generate --control` with.",
        OPENED[is_slim],
        "",
        *([about.strip(), ""] if about else []),
        f"Trained on {report.train_texts:,} texts; the epoch with the best macro F1 on those held "
        f"out was kept ({report.epoch}).",
        "",
        "| texts | number | accuracy % | macro F1 % | recall % |",
        "|---|---|---|---|---|",
        *(f"| {name} | {found.texts:,} | {found} |" for name, found in rows),
        "",
        *wrap(f"Settings: {', '.join(settings)}.", 100),
        "",
    ]
    return "\n".join(lines)

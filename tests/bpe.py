"""A small byte-level BPE that tests share, in the layouts of GPT-2 and of RoBERTa."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

ROBERTA_FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
ROBERTA_LAST = ["<|endoftext|>", "madeupword0000", "<mask>"]
TEXT = (
    "The river had risen in the night, and the men who kept the bridge were gone. "
    "Nobody in the village had seen them leave; the lamps still burned in their window. "
)


@cache
def merges() -> list[tuple[str, str]]:
    """Learn some 90 merges from a few words."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=350, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    learned = json.loads(backend.to_str())["model"]["merges"]
    return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in learned]


def gpt2_strings() -> list[str]:
    """The vocabulary in GPT-2's order: bytes from "!" on, the hidden ones last; then the merges."""
    visible = [
        chr(code) for code in range(256) if chr(code).isprintable() and code not in (32, 173)
    ]
    hidden = [chr(256 + number) for number in range(256 - len(visible))]
    return [*visible, *hidden, *(left + right for left, right in merges())]


def write_gpt2(folder: Path) -> Path:
    """Write vocab.json and merges.txt with `<|endoftext|>` as the last id."""
    return _write(folder, [*gpt2_strings(), "<|endoftext|>"])


def write_roberta(folder: Path) -> Path:
    """Write the same merges under RoBERTa's order of ids, its special tokens at both ends."""
    return _write(folder, [*ROBERTA_FIRST, *sorted(gpt2_strings()), *ROBERTA_LAST])


def _write(folder: Path, strings: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {string: number for number, string in enumerate(strings)}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges())]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder

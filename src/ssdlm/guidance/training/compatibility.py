"""Whether an existing model can be trained as a guide, found by one batch.

model, loop -> [compatibility] -> run
"""

from __future__ import annotations

from pathlib import Path

import torch

from ssdlm.data.labelled import Labelled
from ssdlm.guidance.classifiers import (
    TextClassifier,
    frame_ids,
    longest_text,
    one_line,
    pad_id,
    pad_rows,
    word_table,
)
from ssdlm.guidance.training.loop import batch_loss, encode_training_set
from ssdlm.guidance.training.settings import SHORTEST, GuideConfig
from ssdlm.progress import without_bars
from ssdlm.shapes import Tensor


def check_trainable(classifier: TextClassifier, name: str | Path, config: GuideConfig) -> None:
    """Raise on a model that would break in training, or that would learn from padding."""
    check_ids(classifier, name)
    try:
        with torch.random.fork_rng(devices=[]), without_bars():
            reason = find_problem(classifier, config)
    except Exception as error:  # from models that ask for ids to lengths that they cannot divide
        reason = one_line(error)
    if reason:
        raise ValueError(
            f"{name} cannot be trained as a guide ({reason}); "
            "give an encoder such as RoBERTa or BERT"
        )


def check_ids(classifier: TextClassifier, name: str | Path) -> None:
    """Raise where the tokenizer or config.json has ids that the model has no embedding of."""
    strings, model = classifier.tokenizer.token_strings(), classifier.model
    before, after = frame_ids(model.config, strings)
    size = len(word_table(model, [*before, *after, pad_id(model)], str(name)))
    if len(strings) > size:
        raise ValueError(
            f"{name} has embeddings of {size} tokens and a tokenizer of {len(strings)}; "
            "give the tokenizer it was trained with"
        )


def find_problem(classifier: TextClassifier, config: GuideConfig) -> str:
    """Return why a model cannot be trained, "" if it can; some models raise instead."""
    room = longest_text(classifier.model)
    if room is not None and room < SHORTEST:
        return f"it has room for {room} tokens"
    try_step(classifier, config)
    short, long = classifier.encode(["a b", "a b c d e f g h"], config.max_tokens)
    if is_causal(classifier, long):
        return "it is a decoder: a token does not see those after it"
    # Training pads, steering does not: a text must mean the same in both.
    alone, beside = (scores(classifier, rows)[0] for rows in ([short], [short, long]))
    if not torch.allclose(alone, beside, rtol=0, atol=0.1 * float(alone.abs().max())):
        return "padding changes what it says of a text"
    return ""


def try_step(classifier: TextClassifier, config: GuideConfig) -> None:
    """Read a short and a long text as training and then scoring would; errors pass."""
    texts = [Labelled("a b", label) for label in classifier.labels]
    texts.append(Labelled("a b c " * config.max_tokens, classifier.labels[0]))
    examples = encode_training_set(classifier, texts, config.max_tokens)
    generator = torch.Generator().manual_seed(config.seed)
    classifier.model.train()
    batch_loss(classifier, examples, [0, len(texts) - 1], config, generator).backward()
    classifier.model.zero_grad()
    classifier.model.eval()
    classifier.log_probs([row.text for row in texts[-2:]])


@torch.no_grad()
def is_causal(classifier: TextClassifier, row: list[int]) -> bool:
    """Tell whether the first token stays the same to a model whatever the last one is."""
    text = classifier.embeddings(torch.tensor([row, row]))
    text[1, -1] = 0.0
    first = classifier.model.base_model(inputs_embeds=text)[0][:, 0]
    return torch.allclose(first[0], first[1], rtol=0, atol=1e-6)


@torch.no_grad()
def scores(classifier: TextClassifier, rows: list[list[int]]) -> Tensor:
    """Return the logits of rows read as embeddings, padded to one length."""
    ids, mask = pad_rows(rows, pad_id(classifier.model))
    text = classifier.embeddings(ids)
    return classifier.model(inputs_embeds=text, attention_mask=mask).logits

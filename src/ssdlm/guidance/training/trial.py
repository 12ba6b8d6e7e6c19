"""Whether a model can go on as a guide, found by one batch.  learning -> [trial] -> run"""

from __future__ import annotations

from pathlib import Path

import torch

from ssdlm.data.labelled import Labelled
from ssdlm.guidance.classifiers import (
    Reader,
    frame_ids,
    longest_text,
    one_line,
    pad_id,
    padded,
    without_bars,
    word_table,
)
from ssdlm.guidance.training.learning import lesson, loss_of
from ssdlm.guidance.training.settings import SHORTEST, GuideConfig
from ssdlm.shapes import Tensor


def refuse_unfit(reader: Reader, name: str | Path, config: GuideConfig) -> None:
    """Raise on a model that would break in training, or that would learn from padding."""
    refuse_strange_ids(reader, name)
    try:
        with torch.random.fork_rng(devices=[]), without_bars():
            reason = fault(reader, config)
    except Exception as error:  # from models that ask for ids to lengths that they cannot divide
        reason = one_line(error)
    if reason:
        raise ValueError(
            f"{name} cannot be trained as a guide ({reason}); "
            "give an encoder such as RoBERTa or BERT"
        )


def refuse_strange_ids(reader: Reader, name: str | Path) -> None:
    """Raise where the tokenizer or config.json has ids that the model has no embedding of."""
    strings, classifier = reader.tokenizer.token_strings(), reader.classifier
    before, after = frame_ids(classifier.config, strings)
    size = len(word_table(classifier, [*before, *after, pad_id(classifier)], str(name)))
    if len(strings) > size:
        raise ValueError(
            f"{name} has embeddings of {size} tokens and a tokenizer of {len(strings)}; "
            "give the tokenizer it was trained with"
        )


def fault(reader: Reader, config: GuideConfig) -> str:
    """Return why a model is not fit to be trained; nothing if it is. It may raise as well."""
    room = longest_text(reader.classifier)
    if room is not None and room < SHORTEST:
        return f"it has room for {room} tokens"
    try_a_step(reader, config)
    short, long = reader.encode(["a b", "a b c d e f g h"], config.max_tokens)
    if is_causal(reader, long):
        return "it is a decoder: a token does not see those after it"
    alone, beside = (scores(reader, rows)[0] for rows in ([short], [short, long]))
    if not torch.allclose(alone, beside, rtol=0, atol=0.1 * float(alone.abs().max())):
        return "padding changes what it says of a text"
    return ""


def try_a_step(reader: Reader, config: GuideConfig) -> None:
    """Read a short and a long text as training and then scoring would; errors pass."""
    texts = [Labelled("a b", label) for label in reader.labels]
    texts.append(Labelled("a b c " * config.max_tokens, reader.labels[0]))
    learnt = lesson(reader, texts, config.max_tokens)
    generator = torch.Generator().manual_seed(config.seed)
    reader.classifier.train()
    loss_of(reader, learnt, [0, len(texts) - 1], config, generator).backward()
    reader.classifier.zero_grad()
    reader.classifier.eval()
    reader.log_probs([row.text for row in texts[-2:]])


@torch.no_grad()
def is_causal(reader: Reader, row: list[int]) -> bool:
    """Tell whether the first token stays the same to a model whatever the last one is."""
    text = reader.classifier.get_input_embeddings()(torch.tensor([row, row]))
    text[1, -1] = 0.0
    first = reader.classifier.base_model(inputs_embeds=text)[0][:, 0]
    return torch.allclose(first[0], first[1], rtol=0, atol=1e-6)


@torch.no_grad()
def scores(reader: Reader, rows: list[list[int]]) -> Tensor:
    """Return the logits of rows read as embeddings, padded to one length."""
    ids, mask = padded(rows, pad_id(reader.classifier))
    text = reader.classifier.get_input_embeddings()(ids)
    return reader.classifier(inputs_embeds=text, attention_mask=mask).logits

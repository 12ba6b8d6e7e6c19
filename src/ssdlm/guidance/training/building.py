"""A classifier before training: new, or a model to go on from.  tokenizer -> [building] -> learning

A new one is an ordinary RoBERTa, small, with the tokenizer of the model that it is to steer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import parametrize

from ssdlm.guidance.classifiers import Reader, one_line, without_bars
from ssdlm.guidance.training.settings import GuideConfig
from ssdlm.shapes import Tensor
from ssdlm.storage.checkpoint import WEIGHTS, find, read_tensors
from ssdlm.tokenizer import Tokenizer, load_tokenizer

FRAME = ("<s>", "<pad>", "</s>")


def build(
    config: GuideConfig, labels: list[str], *, tokenizer: str | Path | None, start: Any
) -> Reader:
    """Return an untrained classifier with its tokenizer."""
    from transformers import AutoModelForSequenceClassification, RobertaConfig
    from transformers import RobertaForSequenceClassification as Roberta

    names = dict(enumerate(labels))
    numbers = {label: index for index, label in names.items()}
    if start is not None:
        try:
            with without_bars():
                model = AutoModelForSequenceClassification.from_pretrained(
                    str(start), num_labels=len(labels), id2label=names, label2id=numbers,
                    dtype=torch.float32, ignore_mismatched_sizes=True, trust_remote_code=False,
                )  # fmt: skip
            # A few thousand texts have nothing to teach a large table, most of which they never
            # touch.
            model.get_input_embeddings().requires_grad_(False)
        except Exception as error:
            raise ValueError(
                f"{start} is no model to start from ({one_line(error)}); "
                "give an encoder such as RoBERTa or BERT"
            ) from error
        model.config.guide_lam = config.lam
        model.config.problem_type = "single_label_classification"  # whatever it was before
        return Reader(model, load_tokenizer(str(start)))
    assert tokenizer is not None
    own = framed(load_tokenizer(str(tokenizer)))
    strings = own.token_strings()
    bos, pad, eos = (strings.index(name) for name in FRAME)
    settings = RobertaConfig(
        vocab_size=own.V, hidden_size=config.D, num_hidden_layers=config.num_layers,
        num_attention_heads=config.D // 32, intermediate_size=config.D, hidden_act="relu",
        max_position_embeddings=config.max_len + pad + 1, type_vocab_size=1,
        layer_norm_eps=config.eps,
        hidden_dropout_prob=config.dropout,
        bos_token_id=bos, pad_token_id=pad, eos_token_id=eos, id2label=names, label2id=numbers,
    )  # fmt: skip
    model = Roberta(settings)
    model.config.guide_lam = config.lam  # transformers keeps what it does not know
    return Reader(model, own)


def framed(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with RoBERTa's frame: <s> is 0, <pad> is 1, end-of-text is </s>.

    Ids move up by two; guides are fitted by the strings of tokens, so that ids do not matter.
    """
    import tokenizers

    strings = tokenizer.token_strings()
    if all(name in strings for name in FRAME):
        return tokenizer
    end = strings[tokenizer.end_of_text]
    state = json.loads(tokenizer.to_json())
    if not isinstance(state["model"].get("vocab"), dict):
        raise ValueError("the tokenizer is neither BPE nor WordPiece; use one nested in GPT-2's")

    def moved(name: str) -> str:
        return FRAME[2] if name == end else name

    vocab = {moved(name): index + 2 for name, index in state["model"]["vocab"].items()}
    state["model"]["vocab"] = {FRAME[0]: 0, FRAME[1]: 1} | vocab
    added = [
        token | {"id": token["id"] + 2, "content": moved(token["content"])}
        for token in state["added_tokens"]
    ]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = [{"id": i, "content": FRAME[i], "special": True} | plain for i in range(2)]
    state["added_tokens"] = first + added
    eos = tokenizer.end_of_text + 2
    state["post_processor"] = {
        "type": "RobertaProcessing", "sep": [FRAME[2], eos], "cls": [FRAME[0], 0],
        "trim_offsets": True, "add_prefix_space": False,
    }  # fmt: skip
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)))


def begin_with_words(reader: Reader, model: str | Path) -> None:
    """Make word embeddings a linear image of another model's words, matched by their strings.

    Only the image is learnt, so that what a few thousand texts teach of some words is known of all
    words like them. `keep_words` ends it.
    """
    vectors = vectors_for(reader.tokenizer.token_strings(), find(model))
    embed = reader.classifier.get_input_embeddings()
    _, _, axes = torch.linalg.svd(vectors, full_matrices=False)
    image = axes[: embed.embedding_dim].T
    image = image * (embed.weight.std() / (vectors @ image).std())
    parametrize.register_parametrization(embed, "weight", Image(vectors, image), unsafe=True)


def vectors_for(wanted: list[str], folder: Path) -> Tensor:
    """Return what a model knows of each token (tokens, features): its word and its output head."""
    there = {string: row for row, string in enumerate(load_tokenizer(folder).token_strings())}
    tensors = read_tensors(folder / WEIGHTS)
    if "words" not in tensors:
        raise ValueError(f"{folder} has no word embeddings of ours; give a BlockDenoiser's folder")
    table = torch.cat([tensors[name].float() for name in ("words", "head") if name in tensors], 1)
    mine, theirs = zip(
        *((row, there[string]) for row, string in enumerate(wanted) if string in there), strict=True
    )
    known = table[list(theirs)]
    known = (known - known.mean(0)) / known.std(0).clamp(min=1e-6) / known.shape[1] ** 0.5
    alone = [row for row, string in enumerate(wanted) if string not in there]
    vectors = torch.zeros(len(wanted), known.shape[1] + len(alone))
    vectors[list(mine), : known.shape[1]] = known
    vectors[alone, known.shape[1] + torch.arange(len(alone))] = 1.0
    return vectors


class Image(torch.nn.Module):
    """A table that is a linear function of fixed vectors."""

    vectors: Tensor

    def __init__(self, vectors: Tensor, image: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.begun = image

    def forward(self, image: Tensor) -> Tensor:
        return self.vectors @ image

    def right_inverse(self, table: Tensor) -> Tensor:
        """Return what learning begins with, whatever the table was."""
        del table
        return self.begun


def keep_words(reader: Reader) -> None:
    """Make an image of another model's words an ordinary table."""
    embed = reader.classifier.get_input_embeddings()
    if parametrize.is_parametrized(embed):
        parametrize.remove_parametrizations(embed, "weight", leave_parametrized=True)

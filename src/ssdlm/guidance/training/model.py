"""A classifier before training: new, or a model to go on from.  tokenizer -> [model] -> loop

A new one is an ordinary RoBERTa, small, with the tokenizer of the model that it is to steer.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.nn.utils import parametrize

from ssdlm.guidance.classifiers import TextClassifier, one_line
from ssdlm.guidance.slim import FramedTokenizer
from ssdlm.guidance.training.settings import GuideConfig
from ssdlm.progress import without_bars
from ssdlm.shapes import Tensor
from ssdlm.storage.causal import is_causal, word_tables_of
from ssdlm.storage.checkpoint import WEIGHTS, find, read_tensors
from ssdlm.tokenizer import Tokenizer, load_tokenizer

FRAME = ("<s>", "<pad>", "</s>")
"""What stands before, beside and after a text in RoBERTa's vocabulary."""


def build_classifier(
    config: GuideConfig,
    labels: list[str],
    *,
    tokenizer: str | Path | None,
    start: str | Path | None,
    is_slim: bool = False,
) -> TextClassifier:
    """Return an untrained classifier with its tokenizer: new, or from the model `start`."""
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
            # A few thousand texts touch a small part of a large table; trained, that part would
            # drift away from the words that the texts do not have.
            model.get_input_embeddings().requires_grad_(False)
        except Exception as error:
            raise ValueError(
                f"{start} is no model to start from ({one_line(error)}); "
                "give an encoder such as RoBERTa or BERT"
            ) from error
        model.config.guide_lam = config.lam
        model.config.problem_type = "single_label_classification"  # whatever it was before
        return TextClassifier(model, load_tokenizer(str(start)))
    assert tokenizer is not None
    with_frame = framed(str(tokenizer), is_slim=is_slim)
    strings = with_frame.token_strings()
    bos, pad = (strings.index(name) for name in FRAME[:2])
    eos = with_frame.end_of_text if is_slim else strings.index(FRAME[2])
    roberta = RobertaConfig(
        vocab_size=with_frame.V, hidden_size=config.D, num_hidden_layers=config.num_layers,
        num_attention_heads=config.D // 32, intermediate_size=config.D, hidden_act="relu",
        max_position_embeddings=config.max_len + pad + 1, type_vocab_size=1,
        layer_norm_eps=config.eps, initializer_range=config.init,
        hidden_dropout_prob=config.dropout,
        bos_token_id=bos, pad_token_id=pad, eos_token_id=eos, id2label=names, label2id=numbers,
    )  # fmt: skip
    model = Roberta(roberta)
    model.config.guide_lam = config.lam  # transformers keeps what it does not know
    return TextClassifier(model, with_frame)


def framed(tokenizer: str | Path, *, is_slim: bool) -> Tokenizer:
    """Return a model's tokenizer with the tokens around a text that a new guide has."""
    own = load_tokenizer(tokenizer)
    return FramedTokenizer(own) if is_slim else add_frame_tokens(own)


def add_frame_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with RoBERTa's special tokens: <s> is 0, <pad> is 1, </s> ends a text.

    Ids move up by two. Guides are matched by the strings of tokens, so that ids do not matter.
    """
    import tokenizers

    strings = tokenizer.token_strings()
    if all(name in strings for name in FRAME):
        return tokenizer
    end = strings[tokenizer.end_of_text]
    state = json.loads(tokenizer.to_json())
    if not isinstance(state["model"].get("vocab"), dict):
        raise ValueError("the tokenizer is neither BPE nor WordPiece; use one nested in GPT-2's")

    def rename(name: str) -> str:
        return FRAME[2] if name == end else name

    vocab = {rename(name): index + 2 for name, index in state["model"]["vocab"].items()}
    state["model"]["vocab"] = {FRAME[0]: 0, FRAME[1]: 1} | vocab
    added = [
        token | {"id": token["id"] + 2, "content": rename(token["content"])}
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


def factor_embeddings(classifier: TextClassifier, model: str | Path) -> None:
    """Make word embeddings another model's word vectors times a matrix, of which that is learnt.

    So what a few thousand texts teach of some words is known of all words like them.
    `merge_embeddings` makes an ordinary table of it after training.
    """
    vectors = word_vectors(classifier.tokenizer.token_strings(), find(model))
    embeddings = classifier.embeddings
    # The principal axes, at the scale that the table had, are a good start.
    _, _, axes = torch.linalg.svd(vectors, full_matrices=False)
    matrix = axes[: embeddings.embedding_dim].T
    matrix = matrix * (embeddings.weight.std() / (vectors @ matrix).std())
    factored = FactoredTable(vectors, matrix)
    parametrize.register_parametrization(embeddings, "weight", factored, unsafe=True)


def word_vectors(tokens: list[str], folder: Path) -> Tensor:
    """Return what a model knows of each token (tokens, features): its word and its output head.

    A token that the model does not have gets a feature of its own.
    """
    index = {string: row for row, string in enumerate(load_tokenizer(folder).token_strings())}
    table = torch.cat([table.float() for table in word_tables(folder)], 1)
    shared = [row for row, string in enumerate(tokens) if string in index]
    alone = [row for row, string in enumerate(tokens) if string not in index]
    known = table[[index[tokens[row]] for row in shared]]
    known = (known - known.mean(0)) / known.std(0).clamp(min=1e-6) / known.shape[1] ** 0.5
    vectors = torch.zeros(len(tokens), known.shape[1] + len(alone))
    vectors[shared, : known.shape[1]] = known
    vectors[alone, known.shape[1] + torch.arange(len(alone))] = 1.0
    return vectors


def word_tables(folder: Path) -> list[Tensor]:
    """Return a model's tables with a row for each token: its words, and its own head."""
    tables = (word_tables_of if is_causal(folder) else own_tables)(folder)
    if not tables:
        raise ValueError(
            f"{folder} has no word embeddings that are known here; give a BlockDenoiser's folder "
            "or a model of the Llama family"
        )
    return tables


def own_tables(folder: Path) -> list[Tensor]:
    """Return the tables of a BlockDenoiser."""
    tensors = read_tensors(folder / WEIGHTS)
    return [tensors[name] for name in ("words", "head") if "words" in tensors and name in tensors]


class FactoredTable(torch.nn.Module):
    """A parametrization of a table: fixed vectors times a learnt matrix."""

    vectors: Tensor

    def __init__(self, vectors: Tensor, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.start = matrix

    def forward(self, matrix: Tensor) -> Tensor:
        return self.vectors @ matrix

    def right_inverse(self, table: Tensor) -> Tensor:
        """Return the matrix that learning begins with, whatever the table was."""
        del table
        return self.start


def merge_embeddings(classifier: TextClassifier) -> None:
    """Make an ordinary table of factored word embeddings; others stay as they are."""
    if parametrize.is_parametrized(classifier.embeddings):
        parametrize.remove_parametrizations(
            classifier.embeddings, "weight", leave_parametrized=True
        )

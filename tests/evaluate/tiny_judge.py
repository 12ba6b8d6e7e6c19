"""A judge of random weights and a byte-level tokenizer of a few merges, in a checkpoint folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

MERGES = [("t", "h"), ("th", "e"), ("r", "l"), ("\u0120", "a")]
MAX_LEN = 96


@contextmanager
def hearing(handler: logging.Handler) -> Iterator[None]:
    """Hand a handler what transformers logs, which goes no further by itself."""
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def save_tokenizer(folder: Path) -> int:
    """Write a byte-level BPE tokenizer that merges across "wor" + "ld"; return its size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<pad>", *alphabet, *("".join(merge) for merge in MERGES)]
    vocab = {token: index for index, token in enumerate(tokens)}
    fast = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>").save_pretrained(folder)
    return len(vocab)


def save_judge(folder: Path, kind: str = "gpt2") -> str:
    """Write a tiny judge or encoder of random weights and return its folder as a name."""
    vocab_size = save_tokenizer(folder)
    torch.manual_seed(0)
    model(kind, vocab_size).save_pretrained(folder)
    return str(folder)


def model(kind: str, vocab_size: int):
    """A network whose losses differ from token to token: its weights are not small."""
    sizes = {"vocab_size": vocab_size, "initializer_range": 0.3, "pad_token_id": 0}
    ends = {"bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        small = GPT2Config(n_positions=MAX_LEN, n_embd=16, n_layer=2, n_head=2, **sizes, **ends)
        return GPT2LMHeadModel(small)
    wide = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    wide |= {"intermediate_size": 32, "max_position_embeddings": MAX_LEN}
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**wide, **sizes, **ends))
    if kind == "masked":
        return BertForMaskedLM(BertConfig(**wide, **sizes))
    return BertModel(BertConfig(**wide, **sizes))

"""Write a tiny random model and a classifier that fits it: python examples/tiny_model.py FOLDER

FOLDER/model and FOLDER/classifier are whole checkpoints, for trying commands without a network.
They were never trained: what they write is noise. With --tiny the other examples use them.
"""

from __future__ import annotations

import argparse
import string
import tempfile
from pathlib import Path

import tokenizers
import torch

from ssdlm import SSDLM, DecodeConfig
from ssdlm.denoiser.encoder import EncoderDenoiser, masked_lm
from ssdlm.tokenizer import Tokenizer

LETTERS = string.ascii_letters + " .,!?'\n"
V = len(LETTERS) + 1
SIZES = {
    "vocab_size": V,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 130,
    "initializer_range": 0.2,
}


def tiny(folder: Path) -> tuple[str, str]:
    """Write both into a folder and return their paths."""
    from transformers import RobertaConfig, RobertaForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(LETTERS)}, []))
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["<|endoftext|>"])
    letters = Tokenizer(backend)
    denoiser = EncoderDenoiser.from_masked_lm(masked_lm({"model_type": "roberta"} | SIZES))
    decoding = DecodeConfig(length=20, B=(10,), T=8)
    SSDLM(denoiser, letters, decoding).save_pretrained(folder / "model")
    labels = {0: "negative", 1: "neutral", 2: "positive"}
    classifier = RobertaForSequenceClassification(RobertaConfig(**SIZES, id2label=labels))
    classifier.save_pretrained(folder / "classifier")
    letters.save(folder / "classifier")
    return str(folder / "model"), str(folder / "classifier")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a temporary one if not given")
    parser.add_argument("--tiny", action="store_true", help="changes nothing: it always is")
    print(*tiny(parser.parse_args().folder or Path(tempfile.mkdtemp())), sep="\n")

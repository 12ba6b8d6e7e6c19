"""Tokenising in threads: the order kept, memory bounded, the environment put back."""

import os

from tests import bpe

from ssdlm.data import encoding
from ssdlm.tokenizer import load_tokenizer


def test_reading_stays_only_a_few_batches_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 1)
    tokenizer = load_tokenizer(bpe.write_gpt2(tmp_path))
    num_read = 0

    def pieces():
        nonlocal num_read
        for _ in range(100):
            num_read += 1
            yield 0, encoding.Piece("the river", ends_document=True)

    ahead = []
    for number, _ in enumerate(encoding.encode(encoding.batches(pieces()), tokenizer, workers=2)):
        ahead.append(num_read - number)
    assert len(ahead) == 100 and max(ahead) <= 6


def test_the_order_is_kept_and_a_piece_knows_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 20)
    tokenizer = load_tokenizer(bpe.write_gpt2(tmp_path))
    texts = [f"caf\u00e9 {number}" for number in range(50)]
    pieces = [(number, encoding.Piece(text, True)) for number, text in enumerate(texts)]
    encoded = list(encoding.encode(encoding.batches(pieces), tokenizer, workers=3))
    assert [one.source for one in encoded] == list(range(50))
    assert [tokenizer.decode(one.ids) for one in encoded] == texts
    assert [one.num_bytes for one in encoded] == [len(text.encode()) for text in texts]


def test_the_librarys_own_threads_are_off_only_meanwhile(monkeypatch):
    for before in ("true", None):
        monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        if before:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
        with encoding.one_thread_each():
            assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        assert os.environ.get("TOKENIZERS_PARALLELISM") == before

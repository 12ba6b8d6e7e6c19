"""Reading a token store: across shards, by document, and what a damaged one says."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests import bpe
from tests.mutations import check_reader
from tests.processes import make_store

from ssdlm.data import writer
from ssdlm.data.prepare import prepare
from ssdlm.data.shards import TokenStore, token_dtype
from ssdlm.tokenizer import load_tokenizer


@pytest.fixture
def store_dir(tmp_path, monkeypatch) -> Path:
    """A store whose train split has several shards."""
    monkeypatch.setattr(writer, "SHARD_TOKENS", 100)
    (tmp_path / "a.txt").write_text("\n\n".join(f"{i} {bpe.TEXT.strip()}" for i in range(20)))
    tokenizer = bpe.write_gpt2(tmp_path / "tokenizer")
    prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "out", holdout=0.1)
    return tmp_path / "out"


def test_reading_crosses_shards(store_dir):
    store = TokenStore.open(store_dir)
    whole = np.concatenate([np.fromfile(shard.path, "<u2") for shard in store.shards])
    assert len(store.shards) > 3 and len(store) == len(whole) == store.num_tokens
    for start in range(0, len(whole), 37):
        for length in (0, 1, 150, len(whole) - start):
            end = min(start + length, len(whole))
            assert np.array_equal(store.read(start, end - start), whole[start:end])


@pytest.mark.parametrize("length", [1, 30, 150])
def test_many_rows_are_what_one_read_each_gives(store_dir, length):
    store = TokenStore.open(store_dir)
    starts = np.arange(0, len(store) - length + 1, 13)[::-1].copy()
    rows = store.rows(starts, length)
    assert np.array_equal(rows, np.stack([store.read(int(start), length) for start in starts]))
    assert store.rows(starts[:0], length).shape == (0, length)


def test_what_is_read_is_a_copy(store_dir):
    store = TokenStore.open(store_dir)
    tokens = store.read(0, 10)
    tokens[:] = 7
    assert not np.array_equal(store.read(0, 10), tokens)


@pytest.mark.parametrize("split", ["train", "holdout"])
def test_documents_and_counts_agree(store_dir, split):
    store = TokenStore.open(store_dir, split)
    documents = list(store.documents())
    assert len(documents) == store.num_documents == {"train": 18, "holdout": 2}[split]
    assert sum(len(ids) + 1 for ids in documents) == store.num_tokens
    tokenizer = load_tokenizer(store_dir)
    assert (store.V, store.end_of_text) == (tokenizer.V, tokenizer.end_of_text)
    assert sum(len(tokenizer.decode(ids).encode()) for ids in documents) == store.num_bytes


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, -1), (0, 10**9), (10**9, 0)])
def test_reading_outside_is_refused(store_dir, start, length):
    with pytest.raises(ValueError, match="are outside the"):
        TokenStore.open(store_dir).read(start, length)


def test_an_unknown_split_is_refused(store_dir):
    with pytest.raises(ValueError, match="split='test' is unknown; use one of train, holdout"):
        TokenStore.open(store_dir, "test")


def test_a_changed_shard_is_found_by_its_digest(store_dir):
    path = store_dir / "train-00001.bin"
    path.write_bytes(b"\0\0" + path.read_bytes()[2:])
    with pytest.raises(ValueError, match=r"train-00001\.bin is damaged"):
        TokenStore.open(store_dir).verify()


def test_a_shard_cut_short_is_found_on_opening(store_dir):
    path = store_dir / "train-00001.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"train-00001\.bin is missing or cut short"):
        TokenStore.open(store_dir)


def test_what_is_no_store_is_refused(store_dir, tmp_path):
    with pytest.raises(ValueError, match="make a token store with `ssdlm prepare`"):
        TokenStore.open(tmp_path)
    (tmp_path / "progress.json").write_text("{}")
    with pytest.raises(ValueError, match="is not finished; run the same"):
        TokenStore.open(tmp_path)
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(ValueError, match="is a list and not a JSON object"):
        TokenStore.open(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="has format 99, this version reads 1"):
        TokenStore.open(tmp_path)


def test_large_vocabularies_take_four_bytes_a_token():
    assert token_dtype(65536).itemsize == 2
    assert token_dtype(65537).itemsize == 4


def test_every_damage_to_an_index_is_refused_in_one_line(tmp_path):
    store_dir = make_store(tmp_path / "store")

    def read():
        for split in ("train", "holdout"):
            store = TokenStore.open(store_dir, split)
            store.read(0, min(4, len(store)))

    assert check_reader(store_dir / "index.json", read) > 150


def test_a_token_outside_the_vocabulary_is_refused(store_dir):
    store = TokenStore.open(store_dir)
    path = store_dir / "train-00000.bin"
    path.write_bytes((store.V + 5).to_bytes(2, "little") + path.read_bytes()[2:])
    for read in (
        lambda: store.read(0, 4),
        lambda: store.rows(np.array([0]), 4),
        lambda: list(store.documents()),
    ):
        with pytest.raises(ValueError, match=f"contains the token {store.V + 5} and has a vocab"):
            read()

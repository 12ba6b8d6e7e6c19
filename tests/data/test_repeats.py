"""Documents that repeat another: found whatever comes first, on disk, and the same after a kill."""

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bpe
from tests.data.test_prepare import content, decoded, texts, write_jsonl

from ssdlm import cli
from ssdlm.data import repeats, writer
from ssdlm.data.formats import Piece, Tally
from ssdlm.data.prepare import prepare
from ssdlm.data.shards import TokenStore, read_index
from ssdlm.data.writer import is_held_out
from ssdlm.progress import ignore
from ssdlm.tokenizer import load_tokenizer


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(bpe.write_gpt2(tmp_path / "tokenizer"))


def same(text: str) -> str:
    return " ".join(text.casefold().split())


def with_copies(number: int) -> list[str]:
    """Documents of which every fifth text comes again, before or after, in another spelling."""
    documents = texts(number)
    for i in range(0, number - 7, 5):
        documents[i + 7] = "  " + documents[i].upper().replace(" ", "\n")
    return documents


def prepared(folder: Path, documents: list[str], tokenizer, **options: Any) -> Any:
    source = write_jsonl(folder / "a.jsonl", documents)
    return prepare([source], tokenizer=tokenizer, out=folder / "out", **options)


def test_no_training_document_has_the_text_of_a_held_out_one(tmp_path, tokenizer):
    documents = with_copies(200)
    report = prepared(tmp_path, documents, tokenizer, holdout=0.2)
    held = [text for i, text in enumerate(documents) if is_held_out(i, 0.2)]
    banned = {same(text) for text in held}
    kept = [
        text
        for i, text in enumerate(documents)
        if not is_held_out(i, 0.2) and same(text) not in banned
    ]
    assert decoded(tmp_path / "out", "holdout") == held
    assert decoded(tmp_path / "out", "train") == kept
    assert report.repeats == 200 - len(held) - len(kept) > 5
    assert f"left out: {report.repeats} documents whose text another one has" in str(report)
    index = read_index(tmp_path / "out")
    assert (index.settings["deduplicate"], index.repeats) == ("holdout", report.repeats)
    # Before, or where it is asked for, everything was kept, and copies were on both sides.
    everything = tmp_path / "none"
    everything.mkdir()
    report = prepared(everything, documents, tokenizer, holdout=0.2, deduplicate="none")
    trained = {same(text) for text in decoded(everything / "out", "train")}
    assert trained & banned and report.train.documents + len(held) == 200


def test_each_text_once_keeps_the_first_and_holds_out_of_those(tmp_path, tokenizer):
    documents = with_copies(200)
    report = prepared(tmp_path, documents, tokenizer, holdout=0.1, deduplicate="all")
    seen: dict[str, str] = {}
    for text in documents:
        seen.setdefault(same(text), text)
    first = list(seen.values())
    assert decoded(tmp_path / "out", "train") == [
        text for i, text in enumerate(first) if not is_held_out(i, 0.1)
    ]
    assert decoded(tmp_path / "out", "holdout") == [
        text for i, text in enumerate(first) if is_held_out(i, 0.1)
    ]
    assert report.repeats == 200 - len(first)


@pytest.mark.parametrize("rule", ["holdout", "all"])
@pytest.mark.parametrize(
    ("documents", "holdout", "train", "held"),
    [
        (["one", "ONE", "one "], 0.5, ["one"], []),
        (["one", "two"], 0.0001, ["one"], ["two"]),
        (["one", "two", "One"], 0.999, None, None),
        (["one", "one"], 0.0, None, []),
        (["one"], 0.5, ["one"], []),
    ],
)
def test_neither_side_is_empty_where_there_are_two_texts(
    tmp_path, tokenizer, rule, documents, holdout, train, held
):
    prepared(tmp_path, documents, tokenizer, holdout=holdout, deduplicate=rule)
    found = [decoded(tmp_path / "out", split) for split in ("train", "holdout")]
    assert found[0]
    assert train is None or found[0] == train
    assert held is None or found[1] == held
    assert not {same(text) for text in found[0]} & {same(text) for text in found[1]}


@pytest.mark.parametrize("rule", ["holdout", "all"])
def test_a_run_stopped_anywhere_ends_with_the_same_bytes(tmp_path, tokenizer, rule, monkeypatch):
    monkeypatch.setattr(writer, "SHARD_TOKENS", 300)
    source = write_jsonl(tmp_path / "a.jsonl", with_copies(80))
    options = {"tokenizer": tokenizer, "holdout": 0.2, "deduplicate": rule}
    prepare([source], out=tmp_path / "whole", **options)
    real, stopped = writer.StoreWriter.commit, 0

    def commit(self):
        nonlocal stopped
        real(self)
        stopped += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(writer.StoreWriter, "commit", commit)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            prepare([source], out=tmp_path / "out", **options)
    monkeypatch.setattr(writer.StoreWriter, "commit", real)
    read_again = []
    monkeypatch.setattr(repeats, "plan", lambda *_, **__: read_again.append(1))
    prepare([source], out=tmp_path / "out", **options)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert stopped == 3 and not read_again
    assert not list((tmp_path / "out").glob("*.tmp")) + list((tmp_path / "out").glob("repeats-*"))


def test_a_first_reading_cut_short_leaves_nothing_that_counts(tmp_path, tokenizer, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", with_copies(60))
    real = repeats.mark_holdout
    monkeypatch.setattr(repeats, "mark_holdout", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare([source], tokenizer=tokenizer, out=tmp_path / "out", holdout=0.2)
    (tmp_path / "out" / repeats.FILE).write_bytes(b"of another command")
    (tmp_path / "out" / "repeats-x").mkdir()
    monkeypatch.setattr(repeats, "mark_holdout", real)
    prepare([source], tokenizer=tokenizer, out=tmp_path / "out", holdout=0.2)
    prepare([source], tokenizer=tokenizer, out=tmp_path / "whole", holdout=0.2)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_store_made_before_opens_and_is_known_as_one_that_kept_everything(tmp_path, tokenizer):
    documents = texts(20)
    prepared(tmp_path, documents, tokenizer, deduplicate="none")
    path = tmp_path / "out" / "index.json"
    index = json.loads(path.read_text())
    del index["repeats"], index["settings"]["deduplicate"]
    path.write_text(json.dumps(index))
    assert TokenStore.open(tmp_path / "out").num_documents == 19
    again = prepared(tmp_path, documents, tokenizer, deduplicate="none")
    assert again.was_finished and again.repeats == 0
    with pytest.raises(ValueError, match="was prepared with deduplicate none, not holdout; use"):
        prepared(tmp_path, documents, tokenizer)


def test_an_unknown_rule_is_refused_and_the_command_line_has_them(tmp_path, tokenizer, capsys):
    with pytest.raises(ValueError, match="deduplicate='some' is unknown; choose one of none, hold"):
        prepared(tmp_path, ["a"], tokenizer, deduplicate="some")
    source = write_jsonl(tmp_path / "b.jsonl", ["one", "two", "ONE"])
    words = ["prepare", str(source), "--tokenizer", str(tmp_path / "tokenizer")]
    words += ["--out", str(tmp_path / "cli"), "--deduplicate", "all"]
    assert cli.main(words) == 0
    assert "left out: 1 documents" in capsys.readouterr().out


@dataclass(frozen=True)
class Many:
    """A source of short documents, each text twice."""

    count: int
    name: str = "many"
    num_bytes: int = 0

    def identity(self) -> dict[str, Any]:
        return {}

    def pieces(self, tally: Tally) -> Iterator[Piece]:
        for i in range(self.count):
            yield Piece(f"text {i % (self.count // 2)}", ends_document=True)


def peak_of(count: int, folder: Path) -> int:
    """Return the most memory that a plan for so many documents took."""
    every_tenth = lambda number: number % 10 == 3  # noqa: E731
    tracemalloc.start()
    repeats.plan([Many(count)], folder, "all", every_tenth, has_holdout=True, show=ignore)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    splits = repeats.read_splits(folder)
    assert np.bincount(splits).tolist() == [count * 9 // 20, count // 20, count // 2]
    return peak


def test_memory_does_not_grow_with_the_number_of_documents(tmp_path):
    # What other threads of this process take is counted too, so the least of three.
    few, many = (min(peak_of(count, tmp_path) for _ in range(3)) for count in (500, 4_000))
    assert many < few + 20 * 3_500  # a list of digests would take 57 bytes for each

"""From text to a token store: exact, in order, held out by document, and safe from kills."""

import json
import lzma
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from tests import bpe
from tests.mutations import check_reader
from tests.processes import end_at_rename

from ssdlm.data import encoding, writer
from ssdlm.data.prepare import prepare
from ssdlm.data.shards import TokenStore
from ssdlm.data.writer import is_held_out
from ssdlm.storage.files import locked
from ssdlm.tokenizer import load_tokenizer


def prepare_in_parts(source, tokenizer, out):
    """Prepare, in parts of 200 tokens."""
    writer.SHARD_TOKENS = 200
    prepare([source], tokenizer=tokenizer, out=out, holdout=0.2)


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(bpe.write_gpt2(tmp_path / "tokenizer"))


def texts(number: int) -> list[str]:
    return [f"document {i}: " + bpe.TEXT[: 10 + i % 7 * 20].strip() for i in range(number)]


def write_jsonl(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def decoded(out: Path, split: str) -> list[str]:
    tokenizer = load_tokenizer(out)
    return [tokenizer.decode(ids) for ids in TokenStore.open(out, split).documents()]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_documents_come_back_in_order_split_and_counted(tmp_path, tokenizer):
    documents = texts(50)
    source = write_jsonl(tmp_path / "a.jsonl", documents)
    report = prepare([source], tokenizer=tokenizer, out=tmp_path / "out", holdout=0.1)
    held = [text for i, text in enumerate(documents) if is_held_out(i, 0.1)]
    kept = [text for i, text in enumerate(documents) if not is_held_out(i, 0.1)]
    assert decoded(tmp_path / "out", "holdout") == held and len(held) == 5
    assert decoded(tmp_path / "out", "train") == kept
    assert report.train.documents == 45
    assert report.train.bytes == sum(len(text.encode()) for text in kept)
    assert report.train.tokens == sum(len(tokenizer.encode(text)) + 1 for text in kept)


def test_every_document_is_followed_by_end_of_text_and_holds_none(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("the <|endoftext|> river\n\nthe men\n")
    prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "out", holdout=0.0)
    store = TokenStore.open(tmp_path / "out")
    tokens = store.read(0, store.num_tokens)
    assert np.flatnonzero(tokens == store.end_of_text).size == 2
    assert tokens[-1] == store.end_of_text
    assert decoded(tmp_path / "out", "train") == ["the <|endoftext|> river", "the men"]


def test_inputs_of_several_kinds_follow_one_another(tmp_path, tokenizer):
    folder = tmp_path / "in"
    folder.mkdir()
    write_jsonl(folder / "b.jsonl", ["second", "third"])
    (folder / "a.txt").write_text("first")
    (folder / "c.csv").write_text("text\nfourth\n")
    out = tmp_path / "out"
    report = prepare([folder], tokenizer=tmp_path / "tokenizer", out=out, holdout=0.0)
    assert decoded(out, "train") == ["first", "second", "third", "fourth"]
    assert [file["documents"] for file in report.files] == [1, 2, 1]


def test_the_result_does_not_depend_on_the_workers(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(writer, "SHARD_TOKENS", 700)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 100)
    source = write_jsonl(tmp_path / "a.jsonl", texts(60))
    for workers in (1, 3):
        prepare([source], tokenizer=tokenizer, out=tmp_path / str(workers), workers=workers)
    assert content(tmp_path / "1") == content(tmp_path / "3")
    assert len(TokenStore.open(tmp_path / "1").shards) > 2


def test_no_hold_out_means_none(tmp_path, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts(30))
    report = prepare([source], tokenizer=tokenizer, out=tmp_path / "out", holdout=0.0)
    assert (report.train.documents, report.holdout.documents) == (30, 0)
    assert TokenStore.open(tmp_path / "out", "holdout").num_tokens == 0


@pytest.mark.parametrize("number", [2, 5])
def test_a_hold_out_that_rounds_to_nothing_takes_the_last_document(tmp_path, tokenizer, number):
    source = write_jsonl(tmp_path / "a.jsonl", texts(number))
    report = prepare([source], tokenizer=tokenizer, out=tmp_path / "out", holdout=0.0001)
    assert decoded(tmp_path / "out", "holdout") == texts(number)[-1:]
    assert decoded(tmp_path / "out", "train") == texts(number)[:-1]
    assert report.holdout.bytes == len(texts(number)[-1].encode())
    TokenStore.open(tmp_path / "out").verify()


@pytest.mark.parametrize("holdout", [0.01, 0.99])
def test_a_single_document_is_for_training(tmp_path, tokenizer, holdout):
    (tmp_path / "a.txt").write_text("the river had risen")
    report = prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "o", holdout=holdout)
    assert decoded(tmp_path / "o", "train") == ["the river had risen"]
    assert report.holdout.tokens == 0
    assert "only one document" in str(report)


def test_training_is_never_left_empty(tmp_path, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts(3))
    prepare([source], tokenizer=tokenizer, out=tmp_path / "out", holdout=0.999)
    assert len(decoded(tmp_path / "out", "train")) == 1
    assert len(decoded(tmp_path / "out", "holdout")) == 2


def test_input_without_a_document_is_an_error(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n\n")
    (tmp_path / "b.jsonl").write_text('{"body": 1}\n')
    with pytest.raises(ValueError, match=r"no document in .*: there is no text in it"):
        prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "out")
    with pytest.raises(ValueError, match="every line is bad, the first: no 'text' in line 1 of"):
        prepare([tmp_path / "b.jsonl"], tokenizer=tokenizer, out=tmp_path / "out")
    write_jsonl(tmp_path / "c.jsonl", texts(2))
    assert prepare([tmp_path / "c.jsonl"], tokenizer=tokenizer, out=tmp_path / "out")


def test_bad_lines_are_reported_with_file_and_first_line(tmp_path, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts(3))
    with open(source, "a") as file:
        file.write("{broken\n[]\n")
    report = prepare([source], tokenizer=tokenizer, out=tmp_path / "out")
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["files"][0]["bad_lines"] == 2
    assert f"{source}: 2 bad lines left out, the first is line 4 (not JSON)" in str(report)


def test_an_unreadable_file_is_an_error_that_leaves_no_part(tmp_path, tokenizer):
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8b\x08 broken")
    with pytest.raises(ValueError, match=r"cannot read .*a\.jsonl\.gz"):
        prepare([tmp_path / "a.jsonl.gz"], tokenizer=tokenizer, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_same_command_again_says_that_it_is_done(tmp_path, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts(20))
    first = prepare([source], tokenizer=tokenizer, out=tmp_path / "out")
    before = content(tmp_path / "out")
    again = prepare([source], tokenizer=tokenizer, out=tmp_path / "out", workers=2)
    assert not first.was_finished and again.was_finished
    assert "was already prepared from this input" in str(again)
    assert content(tmp_path / "out") == before and again.digest == first.digest


def test_another_command_is_refused_with_what_differs(tmp_path, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts(20))
    other = write_jsonl(tmp_path / "b.jsonl", texts(21))
    out = tmp_path / "out"
    prepare([source], tokenizer=tokenizer, out=out)
    remedy = "use another --out, or delete .*out to start over"
    with pytest.raises(ValueError, match=rf"with holdout 0\.01, not 0\.5; {remedy}"):
        prepare([source], tokenizer=tokenizer, out=out, holdout=0.5)
    with pytest.raises(ValueError, match=f"with another tokenizer; {remedy}"):
        prepare([source], tokenizer=bpe.write_roberta(tmp_path / "roberta"), out=out)
    with pytest.raises(ValueError, match=f"with 1 input files, not 2; {remedy}"):
        prepare([source, other], tokenizer=tokenizer, out=out)
    with pytest.raises(ValueError, match=rf"with other input in place of .*b\.jsonl; {remedy}"):
        prepare([other], tokenizer=tokenizer, out=out)


@pytest.mark.parametrize(("name", "value"), [("holdout", 1.0), ("holdout", -0.1), ("workers", 0)])
def test_settings_out_of_range_are_refused(tmp_path, tokenizer, name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        prepare(["a.txt"], tokenizer=tokenizer, out=tmp_path / "out", **{name: value})


def test_two_runs_do_not_write_to_one_folder(tmp_path, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts(2))
    (tmp_path / "out").mkdir()
    message = "another `ssdlm prepare`"
    with locked(tmp_path / "out", ""), pytest.raises(ValueError, match=message):
        prepare([source], tokenizer=tokenizer, out=tmp_path / "out")


def test_a_run_killed_again_and_again_ends_with_the_same_bytes(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(writer, "SHARD_TOKENS", 200)
    write_jsonl(tmp_path / "a.jsonl", texts(60))
    (tmp_path / "b.txt").write_text("the last river")
    given = str(tmp_path / "[ab].*")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    prepare([given], tokenizer=tokenizer, out=whole, holdout=0.2)

    # A run names the tokenizer's two files, then two shards and the journal of each part that is
    # left to do: kills before the first part, within it twice, then within the third and after it.
    words = (prepare_in_parts, given, tmp_path / "tokenizer", killed)
    codes = [end_at_rename(point, *words) for point in (3, 6, 9, 18, 10, 0)]
    assert codes == [-signal.SIGKILL] * 5 + [0]
    assert content(killed) == content(whole)
    assert len(TokenStore.open(killed).shards) > 5


def test_a_kill_between_the_index_and_the_journals_end_is_put_right(tmp_path, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts(5))
    prepare([source], tokenizer=tokenizer, out=tmp_path / "out")
    before = content(tmp_path / "out")
    (tmp_path / "out" / "progress.json").write_text("{}")
    assert prepare([source], tokenizer=tokenizer, out=tmp_path / "out").was_finished
    assert content(tmp_path / "out") == before


def test_every_damage_to_a_journal_is_refused_in_one_line(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SHARD_TOKENS", 20)
    monkeypatch.setattr(writer.StoreWriter, "finish", lambda self: exec("raise KeyboardInterrupt"))
    sources = [write_jsonl(tmp_path / f"{name}.jsonl", texts(4)) for name in "ab"]
    out = tmp_path / "out"

    def read():
        return prepare(sources, tokenizer=tokenizer, out=out)

    with pytest.raises(KeyboardInterrupt):
        read()
    whole = shutil.copytree(out, tmp_path / "whole")

    def read_again():
        damaged = (out / "progress.json").read_bytes()
        shutil.rmtree(out)
        shutil.copytree(whole, out)
        (out / "progress.json").write_bytes(damaged)
        with pytest.raises(KeyboardInterrupt):
            read()

    assert check_reader(out / "progress.json", read_again) > 100


def test_a_folder_that_is_no_store_is_refused_and_stays_as_it_is(tokenizer, tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(2))
    out = tmp_path / "model"
    out.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (out / name).write_text("mine")
    with pytest.raises(ValueError, match=r"model is not empty \(config.json is there\) and not a"):
        prepare([source], tokenizer=tokenizer, out=out)
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "config.json": "mine",
        "tokenizer.json": "mine",
    }


def test_after_an_input_without_a_document_another_may_go_to_the_same_folder(tokenizer, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match="no document"):
        prepare([tmp_path / "empty.txt"], tokenizer=tokenizer, out=tmp_path / "out")
    source = write_jsonl(tmp_path / "a.jsonl", texts(2))
    assert prepare([source], tokenizer=tokenizer, out=tmp_path / "out").train.documents > 0


def test_threads_beyond_any_machine_are_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="workers=1000000000 is out of range; use 1 to 1024"):
        prepare([tmp_path], tokenizer=tokenizer, out=tmp_path / "out", workers=10**9)


@pytest.mark.parametrize("name", ["a.txt.xz", "a.txt", "a.jsonl"])
def test_a_refused_input_leaves_nothing(tmp_path, tokenizer, name):
    source, out = tmp_path / name, tmp_path / "new" / "store"
    content = {"a.txt.xz": lzma.compress(b"text " * 99)[:-9] + b"x" * 9, "a.txt": b"\n\n"}
    source.write_bytes(content.get(name, b'{"text": ""}\n'))
    said = "; get the file anew$" if name == "a.txt.xz" else "no document in"
    with pytest.raises(ValueError, match=said):
        prepare([source], tokenizer=tokenizer, out=out)
    assert not out.exists()

"""Documents out of each kind of file, bad lines counted, long documents in exact pieces."""

import io
import json
import random

import pyarrow
import pytest
from pyarrow import parquet
from tests import bpe

from ssdlm.data import formats
from ssdlm.data.formats import LayoutError, Tally
from ssdlm.tokenizer import load_tokenizer


def read(kind: str, content: bytes) -> tuple[list[str], Tally]:
    """The documents of a file with this content."""
    tally = Tally()
    documents, parts = [], []
    for piece in formats.READERS[kind](io.BufferedReader(io.BytesIO(content)), tally):
        parts.append(piece.text)
        if piece.ends_document:
            documents.append("".join(parts))
            parts = []
    assert parts == [] and tally.documents == len(documents)
    return documents, tally


def table(**columns) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (b"", []),
        (b"\n \n\t\n", []),
        (b"one", ["one"]),
        (b"one\n", ["one"]),
        (b"one\ntwo\n\nthree\n", ["one\ntwo", "three"]),
        (b"\n\n one \n  \n\n\ntwo", [" one ", "two"]),
        (b"a\r\nb\r\n\r\nc\r\n", ["a\nb", "c"]),
        (b"\xef\xbb\xbfmarked\n\nnext", ["marked", "next"]),
    ],
)
def test_blank_lines_separate_the_documents_of_a_txt(content, documents):
    assert read(".txt", content)[0] == documents


def test_a_txt_line_that_is_not_utf8_is_left_out_and_counted():
    documents, tally = read(".txt", b"one\nb\xffd\ntwo\n\nthree\nb\xe2")
    assert documents == ["one\ntwo", "three\nb"]
    assert (tally.bad_lines, tally.first_bad_line) == (2, 2)


def test_jsonl_gives_the_text_of_each_line():
    rows = [{"text": "one\n\ntwo"}, {"id": 3, "text": " caf\u00e9 "}, {"text": "  "}]
    content = "\n".join(map(json.dumps, rows)) + "\n\n"
    assert read(".jsonl", content.encode())[0] == ["one\n\ntwo", " caf\u00e9 "]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "not JSON"),
        (b'{"txt": "one"}', "no 'text'"),
        (b'{"text": null}', "no 'text'"),
        (b'{"text": ["one"]}', "no 'text'"),
        (b'"one"', "not a JSON object"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "\\ud800"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": ' + b"1" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_bad_jsonl_line_is_counted_with_its_number_and_reason(line, reason):
    good = b'{"text": "good"}'
    documents, tally = read(".jsonl", b"\n".join([good, b"", line, good, line]))
    assert documents == ["good", "good"]
    assert (tally.bad_lines, tally.first_bad_line, tally.first_reason) == (2, 3, reason)


def test_csv_gives_the_text_column_across_quoted_lines():
    content = b'\xef\xbb\xbflabel,text\r\n1,"one, ""1""\n\nmore"\r\n0,two\r\n\r\n2,\r\n'
    assert read(".csv", content)[0] == ['one, "1"\n\nmore', "two"]


def test_bad_csv_rows_are_counted():
    documents, tally = read(".csv", b"label,text\n1,one\n2\n3,b\xff\n4,four\n")
    assert documents == ["one", "four"]
    assert (tally.bad_lines, tally.first_bad_line) == (2, 3)


def test_a_csv_document_may_be_long():
    assert read(".csv", b"text\n" + b"word " * 50_000)[0] == ["word " * 50_000]


def test_parquet_gives_the_text_column():
    texts = [f"document {number}" for number in range(200)]
    assert read(".parquet", table(id=list(range(200)), text=texts))[0] == texts
    categories = pyarrow.array(texts).dictionary_encode()
    assert read(".parquet", table(text=categories))[0] == texts


def test_bad_parquet_rows_are_counted():
    good, broken = table(text=["one", None, "two"]), table(text=["one", "@@", "two"])
    assert read(".parquet", good)[1].first_bad_line == 2
    documents, tally = read(".parquet", broken.replace(b"@@", b"@\xff"))
    assert documents == ["one", "two"] and tally.first_reason == "not UTF-8"


@pytest.mark.parametrize(
    ("kind", "content"),
    [(".csv", b"label,body\n1,one\n"), (".csv", b""), (".parquet", table(body=["one"]))],
)
def test_a_table_without_a_text_column_is_an_error_that_lists_what_it_has(kind, content):
    with pytest.raises(LayoutError, match=r"no column 'text', only (nothing|.*body)"):
        read(kind, content)


def test_a_file_that_is_no_parquet_is_unreadable():
    with pytest.raises(OSError, match="Parquet"):
        read(".parquet", b"no table at all")


@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_a_long_document_comes_in_pieces_that_tokenise_like_the_whole(kind, monkeypatch, tmp_path):
    rng = random.Random(1)
    words = [*bpe.TEXT.split(), "\n", " ", "  \n", "caf\u00e9", "\u3000"]
    text = " ".join(rng.choice(words) for _ in range(600)).strip()
    text = "\n".join(line for line in text.split("\n") if line.strip())
    content = text if kind == ".txt" else json.dumps({"text": text})
    whole = load_tokenizer(bpe.write_gpt2(tmp_path)).encode_plain([text])[0]

    monkeypatch.setattr(formats, "PIECE", 64)
    stream = io.BufferedReader(io.BytesIO(content.encode()))
    pieces = list(formats.READERS[kind](stream, Tally()))
    in_pieces = load_tokenizer(tmp_path).encode_plain([piece.text for piece in pieces])
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(pieces) > 30 and max(len(piece.text) for piece in pieces) <= 64
    assert [i for ids in in_pieces for i in ids] == whole


def test_a_line_without_end_is_never_held_as_a_whole(monkeypatch):
    monkeypatch.setattr(formats, "PIECE", 16)
    text = "\u20ac" * 100 + " " * 50 + "x" * 33 + "\n" + "y" * 15 + "\nz"
    stream = io.BufferedReader(io.BytesIO(text.encode()))
    pieces = [piece.text for piece in formats.read_txt(stream, Tally())]
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 16
